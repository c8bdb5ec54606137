"""Networks of transformers: built for the data, loaded from a folder, trained, and refused in one sentence."""

import pytest
import torch
from torch.utils.data import Dataset

from dfl_lightning import callbacks
from dfl_lightning.data import FromDataset
from dfl_lightning.models import MLP, HuggingFace, LoRA
from dfl_lightning.utils.errors import UserError

pytestmark = pytest.mark.hf

WIDTH, WORDS, PLACES = 8, 20, 12
TINY = {
    "model_type": "bert",
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": PLACES,
}


class Sentences(Dataset):
    """Sentences of 6 words, of which the last ones may be padding; the class is that of most words."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        ids = torch.randint(2, WORDS, (6,), generator=torch.Generator().manual_seed(index))
        mask = torch.arange(6) < 6 - index % 3
        return {"input_ids": ids * mask, "attention_mask": mask.long()}, int(ids.float().mean()) % 3


def draw(config=TINY, seed=0, **options):
    return HuggingFace(config, **options).draw((6,), 3, seed)


def test_a_config_makes_a_network_with_the_datas_classes():
    network = draw()
    embeddings = (WORDS + PLACES + 2 + 2) * WIDTH
    attention, feed_forward = 4 * (WIDTH**2 + WIDTH), 2 * 16 * WIDTH + 16 + WIDTH
    rest = 2 * 2 * WIDTH + WIDTH**2 + WIDTH + WIDTH * 3 + 3
    assert sum(p.numel() for p in network.parameters()) == embeddings + attention + feed_forward + rest
    assert network(input_ids=torch.ones(2, 6, dtype=torch.long)).shape == (2, 3)
    tokens = torch.ones(2, 6)
    assert torch.equal(network.eval()(tokens), network(tokens.long()))


def test_first_parameters_are_drawn_from_the_runs_seed():
    states = [draw(seed=seed).state_dict() for seed in (0, 0, 1)]
    name = "network.classifier.weight"
    assert torch.equal(states[0][name], states[1][name])
    assert not torch.equal(states[0][name], states[2][name])


def test_a_folder_makes_a_network_with_its_weights_in_float32(tmp_path):
    saved = draw().network
    saved.half().save_pretrained(tmp_path)
    loaded = draw(str(tmp_path), seed=5)
    for name, value in loaded.network.state_dict().items():
        assert torch.equal(value, saved.state_dict()[name].float()), name
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    assert not torch.equal(draw(str(tmp_path), seed=5).network.classifier.weight, saved.classifier.weight.float())


FAMILIES = {
    "bert": TINY,
    "distilbert": {"vocab_size": WORDS, "dim": WIDTH, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
    "gpt2": {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 1, "n_head": 2, "n_positions": PLACES, "pad_token_id": 0},
    "roberta": {**TINY, "max_position_embeddings": PLACES + 2},
    "albert": {**TINY, "embedding_size": 4},
    "llama": {**TINY, "num_key_value_heads": 1, "pad_token_id": 0},
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_both_engines_train_the_same_networks(small_run, tmp_path, kind):
    rows = {}
    for engine in ("stacked", "loop"):
        policies = [callbacks.Gossip(k=1), callbacks.SampleWeighted()]
        module = {"network": HuggingFace({**FAMILIES[kind], "model_type": kind})}
        run = small_run(2, root=tmp_path / engine, policies=policies, module=module, engine=engine, precision="64-true")
        run.data = FromDataset(Sentences(), num_clients=3, test_fraction=0.2)
        rows[engine] = run.fit().rows
    # Llama computes the angles of its positions in float32, and so does its trial.
    tolerance = 1e-5 if kind == "llama" else 1e-10
    torch.testing.assert_close(rows["stacked"], rows["loop"], rtol=tolerance, atol=tolerance)


def test_a_bert_with_its_default_dropout_repeats_its_bits(small_run, tmp_path):
    def fit(name):
        policies, module = [callbacks.Gossip(k=1), callbacks.SampleWeighted()], {"network": HuggingFace(TINY)}
        run = small_run(2, root=tmp_path / name, policies=policies, module=module)
        run.data = FromDataset(Sentences(), num_clients=3, test_fraction=0.2)
        return run.fit()

    first, second = fit("one"), fit("two")
    assert torch.equal(first.rows, second.rows)
    assert first.module.engine.name == "stacked"


def test_adapters_of_a_bert_are_all_that_clients_have(small_run, tmp_path):
    policies = [callbacks.Gossip(k=1), callbacks.SampleWeighted()]
    run = small_run(1, policies=policies, module={"network": LoRA(HuggingFace(TINY), rank=2, targets=["*.query"])})
    run.data = FromDataset(Sentences(), num_clients=3, test_fraction=0.2)
    run.fit()
    assert run.rows.shape == (3, 2 * 2 * WIDTH)  # A and B of one layer


def test_a_shipped_network_refuses_inputs_of_parts(small_run, tmp_path):
    run = small_run(1, module={"network": MLP()})
    run.data = FromDataset(Sentences(), num_clients=3)
    with pytest.raises(UserError, match=r"MLP takes one tensor, and the data has input_ids int \[6\], attention_mask"):
        run.fit()


@pytest.mark.parametrize(
    ("config", "options", "sentence"),
    [
        ({"hidden_size": 4}, {}, "the config has no model_type"),
        ({"model_type": "brt"}, {}, r"the config of brt makes no AutoModelForSequenceClassification \("),
        (TINY, {"task": "SequenceClasification"}, "did you mean 'SequenceClassification'"),
        ("bert-base-uncased", {}, "bert-base-uncased is not a folder with a config.json; nothing is downloaded"),
        ({**TINY, "max_position_embeddings": 4}, {}, "6 tokens, but the network has 4 positions"),
        ({**TINY, "hidden_size": 9}, {}, r"makes no AutoModelForSequenceClassification \("),
    ],
)
def test_what_makes_no_network_is_refused(config, options, sentence):
    with pytest.raises(UserError, match=sentence):
        draw(config, **options)


DECODER = {"model_type": "gpt2", "vocab_size": WORDS, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": PLACES}
ENCODER_DECODER = {"model_type": "t5", "vocab_size": WORDS, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1}


@pytest.mark.parametrize(
    ("config", "remedy", "mended"),
    [
        (DECODER, "give pad_token_id in the network's config", {"pad_token_id": 0}),
        ({**TINY, "vocab_size": 9}, r"too few rows for the data's numbers \(vocab_size", {"vocab_size": WORDS}),
        (ENCODER_DECODER, "give decoder_start_token_id in the network's config", None),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_a_remedy(small_run, config, remedy, mended):
    def fit(config):
        policies = [callbacks.Gossip(k=1), callbacks.SampleWeighted()]
        run = small_run(1, policies=policies, module={"network": HuggingFace(config)})
        run.data = FromDataset(Sentences(), num_clients=3, test_fraction=0.2)
        return run.fit()

    with pytest.raises(UserError, match=remedy):
        fit(config)
    if mended is not None:
        assert fit({**config, **mended}).rows.isfinite().all()
