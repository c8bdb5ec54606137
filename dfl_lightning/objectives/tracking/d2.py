"""D2: decentralized training without the error that differences between clients' data cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dfl_lightning.engines.local_work import JobContext
from dfl_lightning.objectives.plain import Plain
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

LEAST_EIGENVALUE = -1 / 3
"""D2 diverges if the mixing matrix has an eigenvalue at or below this number (assumption 1 of the paper)."""


class D2(Plain):
    """The correction of messages by the last mixing (D2, Tang et al. 2018, arXiv 1803.07068, algorithm 1).

        x(1) = W (x(0) - lr g(0))
        x(t+1) = W (2 x(t) - x(t-1) - lr g(t) + lr g(t-1)) = W (y(t) + x(t) - y(t-1)),    y = x - lr g

    y is the model after its local training. A client thus adds x(t) - y(t-1) to its message, the change of its model by
    the last mixing. These changes sum to 0 over all clients, so that the mean of all models moves by gradients only as
    long as all are active. With full batches and a small enough constant learning rate all models reach the optimum of
    the clients' mean loss, which D-SGD does not. A client that has dropped out keeps its change for the next round in
    which it is active. y is kept, not sent. With more than one local step, lr g is the whole change by the local
    training, with any optimizer.

    The paper's W is symmetric and doubly stochastic, with eigenvalues above -1/3: Metropolis weights on an undirected
    graph, with a larger share of the own model (`aggregation.laziness`) if an eigenvalue would be lower.

    Args:
        personal_epochs: as in `Plain`; personal parameters are not mixed, and nothing is added to them.
    """

    method_name = "D2"
    recordable = True
    supports_servers = False
    supports_clock = False
    against_clock = "its correction takes the models of two rounds of all clients"
    row_sets = {"descended": "models"}

    def start(self, federation: Federation) -> None:
        """Require symmetric mixing, and eigenvalues above -1/3 if they are known."""
        symmetric = [policy for policy in federation.policies if policy.is_symmetric(federation)]
        if not symmetric:
            raise UserError(
                "objective D2 needs mixing weights that are symmetric: --aggregation Metropolis with "
                "--selection Gossip --selection.k all on an undirected topology, without a substitution"
            )
        eigenvalues = symmetric[0].eigenvalues(federation)
        if eigenvalues is None:
            federation.remark(
                "D2 converges where the eigenvalues of the mixing matrix are above -1/3; they are not known of "
                "one that changes or is very large; --aggregation.laziness 0.5 makes all of them positive"
            )
        elif float(eigenvalues[0]) <= LEAST_EIGENVALUE:
            raise UserError(
                f"objective D2 diverges where the mixing matrix has an eigenvalue of -1/3 or less, and here one is "
                f"{float(eigenvalues[0]):.2f}; set --aggregation.laziness 0.5, or take another topology"
            )

    def finish(self, ctx: JobContext) -> None:
        """Keep the trained model, and add the change by the last mixing to the model that is sent."""
        model, kept = ctx.model(), ctx.model("descended")
        sent = [now + start - before for now, start, before in zip(model.params, model.start, kept.params, strict=True)]
        kept.assign(model.params)
        model.assign(sent)
