"""The engine benchmark on tiny clients: what it compares is comparable, and its files hold what it printed."""

import contextlib
import io
import json
import math

import pytest
import torch

from dfl_lightning.models import MLP

SECTIONS = ["train", "skew", "rules", "rows", "losses", "lightning", "systems"]
CLIENTS, SAMPLES = 5, 12
TINY = [f"--clients={CLIENTS}", f"--samples={SAMPLES}", "--repeats=1", "--rounds=1", "--parameters=300"]
BATCH = {"MLP": 32, "MNISTCNN": 5}


@pytest.fixture(scope="module")
def main(load):
    return load("bench_engine").main


@pytest.fixture(scope="module")
def measure(main, tmp_path_factory):
    """Run sections; return what they print, the folder with what they write, and the numbers of their tables."""

    def measure(sections):
        folder = tmp_path_factory.mktemp("bench")
        choice = ["--networks=MLP,MNISTCNN", "--configs=afind,fedavg", f"--only={','.join(sections)}"]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert main([*TINY, *choice, f"--out={folder}"]) == 0
        tables = json.loads((folder / "engine.json").read_text())["tables"]
        return printed.getvalue(), folder, {name: table["numbers"] for name, table in tables.items()}

    return measure


@pytest.fixture(scope="module")
def numbers(measure):
    """Return the numbers of the tables that tests look into, by section."""
    return measure(["train", "skew", "losses"])[2]


@pytest.fixture(scope="module")
def rounds(measure):
    """Return the numbers of the tables of whole rounds, by section."""
    return measure(["lightning", "systems"])[2]


@pytest.mark.slow
def test_every_section_is_printed_and_written(measure):
    printed, folder, numbers = measure(SECTIONS)
    assert list(numbers) == SECTIONS
    assert printed.startswith("about ")
    page = (folder / "engine.md").read_text()
    tables = [line for line in printed.splitlines() if line.startswith(("###", "|"))]
    assert [line for line in page.splitlines() if line.startswith(("###", "|"))] == tables
    assert len([line for line in tables if line.startswith("###")]) == len(SECTIONS)
    assert (folder / "engine.png").read_bytes().startswith(b"\x89PNG")


def test_candidates_take_the_same_steps_for_a_client(numbers):
    assert [row["network"] for row in numbers["train"]] == list(BATCH)
    for row in numbers["train"]:
        steps = math.ceil(SAMPLES / BATCH[row["network"]])
        counts = row["counts"]
        assert counts["stacked"] == {"samples": CLIENTS * SAMPLES, "steps": CLIENTS * steps}
        for name in ("loop", "plain"):  # every fourth client: 0 and 4
            assert counts[name] == {"samples": 2 * SAMPLES, "steps": 2 * steps}
        assert counts["bound"]["samples"] == min(CLIENTS * SAMPLES, CLIENTS * BATCH[row["network"]])


def test_engines_that_are_compared_arrive_at_the_same_rows(numbers):
    for row in numbers["train"]:
        assert 0 <= row["largest_difference"] < 1e-5


def test_computed_samples_are_counted_in_the_network(load):
    federations = load("benchmarks.federations")
    setting = federations.SETTINGS[1].resized(3, 3)
    data = federations.random_data(setting.shape, [40, 33, 3])  # batches of 32: 32 + 8, 32 + 1, 3
    clients = federations.federation(setting, "stacked", data)
    clients.engine.cohorts = [torch.arange(3)]
    with federations.counted(type(clients.network)) as count:
        assert clients.train(torch.arange(3)).samples.tolist() == [40, 33, 3]
    assert (count.samples, count.steps) == (3 * 32 + 2 * 8, 5)
    clients.train(torch.arange(3))
    assert count.steps == 5  # counts no more


def test_equal_sizes_need_no_padding_and_skewed_ones_little(numbers):
    for row in numbers["skew"]:
        assert row["useful"] == sum(row["sizes"])
        assert row["useful"] <= row["computed"] <= row["all_padded"] * row["useful"]
        equal = row["counts"]["equal"]["samples"]
        assert equal == CLIENTS * round(row["useful"] / CLIENTS)


def test_losses_of_pairs_agree_with_the_naive_loop(numbers):
    assert [row["network"] for row in numbers["losses"]] == list(BATCH)
    for row in numbers["losses"]:
        assert (row["models"], row["candidates"]) == (CLIENTS, CLIENTS)
        assert 0 < row["largest_difference"] < 1e-5  # not 0: three computations, not one


@pytest.mark.slow
@pytest.mark.parametrize("section", ["lightning", "systems"])
def test_times_of_verbs_and_rest_add_up_to_the_round(rounds, section):
    for row in rounds[section]:
        assert len(row["rounds"]) == 2  # the first warms up
        counted = row["rounds"][1]
        parts = sum(counted[verb] for verb in ("train", "evaluate", "compare", "mix", "rest"))
        assert parts == pytest.approx(counted["wall"])
        assert min(counted[verb] for verb in ("train", "evaluate", "mix", "rest")) > 0
        assert counted["phase train"] <= counted["train"] + counted["phase evaluate"] + 1e-3


@pytest.mark.slow
def test_systems_run_with_both_engines_to_the_same_accuracy(rounds):
    found = {(row["config"], row["engine"]): row for row in rounds["systems"]}
    assert set(found) == {(config, engine) for config in ("afind", "fedavg") for engine in ("stacked", "loop")}
    assert found["afind", "stacked"]["policies"] == ["AFIND", "AdaptiveThreshold", "Boltzmann"]
    for config in ("afind", "fedavg"):
        stacked, loop = (found[config, engine]["test_accuracy"] for engine in ("stacked", "loop"))
        assert stacked == pytest.approx(loop, abs=0.05)


def test_config_that_does_not_fit_is_named_with_reason(main, capsys):
    assert main([*TINY, "--only=systems", "--configs=fdms"]) == 0  # five clients, five groups, half of them down
    assert "- fdms does not run on these data: dropout.rate=0.5 leaves 2 of 5 clients active" in capsys.readouterr().out


def test_ratios_are_taken_within_a_repetition(load):
    timing = load("benchmarks.timing")
    found = timing.Times({"slow": [2.0, 30.0, 4.0], "fast": [1.0, 10.0, 1.0]}, "wall")
    assert found.ratio("slow", "fast") == (3.0, 2.0, 4.0)
    assert found.median("slow") == 4.0
    assert found.spread("fast") == 9.0


def test_the_plain_loop_starts_anew_in_every_repetition(load):
    federations, training = load("benchmarks.federations"), load("benchmarks.training")
    setting = federations.SETTINGS[1].resized(2, 8)
    clients = federations.federation(setting, "loop", federations.random_data(setting.shape, [8, 8]))
    plain = training.PlainLoop(clients, torch.arange(2))
    plain.prepare()
    start = [parameter.clone() for module in plain._modules for parameter in module.parameters()]
    assert plain.run() == 16
    moved = [p for module in plain._modules for p in module.parameters()]
    assert not any(torch.equal(p, s) for p, s in zip(moved, start, strict=True))
    plain.prepare()
    assert all(torch.equal(p, s) for p, s in zip(moved, start, strict=True))
    assert torch.equal(clients.bank.layout.flatten(plain._modules[1]), clients.bank.rows("models")[1])


def test_a_network_that_cannot_be_stacked_has_the_other_candidates(load, capsys):
    federations, training = load("benchmarks.federations"), load("benchmarks.training")
    timing = load("benchmarks.timing")

    def hooked():
        network = MLP(hidden=[4])
        network.register_forward_hook(lambda *_: None)
        return network

    setting = federations.Setting("Hooked", hooked, (1, 2, 2), 2, 4, 2, 1, 1, 1, 1.0)
    table = training.train_table([setting], [timing.Machine()], 1)
    assert table.rows[0][3] == "cannot be stacked"
    assert table.rows[0][7:] == ["", "", ""]
    assert set(table.numbers[0]["counts"]) >= {"loop", "plain", "bound"}
    assert "Hooked cannot be stacked: it has hooks" in capsys.readouterr().err


def test_a_network_whose_library_is_missing_is_left_out(main, load, capsys, monkeypatch):
    settings = load("benchmarks.federations").SETTINGS
    bert = next(setting for setting in settings if setting.name == "BERTLoRA32")
    assert (bert.needs, bert.outputs) == ("transformers", 10)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([*TINY, "--only=train", "--networks=BERTLoRA32"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("BERTLoRA32 is left out: it needs transformers; pip install 'dfl-lightning[hf]'\n")


def test_one_thread_adds_a_row_by_processor_time(main, capsys):
    assert main([*TINY, "--only=train", "--networks=MLP", "--one-thread"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| MLP")]
    assert [row.split("|")[3].strip() for row in rows] == [f"{torch.get_num_threads()}, wall", "1, CPU"]


@pytest.mark.cpu_bits
def test_missing_gpu_is_refused_in_one_sentence(main, capsys):
    assert main(["--device=cuda"]) == 2
    assert capsys.readouterr().err == "bench_engine: --device cuda, but torch sees no GPU here; leave it out\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--only=trian"], "--only: there is no 'trian'; choose among train, skew"),
        (["--networks=VGG"], "--networks: there is no 'VGG'; choose among LeNet, MLP"),
        (["--configs=pens2"], "--configs: there is no 'pens2'; choose among adf_lora, adpsgd, afind"),
        (["--repeats=0"], "--repeats must be 1 or more, not 0"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(main, capsys, words, sentence):
    with pytest.raises(SystemExit):
        main(words)
    assert f"error: {sentence}" in capsys.readouterr().err
