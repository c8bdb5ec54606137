"""Runners of the comparison: the work of each, the differences that remain, and the packages to install."""

from __future__ import annotations

from dataclasses import dataclass

OURS, PLAIN = "ours", "plain"


@dataclass(frozen=True)
class Peer:
    """A runner of the same work.

    Args:
        name: also of its script, `run_<name>.py`, and of its environment.
        asked: what it is asked for, by kind of work; other kinds it does not do.
        differs: where that could not be made the same as for the others; empty where nothing is known to differ.
        package: its distribution, which must have the version `version`; None: it runs in the present environment.
        version: the version that the script was written against, on Python 3.11.
        extras: what to install of it, such as `[simulation]`.
        module: what must be importable after the installation.
    """

    name: str
    asked: dict[str, str]
    differs: str = ""
    package: str | None = None
    version: str = ""
    extras: str = ""
    module: str = ""

    @property
    def requirement(self) -> str:
        """Return the requirement for pip."""
        return f"{self.package}{self.extras}=={self.version}"


PEERS = (
    Peer(
        PLAIN,
        {
            "fedavg": "an nn.Module, a DataLoader and a torch.optim.SGD for each client, one after the other, at "
            "torch's defaults",
            "gossip": "the same, then each client's mean with one random other",
        },
    ),
    Peer(
        OURS,
        {
            "fedavg": "DFLTrainer with topology server, Gossip(k: all, or the participants) and SampleWeighted; "
            "engine, run folder and checkpoint at their defaults, no evaluation",
            "gossip": "the same with topology complete, Gossip(k: 1) and Uniform",
        },
    ),
    Peer(
        "jax",
        {
            "fedavg": "no simulator: a compiled function that maps over the clients and scans over their batches, "
            "written for this comparison",
            "gossip": "the same, then each client's mean with one random other",
        },
        "one generator draws for all clients; nothing is saved or logged; compiled in the warm-up",
        *("jax", "0.10.2", "", "jax"),
    ),
    Peer(
        "pfl",
        {"fedavg": "FederatedAveraging, SimulatedBackend, PyTorchTensorDataset, WeightByDatapoints, one process"},
        "it cuts a user's batches once and never shuffles them, which spares it that work",
        *("pfl", "0.6.0", "", "pfl"),
    ),
    Peer(
        "flower",
        {
            "fedavg": "run_simulation (Ray), strategy FedAvg, a ClientApp as in its PyTorch quickstart, one CPU for "
            "each client, which gives an actor for each core"
        },
        "its default of two CPUs for each client would use half as many actors; telemetry and dashboard are off",
        *("flwr", "1.41.0", "[simulation]", "flwr.simulation"),
    ),
    Peer(
        "fedlab",
        {"fedavg": "StandalonePipeline, FedAvgServerHandler, FedAvgSerialClientTrainer, a DataLoader for each client"},
        "its mean is unweighted, which is the same here because all clients have equally many images",
        *("fedlab", "1.3.0", "", "fedlab.contrib.algorithm.fedavg"),
    ),
    Peer(
        "fluke",
        {"fedavg": "FedAVG with its Client, Server and FastDataLoader, in memory, its evaluations off"},
        *("", "fluke-fl", "0.8.1", "", "fluke.algorithms.fedavg"),
    ),
    Peer(
        "gossipy",
        {
            "gossip": "GossipSimulator, protocol PUSH, MERGE_UPDATE, complete graph, no delay; as many messages and "
            "updates in a round as there are clients"
        },
        "it is asynchronous: nodes act at random times within a round, merge before they train, and train as often as "
        "messages reach them (once on average), where the others train once each and then merge",
        *("gossipy-dfl", "0.0.1", "", "gossipy.simul"),
    ),
)
