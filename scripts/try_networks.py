"""Train twelve public architectures for a few rounds, as a new user would: engine, reason, time, what is learned.

    python scripts/try_networks.py                    # all; prints a table, and the runs to stderr
    python scripts/try_networks.py resnet18 bert      # some of them
    python scripts/try_networks.py resnet18 --personal norms         # FedBN
    python scripts/try_networks.py --engine loop --rounds 4

Weights are random and the data are made here: images whose class is the place of a bright patch, and sentences whose
class is the word that they have most. Needs timm and transformers for the networks that come from there.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

CLIENTS, SAMPLES, BATCH, CLASSES, WORDS, LENGTH, END = 4, 24, 8, 4, 50, 16, 1


class Images(Dataset[Any]):
    """Noise with a bright quarter, whose place is the class.

    Args:
        size: height and width.
    """

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, CLASSES, (CLIENTS * SAMPLES,), generator=generator)
        self.images = torch.randn(len(self.labels), 3, size, size, generator=generator)
        half = size // 2
        for image, label in zip(self.images, self.labels.tolist(), strict=True):
            top, left = divmod(label, 2)
            image[:, top * half : (top + 1) * half, left * half : (left + 1) * half] += 1.0

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image [3, size, size] and its class."""
        return self.images[index], int(self.labels[index])


class Sentences(Dataset[Any]):
    """Numbers of words with a mask of attention, and a word for the end; the word of the class comes often.

    Args:
        mask: items are dicts with a mask; if not, tensors of numbers.
    """

    def __init__(self, mask: bool = True) -> None:
        generator = torch.Generator().manual_seed(0)
        count = CLIENTS * SAMPLES
        self.mask, self.labels = mask, torch.randint(0, CLASSES, (count,), generator=generator)
        self.words = torch.randint(10, WORDS, (count, LENGTH), generator=generator)
        often = torch.rand(count, LENGTH, generator=generator) < 0.4
        self.words = torch.where(often, self.labels[:, None] + 2, self.words)
        self.lengths = torch.randint(LENGTH // 2, LENGTH, (count,), generator=generator)

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return a sentence and its class; a shorter one is padded with 0."""
        attended = torch.arange(LENGTH) < self.lengths[index]
        words = self.words[index] * attended
        words[self.lengths[index] - 1] = END
        label = int(self.labels[index])
        return ({"input_ids": words, "attention_mask": attended.long()}, label) if self.mask else (words, label)


def torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what makes a network of torchvision."""

    def make() -> nn.Module:
        import torchvision.models as networks

        return getattr(networks, name)(num_classes=CLASSES, **options)

    return make


def small_vit() -> nn.Module:
    """Make torchvision's vision transformer with 4 layers of 64."""
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(32, 8, 4, 4, 64, 128, num_classes=CLASSES)


def timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return what makes a network of timm."""

    def make() -> nn.Module:
        import timm as networks  # type: ignore[import-not-found]

        return networks.create_model(name, num_classes=CLASSES, **options)

    return make


def hugging_face(**config: Any) -> Callable[[], nn.Module]:
    """Return what makes a network of transformers."""

    def make() -> nn.Module:
        from dfl_lightning.models import HuggingFace

        return HuggingFace({"vocab_size": WORDS, **config})

    return make


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Dataset[Any]]]] = {
    "resnet18": (torchvision("resnet18"), lambda: Images(32)),
    "mobilenet_v3_small": (torchvision("mobilenet_v3_small"), lambda: Images(32)),
    "efficientnet_b0": (torchvision("efficientnet_b0"), lambda: Images(32)),
    "convnext_tiny": (torchvision("convnext_tiny"), lambda: Images(32)),
    "vision_transformer": (small_vit, lambda: Images(32)),
    "vit_tiny": (timm("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=4), lambda: Images(32)),
    "resnet26": (timm("resnet26"), lambda: Images(32)),
    "bert": (hugging_face(model_type="bert", **SMALL), Sentences),
    "distilbert": (hugging_face(model_type="distilbert", dim=64, n_layers=2, n_heads=4, hidden_dim=128), Sentences),
    "gpt2": (hugging_face(model_type="gpt2", n_embd=64, n_layer=2, n_head=4, pad_token_id=0), Sentences),
    "t5": (
        hugging_face(
            model_type="t5",
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_heads=4,
            pad_token_id=0,
            eos_token_id=END,
            decoder_start_token_id=0,
        ),
        Sentences,
    ),
    "albert": (hugging_face(model_type="albert", embedding_size=32, **SMALL), Sentences),
}


def fit(name: str, words: argparse.Namespace) -> dict[str, Any]:
    """Train the clients of a network; return what the table says about it."""
    from dfl_lightning import DFLModule, DFLTrainer
    from dfl_lightning import callbacks as cb
    from dfl_lightning.data import FromDataset

    torch.manual_seed(0)
    make, data = NETWORKS[name]
    adam = functools.partial(torch.optim.Adam, lr=words.lr)
    module = DFLModule(make(), local_epochs=1, batch_size=BATCH, optimizer=adam, personal=words.personal)
    with tempfile.TemporaryDirectory() as folder:
        trainer = DFLTrainer(
            max_rounds=words.rounds,
            engine=words.engine,
            topology="ring",
            callbacks=[cb.Gossip(k="all"), cb.Metropolis()],
            default_root_dir=folder,
        )
        trainer.fit(module, datamodule=FromDataset(data(), num_clients=CLIENTS, test_fraction=0.25))
        summary = json.loads((Path(trainer.run.path or folder) / "summary.json").read_text())
        losses = trainer.run.metrics["train_loss"]
    batches = words.rounds * CLIENTS * math.ceil(SAMPLES * 0.75 / BATCH)
    return {
        "network": name,
        "parameters": summary["parameters_per_client"],
        "engine": summary["engine"]["name"],
        "ms_a_batch": 1000 * summary["seconds"]["train"] / batches,
        "first_loss": float(losses[0]),
        "last_loss": float(losses[-1]),
        "reason": summary["engine"]["reason"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Train the networks that were asked for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--engine", choices=["auto", "stacked", "loop"], default="auto", help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="default %(default)s")
    parser.add_argument("--lr", type=float, default=1e-3, metavar="X", help="learning rate of Adam, %(default)s")
    parser.add_argument("--personal", choices=["norms"], help="norms: those of each client's own")
    words = parser.parse_args(argv)
    unknown = [name for name in words.names if name not in NETWORKS]
    if unknown:
        parser.error(f"there is no '{unknown[0]}'; choose among {', '.join(NETWORKS)}")
    print("| network | parameters | engine | ms a batch | training loss | reason |\n|---|---|---|---|---|---|")
    for name in words.names or NETWORKS:
        with contextlib.redirect_stdout(sys.stderr):
            found = fit(name, words)
        print(
            "| {network} | {parameters:,} | {engine} | {ms_a_batch:.0f} | {first_loss:.2f} to {last_loss:.2f} | "
            "{reason} |".format(**found),
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
