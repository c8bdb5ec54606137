"""Trial of a network and a loss on a few of the run's batches: do they work, and do samples of a batch interact?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from dfl_lightning.data import ClientData
from dfl_lightning.engines.calling.adapted import prepare
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.dropout_layers import mask_key
from dfl_lightning.engines.engine import EVALUATION_BATCH
from dfl_lightning.engines.placing import placed
from dfl_lightning.engines.trials.coupling import Run, close, place_matters, same, samples_interact
from dfl_lightning.engines.trials.loss_trial import on_copies, try_loss
from dfl_lightning.engines.trials.norm_strides import NormRisk, risk_of
from dfl_lightning.utils.code.frozen import keep_frozen_norms, stand_ins
from dfl_lightning.utils.code.module_copies import copy_of, refuse_gradient_hooks
from dfl_lightning.utils.errors import UserError, reason, reported_as
from dfl_lightning.utils.randomness.random_streams import stream_seed

TRAINING_OPERATIONS, EVALUATION_OPERATIONS = 4e10, 5e8
"""Most operations of a forward pass in the test for interacting samples: about a core's second in training, far less
in evaluation."""

INPUTS = 2e7
"""Largest size of the inputs of such a pass, in numbers."""

FEWEST = 9
"""Least number of samples of such a pass, if a batch has so many."""


@dataclass(frozen=True)
class Trial:
    """Results of the trial of a network and a loss.

    Args:
        config: the engine's config, with a loss on the run's device that does not change scores and labels.
        couples_training: True if samples of a batch interact in training, for example in batch norms.
        couples_evaluation: True if samples interact in an evaluation, or if it depends on the division into batches.
        operations: floating point operations of one sample's forward pass.
        norms: training batches for which the gradients of torch's norms need a correction.
    """

    config: EngineConfig
    couples_training: bool
    couples_evaluation: bool
    operations: int
    norms: NormRisk


def try_plain(config: EngineConfig, data: ClientData) -> Trial:
    """Try the plain network and the loss on real samples, in the run's precision and on its device.

    Args:
        config: the run's network, loss and precision.
        data: the clients' data.

    Raises:
        UserError: the network or the loss fails, or clients cannot be trained independently, for example because the
            network keeps something from one pass to the next.
    """
    refuse_gradient_hooks(config.network)
    config = replace(config, loss=placed(config.loss, data.images.device, config.dtype))
    plain = _Plain(config, data)
    few, labels = examples(data, 3, config.dtype)
    writes = plain.try_two_steps(few, labels)
    plain.refuse_single_samples()
    plain.refuse_memory(few)
    operations = operations_of(plain.network, partial(plain, few, training=False)) // len(few)
    config = replace(config, features=plain.feature_layers(few))
    return Trial(
        replace(config, loss=on_copies(config.loss)) if writes else config,
        plain.couples_training(operations),
        plain.couples_evaluation(operations),
        operations,
        plain.norms,
    )


def operations_of(network: nn.Module, run: Callable[[], object]) -> int:
    """Count the floating point operations of a pass.

    Args:
        network: the network.
        run: function that does the pass.
    """
    recurrent = any(isinstance(layer, nn.RNNBase) for layer in network.modules())
    with _step_by_step() if recurrent else nullcontext(), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


@contextmanager
def _step_by_step() -> Iterator[None]:
    """Switch off libraries that do all steps of a recurrent layer at once, since the counter does not know these."""
    libraries = (torch.backends.mkldnn, torch.backends.cudnn)
    before = [library.enabled for library in libraries]
    try:
        for library in libraries:
            library.enabled = False  # type: ignore[attr-defined]
        yield
    finally:
        for library, enabled in zip(libraries, before, strict=True):
            library.enabled = enabled  # type: ignore[attr-defined]


def examples(data: ClientData, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Choose finite training inputs [count, ...] with their labels, all different if the first of each client are.

    Equal inputs would not show that the samples of a batch interact.

    Args:
        data: the clients' data.
        count: number of inputs.
        dtype: type of the inputs.
    """
    each, most = max(3, -(-2 * count // len(data.train))), max(100, 2 * count)
    some = list(islice((samples[:each] for samples in data.train if len(samples)), most))
    indices = torch.cat(some)[:most]
    inputs, labels = data.batch(indices, dtype=dtype)
    inputs = inputs.where(inputs.isfinite(), torch.zeros((), dtype=dtype, device=inputs.device))
    first: dict[bytes, int] = {}
    for index, sample in enumerate(inputs.cpu().reshape(len(inputs), -1)):
        first.setdefault(sample.numpy().tobytes(), index)
    different = list(first.values())[:count]
    chosen = torch.tensor((different * -(-count // len(different)))[:count]).to(inputs.device)
    return inputs.index_select(0, chosen), labels.index_select(0, chosen)


class _Plain:
    """Copy of the network for trials; each pass begins with the same buffers and draws the same numbers."""

    def __init__(self, config: EngineConfig, data: ClientData, device: torch.device | None = None) -> None:
        self._config, self._data = config, data
        self._name = f"model.network {type(config.network).__name__}"
        instead = stand_ins(config.network, config.base)
        self.network = copy_of(config.network, instead).to(device or data.images.device, config.dtype)
        keep_frozen_norms(self.network)
        self._masks = prepare(self.network, config.calling)
        self._layers = dict(self.network.named_modules())
        self._buffers = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
        self._draws = torch.get_rng_state()  # A user's own layer may draw from the global generator.
        self.norms = NormRisk.NONE  # `try_two_steps` determines it.

    def __call__(self, inputs: Tensor, training: bool) -> list[Tensor]:
        """Run a forward pass; return its outputs, and the buffers after it."""
        self._put_back()
        self.network.train(training)
        mode = "training" if training else "evaluation"
        try:
            with self._reported(inputs, f" in {mode}"), torch.set_grad_enabled(training):
                outputs = self.network(inputs.clone())  # Layers may write into their inputs.
        finally:
            torch.set_rng_state(self._draws)
        return [outputs.detach(), *(buffer.detach().clone() for _, buffer in self.network.named_buffers())]

    def _reported(self, inputs: Tensor, where: str = "") -> AbstractContextManager[None]:
        """Report any error of the user's network in a pass as one sentence."""
        fails = f"{self._name} fails on a batch of {len(inputs)} samples{where}"
        return reported_as(lambda error: UserError(f"{fails} ({reason(error)})"))

    def feature_layers(self, inputs: Tensor) -> dict[str, str]:
        """Find the layers whose inputs are needed, by their names; `head` is the last linear layer of a pass.

        Raises:
            UserError: there is no such layer, or a pass does not call it.
        """
        objective, prediction = self._config.objective, self._config.prediction
        wanted = {name: f"prediction {type(prediction).__name__}" for name in prediction.features} if prediction else {}
        wanted |= self._config.watched
        wanted |= {name: f"objective {type(objective).__name__}" for name in objective.features}
        if not wanted:
            return {}
        called: list[str] = []
        hooks = [
            layer.register_forward_pre_hook(lambda *_, name=name: called.append(name))
            for name, layer in self._layers.items()
            if name
        ]
        try:
            self(inputs, training=True)
        finally:
            for hook in hooks:
                hook.remove()
        layers = {name: name for name in called}
        linear = [name for name in called if isinstance(self._layers[name], nn.Linear)]
        if "head" not in layers and linear:
            layers["head"] = linear[-1]
        for name, who in wanted.items():
            if name not in layers:
                names = ", ".join(dict.fromkeys(called)) or "none"
                raise UserError(
                    f"{who} wants the input of the layer '{name}', which {self._name} does not have; "
                    f"its layers are {names}"
                )
        return {name: layers[name] for name in wanted}

    def _put_back(self) -> None:
        for name, value in self._buffers.items():
            layer, _, leaf = name.rpartition(".")
            setattr(self._layers[layer], leaf, value.clone())  # A pass may have assigned another tensor.
        self._masks.begin(mask_key(stream_seed(self._config.seed, "try out", 0)))

    # --- refusals -----------------------------------------------------------------------------------------------------
    def refuse_single_samples(self) -> None:
        """Refuse a network or loss that fails on a batch of one sample, as BatchNorm does, if a client has such."""
        data, config = self._data, self._config
        sizes = data.sizes("train")
        for size in (config.batch_size, *config.later_batch_sizes):
            single = torch.nonzero((sizes % size == 1) | (size == 1)).flatten()
            if len(single):
                break
        else:
            return
        lonely = single[sizes[single] == 1]  # For these clients no other batch size helps.
        owner = int((lonely if len(lonely) else single)[0])
        x, y = data.batch(data.train[owner][:1], dtype=self._config.dtype)
        try:
            scores = self(x, training=True)[0]
        except UserError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            samples = len(data.train[owner])
            remedy = "give it more samples or use another normalisation" if len(lonely) else "choose another batch size"
            grown = "" if size == config.batch_size else ", to which model.batch_growth leads,"
            raise UserError(
                f"client {owner} has {samples} training sample{'s' * (samples > 1)}, so that with "
                f"model.batch_size={size}{grown} a batch holds a single one, which the network's BatchNorm cannot be "
                f"trained on; {remedy}"
            ) from error
        try_loss(self._config.loss, scores, y)

    def try_two_steps(self, inputs: Tensor, labels: Tensor) -> bool:
        """Try two training steps without an optimizer, as in the loop engine, and the loss on every class.

        Returns:
            True if the loss writes into its scores or labels.
        """
        self._put_back()
        self.network.train()
        parameters = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        shapes = {name: buffer.shape for name, buffer in self._buffers.items()}
        writes = False
        for _ in range(2):  # The second pass fails if the first one leaves something behind.
            try:
                with self._reported(inputs), torch.enable_grad(), self._config.arithmetic(inputs.device):
                    scores = self.network(inputs.clone())
            finally:
                torch.set_rng_state(self._draws)
            if not scores.requires_grad:
                raise UserError(
                    f"{self._name} returns scores without a gradient; compute them from its parameters by "
                    "differentiable operations of torch, without no_grad() or detach()"
                )
            with self._config.arithmetic(inputs.device):
                writes |= try_loss(self._config.loss, scores, labels)
            with reported_as(lambda error: UserError(f"{self._name} has no gradient ({reason(error)})"), RuntimeError):
                ones = torch.ones_like(scores)
                torch.autograd.grad(scores, list(parameters.values()), ones, allow_unused=True)
            now = dict(self.network.named_buffers())
            for name, shape in shapes.items():
                if name not in now or now[name].shape != shape:
                    raise UserError(
                        f"{self._name}: its forward pass replaces the buffer '{name}' by something of another shape; "
                        "buffers are part of a model and keep their shape"
                    )
                if now[name].requires_grad:
                    raise UserError(
                        f"{self._name}: its forward pass assigns to the buffer '{name}' a tensor with a gradient, "
                        "which would keep all former batches; assign its .detach()"
                    )
            for name, parameter in self.network.named_parameters():
                if parameter is not parameters.get(name, parameter):
                    raise UserError(
                        f"{self._name}: its forward pass replaces the parameter '{name}', which an optimizer would "
                        "not see; write into it (.data.copy_), or make it a buffer"
                    )
        self.norms = risk_of(self.network, scores, partial(self, inputs, training=True))
        if not self._config.task.has_classes:
            return writes
        classes = torch.arange(self._data.num_classes).to(labels.device)
        with self._config.arithmetic(inputs.device):
            return writes | try_loss(self._config.loss, scores[:1].expand(len(classes), *scores.shape[1:]), classes)

    def refuse_memory(self, inputs: Tensor) -> None:
        """Refuse a network that keeps something from one pass to the next, since clients share the network."""
        first = self(inputs, training=True)
        others = torch.cat([inputs[1:], inputs[1:2]])  # Not merely another order of the same samples.
        self(others, training=True)
        self(others, training=False)
        alike = same if inputs.device.type == "cpu" else close  # A GPU's atomic additions have no fixed order.
        if not all(map(alike, self(inputs, training=True), first)):
            raise UserError(
                f"{self._name} gives other results for the same inputs, parameters and buffers when it is called "
                "again: it keeps something from one pass to the next, or draws from a generator of its own, so that "
                "clients would depend on each other; keep it in a buffer (register_buffer), draw in nn.Dropout layers"
            )

    # --- samples that interact ----------------------------------------------------------------------------------------
    def couples_training(self, operations: int) -> bool:
        """Return True if the samples of a training batch interact."""
        if any(isinstance(layer, _BatchNorm) and layer.training for layer in self.network.train().modules()):
            return True
        size = min(self._config.batch_size, int(self._data.sizes("train").max()))
        inputs = self._batch(size, TRAINING_OPERATIONS // max(1, operations))
        return len(inputs) > 1 and samples_interact(partial(self._run_on, training=True), inputs)

    def couples_evaluation(self, operations: int) -> bool:
        """Return True if outputs of an evaluation depend on other samples, their order, or earlier batches."""
        largest = max(int(self._data.sizes(split).max()) for split in ("train", "val", "test"))
        size = min(EVALUATION_BATCH, max(3, largest))
        inputs = self._batch(size, EVALUATION_OPERATIONS // max(1, operations))
        run = partial(self, training=False)
        writes = not all(map(same, run(inputs[:3])[1:], self._buffers.values()))
        return writes or samples_interact(partial(self._run_on, training=False), inputs) or place_matters(run, inputs)

    def _run_on(self, device: torch.device, training: bool) -> Run:
        on = self if device == self._data.images.device else _Plain(self._config, self._data, device)
        return partial(on, training=training)

    def _batch(self, size: int, affordable: float) -> Tensor:
        affordable = min(affordable, INPUTS // self._data.images[0].numel())
        return examples(self._data, min(size, max(FEWEST, int(affordable))), self._config.dtype)[0]
