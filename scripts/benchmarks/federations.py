"""The settings that are measured, and the clients, rows and data that they need."""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.references import References
from dfl_lightning.data import ClientData
from dfl_lightning.data.splits.index_lists import IndexLists
from dfl_lightning.engines.calling.finding import find_calling
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.engine import Engine
from dfl_lightning.engines.jobs import Trained, Training
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork
from dfl_lightning.engines.trials.constant_buffers import constant_buffers
from dfl_lightning.models import (
    CNN4,
    MLP,
    MNISTCNN,
    CharLSTM,
    CharTransformer,
    HuggingFace,
    LeNet,
    LoRA,
    Network,
    ResNet18,
)
from dfl_lightning.objectives import Duration, Plain
from dfl_lightning.tasks import Classification, NextToken, Task

ENGINES: dict[str, type[Engine]] = {"stacked": StackedEngine, "loop": LoopEngine}
OPTIMIZER = functools.partial(torch.optim.SGD, momentum=0.9, weight_decay=5e-4)
LEARNING_RATE = 0.01
CLASSES = 10
WORDS = 200


class VisionTransformer(Network):
    """A vision transformer of torchvision with patches of 8x8, 2 layers and a width of 64."""

    def __init__(self, *, input_shape: tuple[int, ...] | None = None, num_classes: int | None = None) -> None:
        super().__init__()
        self.build_if_known(input_shape, num_classes)

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Build all but the last layer as features, and a linear layer as head."""
        from torchvision.models.vision_transformer import VisionTransformer

        body = VisionTransformer(input_shape[1], 8, 2, 4, 64, 128, num_classes=num_classes)
        body.heads = nn.Identity()
        return body, nn.Linear(64, num_classes)


CharGRU = functools.partial(CharLSTM, cell="GRU")
LargeLSTM = functools.partial(CharLSTM, units=256)


def adapted_transformer() -> Network:
    """Make the network of `lora_gossip.yaml`: a transformer for characters, with adapters of rank 4."""
    targets = ["*.query", "*.value", "*.wide", "*.narrow"]
    return LoRA(CharTransformer(), rank=4, alpha=8, targets=targets, trained=["head.*"])


def adapted_bert(width: int) -> Network:
    """Make a BERT of 2 layers for classes of sentences, with its default dropout and adapters of rank 4.

    Args:
        width: of its layers.
    """
    config = {
        "model_type": "bert",
        "vocab_size": WORDS,
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 64,
    }
    return LoRA(HuggingFace(config), rank=4, targets=["*.query", "*.value"], trained=["*classifier.*"])


@dataclass(frozen=True)
class Setting:
    """A network and the clients that train it.

    Args:
        name: in tables, and after `--networks`.
        network: a fresh one, not built yet.
        shape: of an input.
        clients: m.
        samples: of each client.
        batch_size: B.
        stride: candidates that take long train every so-many-th client; time per sample is what counts.
        repeats: repetitions at most.
        validation: samples of each client that others' models are tried on.
        seconds: what a repetition takes on two ordinary cores, more or less.
        tokens: inputs are lines of so many different tokens; 0: images.
        classified: the class of a line is predicted, not its next tokens.
        needs: a library that is not installed with this one.
    """

    name: str
    network: Callable[[], Network]
    shape: tuple[int, ...]
    clients: int
    samples: int
    batch_size: int
    stride: int
    repeats: int
    validation: int
    seconds: float
    tokens: int = 0
    classified: bool = False
    needs: str = ""

    @property
    def outputs(self) -> int:
        """Return the number of outputs."""
        return CLASSES if self.classified or not self.tokens else self.tokens

    @property
    def is_installed(self) -> bool:
        """True if the library that it needs is installed."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None

    @property
    def task(self) -> Task:
        """Return the task of the network's outputs."""
        return NextToken() if self.tokens and not self.classified else Classification()

    def resized(self, clients: int | None, samples: int | None, batch_size: int | None = None) -> Setting:
        """Replace the numbers of clients and samples and the batch size, if they are given."""
        batch_size = batch_size or self.batch_size
        changed = replace(self, clients=clients or self.clients, samples=samples or self.samples, batch_size=batch_size)
        share = changed.clients * changed.samples / (self.clients * self.samples)
        return replace(changed, stride=min(self.stride, changed.clients), seconds=self.seconds * share)

    @property
    def some_clients(self) -> Tensor:
        """Every `stride`-th client, int64."""
        return torch.arange(0, self.clients, self.stride)

    def describe(self) -> str:
        """Describe the setting, for example `100 x 500, B 16`."""
        return f"{self.clients} x {self.samples}, B {self.batch_size}"


SETTINGS = (
    Setting("LeNet", LeNet, (3, 32, 32), 100, 500, 16, 4, 5, 32, 6.5),
    Setting("MLP", MLP, (1, 28, 28), 100, 600, 32, 4, 5, 32, 1.5),
    Setting("MNISTCNN", MNISTCNN, (1, 28, 28), 100, 300, 5, 4, 5, 10, 5.5),
    Setting("CNN4", CNN4, (3, 32, 32), 8, 512, 128, 2, 3, 32, 7.0),
    Setting("ResNet18", ResNet18, (3, 32, 32), 2, 128, 128, 1, 3, 32, 18.0),
    Setting("CharTransformer", CharTransformer, (32,), 100, 64, 16, 4, 5, 16, 12.0, tokens=96),
    Setting("CharLSTM", CharLSTM, (32,), 100, 32, 8, 4, 5, 16, 12.0, tokens=96),
    Setting("CharGRU", CharGRU, (32,), 100, 32, 8, 4, 5, 16, 12.0, tokens=96),
    Setting("CharLSTM256", LargeLSTM, (32,), 20, 32, 8, 4, 3, 16, 12.0, tokens=96),
    Setting("VisionTransformer", VisionTransformer, (3, 32, 32), 20, 32, 8, 4, 3, 16, 12.0),
    Setting("CharTransformerLoRA", adapted_transformer, (32,), 20, 64, 16, 4, 5, 16, 4.0, tokens=96),
    *(
        Setting(
            *(f"BERTLoRA{width}", functools.partial(adapted_bert, width), (32,), 20, 32, 8, 4, 5, 16, 4.0),
            tokens=WORDS,
            classified=True,
            needs="transformers",
        )
        for width in (32, 64, 128)
    ),
)
"""The papers' networks and sizes: DPFL, PANM, FL-FDMS, and AFIND+'s two; the networks and lines of `text.yaml` and
`text_lstm.yaml`, also with GRU layers and with 256 units; a small vision transformer of torchvision; adapters of a
transformer and of BERTs of three widths."""


def log_normal_sizes(clients: int, samples: int, smallest: int = 4) -> list[int]:
    """Draw sizes of clients as different as in practice: log-normal with sigma 1, `samples` on average.

    Examples:
        >>> sizes = log_normal_sizes(100, 500)
        >>> min(sizes), max(sizes)
        (28, 2148)
    """
    drawn = np.random.default_rng(0).lognormal(0, 1.0, clients)
    return [max(smallest, int(size)) for size in drawn / drawn.sum() * clients * samples * 0.98]


def random_data(
    shape: Sequence[int],
    sizes: Sequence[int],
    validation: int = 0,
    device: str = "cpu",
    tokens: int = 0,
    classified: bool = False,
) -> ClientData:
    """Draw noise instead of images, uint8 as in data sets, and random classes.

    Args:
        shape: of an image, or of a line.
        sizes: training samples of each client.
        validation: validation samples of each client.
        device: where it lies.
        tokens: see `Setting`.
        classified: see `Setting`.
    """
    predicted = 0 if classified else tokens
    generator = torch.Generator().manual_seed(0)
    clients = len(sizes)
    total = sum(sizes) + clients * validation
    images = torch.randint(0, tokens or 256, (total, *shape), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, predicted or CLASSES, (total, *(shape if predicted else ())), generator=generator)
    parts = torch.randperm(total, generator=generator).split([*sizes, *[validation] * clients])
    data = ClientData(
        images=images,
        labels=labels,
        train=IndexLists(parts[:clients]),
        val=IndexLists(parts[clients:]),
        test=IndexLists([torch.empty(0, dtype=torch.long) for _ in sizes]),
        global_test=None,
        clusters=None,
        num_classes=predicted or CLASSES,
        scale=torch.tensor(1.0 if tokens else 1 / 128, dtype=torch.float64),
        shift=torch.tensor(0.0 if tokens else -1.0, dtype=torch.float64),
    )
    return data.to(device)


def built(setting: Setting) -> Network:
    """Build the setting's network, always with the same numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return setting.network().build(setting.shape, setting.outputs)


@dataclass
class Federation:
    """Clients' rows with the engine that trains them.

    Args:
        setting: what it was made from.
        bank: the rows.
        engine: what trains and scores them.
        data: the clients' data.
        network: the plain network.
    """

    setting: Setting
    bank: Bank
    engine: Engine
    data: ClientData
    network: Network

    def train(self, owners: Tensor) -> Trained:
        """Train the owners for one epoch, from the rows `models`, which do not change, into `trained`."""
        objective = Plain()
        phases = objective.phases(self.bank.layout, Duration(1), 0)
        return self.engine.train(
            References.rows("models", owners), Training("local", 0, phases, ({"lr": LEARNING_RATE},))
        )


def federation(setting: Setting, engine: str, data: ClientData, **options: Any) -> Federation:
    """Make a federation of clients with slightly different models.

    Args:
        setting: the network and batch size.
        engine: `stacked` or `loop`.
        data: of as many clients as there will be.
        **options: further fields of `EngineConfig`.
    """
    network = built(setting)
    calling, _ = find_calling(network, data.batch(torch.tensor([0, 1]))[0])
    layout = Layout(network, constant=constant_buffers(network, data, torch.float32, 0, calling))
    device = data.images.device
    noise = torch.randn(data.num_clients, layout.width, generator=torch.Generator().manual_seed(1)).mul_(1e-3)
    models = noise.add_(layout.flatten(network)).to(device)
    bank = Bank(layout, models, data.num_clients)
    config = EngineConfig(
        network=network,
        optimizer=functools.partial(OPTIMIZER, lr=LEARNING_RATE),
        loss=setting.task.mean_loss(),
        task=setting.task,
        metrics={},
        objective=Plain(),
        batch_size=setting.batch_size,
        seed=0,
        calling=calling,
        **options,
    )
    made = ENGINES[engine](config, layout, data)
    made.attach(bank)
    return Federation(setting, bank, made, data, network)


def plain_modules(federation: Federation, owners: Tensor) -> list[nn.Module]:
    """Make an ordinary module for each owner, with its row's numbers, on the data's device."""
    made: list[nn.Module] = []
    for owner in owners.tolist():
        module = built(federation.setting)
        module.load_state_dict(federation.bank.layout.state_dict(federation.bank.rows("models")[owner].cpu()))
        made.append(module.to(federation.data.images.device))
    return made


@dataclass
class Count:
    """Numbers of samples and steps in training.

    Args:
        samples: with padding.
        steps: of single clients: a pass of k clients side by side is k of them.
    """

    samples: int = 0
    steps: int = 0


@contextmanager
def counted(kind: type[nn.Module]) -> Iterator[Count]:
    """Count the training passes of stacked networks, and of plain ones of a type, while the context lasts.

    Counted where samples go into a network, whatever asked for it: padding is seen, and no formula is trusted.
    """
    count, lock = Count(), threading.Lock()

    def add(samples: int, steps: int) -> None:
        with lock:
            count.samples += samples
            count.steps += steps

    def counting(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def stacked(self: StackedNetwork, now: Any, inputs: Tensor) -> Tensor:
            if now.training:
                add(inputs.shape[0] * inputs.shape[1], inputs.shape[0])
            return call(self, now, inputs)

        return stacked

    def plain(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if isinstance(module, kind) and module.training:
            add(len(args[0]), 1)

    forms = [form for form in (StackedNetwork, *StackedNetwork.__subclasses__()) if "__call__" in vars(form)]
    with ExitStack() as restored:
        restored.callback(nn.modules.module.register_module_forward_pre_hook(plain).remove)
        for form in forms:
            call: Callable[..., Tensor] = vars(form)["__call__"]
            restored.callback(setattr, form, "__call__", call)
            setattr(form, "__call__", counting(call))  # noqa: B010  mypy would read the signature of an assignment.
        yield count
