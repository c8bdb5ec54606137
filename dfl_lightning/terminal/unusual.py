"""Notes of the banner about settings that are allowed but probably not intended."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from dfl_lightning.callbacks import Selection, Threshold
from dfl_lightning.data import FromDataset
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.terminal.frozen_parameters import frozen_remarks
from dfl_lightning.utils.score import Score

_FEW_NODES = 2000
"""The largest topology whose links are counted; in a larger one, all other clients count as neighbours."""


def unusual_settings(trainer: RunTrainer, module: RunModule) -> Iterator[str]:
    """Yield a note on each setting that is probably a mistake, such as no training, or more neighbours than exist.

    Args:
        trainer: the trainer, whose callbacks are the policies.
        module: the module after its setup, with federation and data.
    """
    rounds, every, score = trainer.max_epochs, trainer.check_val_every_n_epoch, Score.of(module.federation.task)
    if rounds == 0:
        yield "trainer.max_rounds is 0: there are no rounds, nothing is trained"
    elif module.federation.local.durations is None and all(p.duration.is_empty for p in module.parts.phases):
        yield "model.local_epochs is 0: clients do not train, models are only mixed"
    if rounds is not None and every is not None and 0 < rounds < every and trainer.limit_val_batches:
        yield (
            f"trainer.check_val_every_n_epoch is {every} and there are {rounds} rounds: no round is evaluated, "
            f"{'accuracies stay' if score.name == 'acc' else f'the {score.label} stays'} unknown"
        )
    selection = module.federation.policy(Selection)
    if selection is not None:
        yield from _too_many_neighbours(trainer, module, selection)
    yield from frozen_remarks(module.federation.network, module.federation.layout, module.federation.num_clients)
    if isinstance(trainer.datamodule, FromDataset):
        yield from _guessed_scale(trainer.datamodule, module)
    categories, network = module.federation.data.categories, module.federation.network
    if categories and not _has_embedding(network):
        yield (
            f"the data have {len(categories)} column{'s' * (len(categories) > 1)} of categories, whose numbers "
            f"{type(network).__name__} takes for quantities; --model.network Tabular embeds them"
        )
    if trainer.replaced_monitors and module.federation.clusters is not None:
        yield (
            f"the monitors {' and '.join(trainer.replaced_monitors)}, which are on by default, are replaced; "
            "--monitors+=NAME adds one to them"
        )


def _too_many_neighbours(trainer: RunTrainer, module: RunModule, selection: Selection) -> Iterator[str]:
    """Yield a note on each option of the selection that asks for more neighbours than any receiver has."""
    by_threshold = "threshold" in selection.reads and module.federation.policy(Threshold) is not None
    most = None
    for option, attribute in selection.neighbour_counts.items():
        number = vars(selection).get(attribute)
        unread = attribute == "k" and (by_threshold or module.federation.topology.budgets is not None)
        if not isinstance(number, int) or unread:
            continue
        most = _most_in_neighbours(module) if most is None else most
        if number > most:
            server = "the server has" if module.federation.topology.num_servers else "no client has more than"
            noun = "clients" if module.federation.topology.num_servers else f"neighbour{'s' * (most != 1)}"
            yield f"selection.{option} is {number}, but {server} {most} {noun}"


def _most_in_neighbours(module: RunModule) -> int:
    """Return the largest number of in-neighbours of a receiver.

    In a graph that changes, or a large one, it is an upper bound: all other clients.
    """
    topology = module.federation.topology
    if topology.num_servers:
        return module.federation.num_clients
    if topology.changes or topology.num_nodes > _FEW_NODES:
        return module.federation.num_clients - 1
    return int(topology.reachable(0).count.max())


def _guessed_scale(data: FromDataset, module: RunModule) -> Iterator[str]:
    """Yield a note on byte data whose shape may mislead the library, which tells pixels from numbers by their shape."""
    if not data.guesses_scale:
        return
    shape = list(module.federation.data.input_shape)
    has_embedding = _has_embedding(module.federation.network)
    if len(shape) < 2 and not has_embedding:
        yield (
            f"uint8 data of shape {shape} are not images and are used as the numbers 0 to 255; if they are pixels, "
            "--data.scale 0.00392157 brings them to [0, 1]; otherwise --data.scale 1 ends this note"
        )
    elif len(shape) == 2 and has_embedding:
        yield (
            f"uint8 data of shape {shape} count as images and are scaled by 1/255, but the network has an Embedding; "
            "--data.scale 1 keeps whole numbers"
        )


def _has_embedding(network: nn.Module) -> bool:
    """Return True if the network has an embedding, which looks up whole numbers, as of words or categories."""
    return any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in network.modules())
