"""Networks of the library transformers, from a config or from a folder on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, cast

from torch import Tensor, nn

from dfl_lightning.models.network import Network
from dfl_lightning.utils.errors import UserError, nearest, reason, reported_as

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


class HuggingFace(Network):
    """A network of transformers (extra `hf`), with as many outputs as the data has classes; never downloaded.

    The data's inputs are those of the network's `forward`: a dict of tensors such as `input_ids` and `attention_mask`,
    or one tensor, which is the network's main input. The outputs are its `logits`.

    Args:
        config: options of a config with its `model_type`, for example `{model_type: bert, hidden_size: 64}`: the first
            parameters are drawn from the run's seed. Or a folder that `save_pretrained` has written, with its weights;
            if it has none, they are drawn likewise.
        task: the class of transformers without its first words `AutoModelFor`: `SequenceClassification`, `CausalLM`, …
        input_shape: shape of one input, or number of all entries of a sample's tensors; by default that of the data.
        num_classes: number of outputs; by default that of the data. The language models keep their vocabulary.

    Raises:
        UserError: transformers is not installed, the config or folder has no such network, or the data does not fit.
    """

    def __init__(
        self,
        config: str | dict[str, Any],
        task: str = "SequenceClassification",
        input_shape: tuple[int, ...] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        self.config, self.task = config, task
        self.build_if_known(input_shape, num_classes)

    def build(self, input_shape: Sequence[int], num_classes: int) -> Self:
        """Build the network, or load it, if it does not exist yet; see `Network.build`.

        Args:
            input_shape: shape of one input without the batch; only the length of one sequence of tokens is checked.
            num_classes: number of outputs, C.

        Returns:
            The network itself.

        Raises:
            UserError: see the class.
        """
        shape = tuple(int(size) for size in input_shape)
        if self.num_classes is not None:
            if num_classes != self.num_classes:
                raise UserError(
                    f"HuggingFace: built for {self.num_classes} classes, but the data has {num_classes}; leave "
                    "num_classes out"
                )
            return self
        self.network = _made(self.config, self.task, num_classes).float()
        longest = getattr(self.network.config, "max_position_embeddings", None)
        if self._reads_tokens and len(shape) == 1 and longest is not None and shape[0] > longest:
            raise UserError(
                f"HuggingFace: {shape[0]} tokens, but the network has {longest} positions (max_position_embeddings); "
                "cut the sequences, or make the config's number larger"
            )
        self.input_shape, self.num_classes = shape, num_classes
        return self

    @property
    def takes_parts(self) -> bool:
        """True, since `forward` takes what the network of transformers takes."""
        return True

    @property
    def _reads_tokens(self) -> bool:
        return getattr(self.network, "main_input_name", "input_ids") in ("input_ids", "decoder_input_ids")

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Compute logits of a batch of the network's inputs.

        Args:
            inputs: arguments of the network's `forward`, [B, ...] each; numbers of tokens may be floating-point.
            named: further arguments by name.
        """
        if self.num_classes is None:
            raise UserError("HuggingFace: not built yet; call build(input_shape, num_classes) or give both to it.")
        if inputs and self._reads_tokens:
            inputs = (inputs[0].long(), *inputs[1:])
        return cast("Tensor", self.network(*inputs, **named).logits)


def _made(config: str | dict[str, Any], task: str, num_classes: int) -> nn.Module:
    """Make a network of transformers for a number of classes."""
    try:
        import transformers  # imported here, as it takes seconds and few runs need it
    except ImportError as error:
        raise UserError(
            "HuggingFace needs the library transformers, which is not installed; pip install 'dfl-lightning[hf]'"
        ) from error
    kinds = [name.removeprefix("AutoModelFor") for name in dir(transformers) if name.startswith("AutoModelFor")]
    if task not in kinds:
        raise UserError(
            f"HuggingFace: transformers has no AutoModelFor{task}{nearest(task, kinds)}; task is the rest of a name"
        )
    makes: Any = getattr(transformers, f"AutoModelFor{task}")
    outputs = {} if task.endswith("LM") else {"num_labels": num_classes}
    folder = None if isinstance(config, dict) else Path(config)
    if folder is not None and not (folder / "config.json").is_file():
        raise UserError(
            f"HuggingFace: config={config} is not a folder with a config.json; nothing is downloaded, so save the "
            "network there by save_pretrained, or give a config {model_type: …}"
        )
    if isinstance(config, dict) and "model_type" not in config:
        raise UserError("HuggingFace: the config has no model_type; give one, for example {model_type: bert}")
    what = f"the config of {config['model_type']}" if isinstance(config, dict) else str(config)
    with reported_as(lambda error: UserError(f"HuggingFace: {what} makes no AutoModelFor{task} ({reason(error)})")):
        if isinstance(config, dict):
            options = {name: value for name, value in config.items() if name != "model_type"}
            settings = transformers.AutoConfig.for_model(config["model_type"], **{**options, **outputs})
            return cast("nn.Module", makes.from_config(settings))
        assert folder is not None
        if any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
            return cast("nn.Module", makes.from_pretrained(folder, local_files_only=True, **outputs))
        settings = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, **outputs)
        return cast("nn.Module", makes.from_config(settings))
