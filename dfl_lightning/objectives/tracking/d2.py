"""D2: decentralized training that takes the difference between clients' data out of the mixing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dfl_lightning.engines.local_work import JobContext
from dfl_lightning.objectives.plain import Plain
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

LEAST_EIGENVALUE = -1 / 3
"""Mixing matrices with an eigenvalue at or below it let D2 diverge (assumption 1 of the paper)."""


class D2(Plain):
    """Add to a message what the last mixing changed in the own model (D2, Tang et al. 2018, arXiv 1803.07068).

    Algorithm 1: x(1) = W (x(0) - lr g(0)), and x(t+1) = W (2 x(t) - x(t-1) - lr g(t) + lr g(t-1)). With y = x - lr g,
    the model after its local work, that is W (y(t) + x(t) - y(t-1)): a client adds to what it sends what the last
    mixing changed in its own model. These changes sum to 0 over all clients, so that the mean of all models moves by
    gradients only while all are active; with full batches and a small enough constant learning rate all models reach
    the optimum of the clients' mean loss, which D-SGD does not. A client that has dropped out keeps its change for the
    next round in which it is active. y is kept, not sent. With more than one local step lr g is all that the local work
    changed, by whatever optimizer.

    The paper's W is symmetric and doubly stochastic, with eigenvalues above -1/3: Metropolis weights on an undirected
    graph, with a share for oneself (`aggregation.laziness`) where an eigenvalue would be lower.

    Args:
        personal_epochs: as in `Plain`; personal parameters are not mixed, and nothing is added to them.
    """

    method_name = "D2"
    recordable = True
    supports_servers = False
    row_sets = {"descended": "models"}

    def start(self, federation: Federation) -> None:
        """Require symmetric mixing, and eigenvalues above -1/3 where they are known."""
        symmetric = [policy for policy in federation.policies if policy.is_symmetric(federation)]
        if not symmetric:
            raise UserError(
                "objective D2 needs mixing weights that are symmetric: --aggregation Metropolis with "
                "--selection Gossip --selection.k all on an undirected topology, without a substitution"
            )
        found = symmetric[0].eigenvalues(federation)
        if found is None:
            federation.remark(
                "D2 converges where the eigenvalues of the mixing matrix are above -1/3; they are not known of "
                "one that changes or is very large; --aggregation.laziness 0.5 makes all of them positive"
            )
        elif float(found[0]) <= LEAST_EIGENVALUE:
            raise UserError(
                f"objective D2 diverges where the mixing matrix has an eigenvalue of -1/3 or less, and here one is "
                f"{float(found[0]):.2f}; set --aggregation.laziness 0.5, or take another topology"
            )

    def finish(self, ctx: JobContext) -> None:
        """Keep what descent has made of the model, and send that with the last mixing's change added."""
        model, kept = ctx.model(), ctx.model("descended")
        sent = [now + start - before for now, start, before in zip(model.params, model.start, kept.params, strict=True)]
        kept.assign(model.params)
        model.assign(sent)
