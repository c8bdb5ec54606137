"""The trial of public architectures: a row says engine, time and loss of a network."""

import pytest


@pytest.fixture
def main(load):
    return load("try_networks").main


def test_a_row_says_the_engine_and_that_the_loss_fell(main, capsys):
    assert main(["vision_transformer", "--rounds=2"]) == 0
    row = [cell.strip() for cell in capsys.readouterr().out.splitlines()[2].strip("|").split("|")]
    assert row[:3] == ["vision_transformer", "147,780", "stacked"]
    first, last = map(float, row[4].split(" to "))
    assert last < first
    assert row[5] == ""


def test_an_unknown_network_is_refused_in_one_sentence(main, capsys):
    with pytest.raises(SystemExit):
        main(["vgg"])
    assert "error: there is no 'vgg'; choose among resnet18, mobilenet_v3_small" in capsys.readouterr().err
