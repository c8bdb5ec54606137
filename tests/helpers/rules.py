"""Local rules of the literature, each written as a user would; see `tests/objectives`."""

import torch
import torch.nn.functional as F

from dfl_lightning.objectives import Objective


class Ditto(Objective):
    """A second model for each client, held near the one that is exchanged (Li et al. 2021, algorithm 1)."""

    stackable = recordable = True
    row_sets, reports = {"personal": "models"}, "personal"

    def __init__(self, lam=0.3):
        self.lam = lam

    def step(self, ctx):
        batch, shared, own = ctx.next_batch(), ctx.model(), ctx.model("personal")
        shared.update(shared.grad(batch))
        pull = zip(own.grad(batch), own.params, shared.start, strict=True)
        own.update([g + self.lam * (p - s) for g, p, s in pull])


class APFL(Objective):
    """The mixture of a local and the exchanged model is what has to fit (Deng et al. 2020, eq. 5 and 6)."""

    stackable = recordable = True
    row_sets, reports = {"local": "models"}, "local"

    def __init__(self, alpha=0.25):
        self.alpha = alpha

    def step(self, ctx):
        batch, shared, local = ctx.next_batch(), ctx.model(), ctx.model("local")
        mixed = [self.alpha * v + (1 - self.alpha) * w for v, w in zip(local.params, shared.params, strict=True)]
        grads = local.grad(batch, at=mixed)
        shared.update(shared.grad(batch))
        local.update([self.alpha * g for g in grads])


class PerFedAvg(Objective):
    """First order: the gradient on one batch where a step on another leads (Fallah et al. 2020)."""

    stackable = recordable = True

    def step(self, ctx):
        model, first, second = ctx.model(), ctx.next_batch(), ctx.next_batch()
        ahead = [p - 0.2 * g for p, g in zip(model.params, model.grad(first), strict=True)]
        model.update(model.grad(second, at=ahead))


class FedSAM(Objective):
    """The gradient where the loss is worst nearby (Qu et al. 2022, eq. 4)."""

    stackable = recordable = True

    def step(self, ctx):
        model, batch = ctx.model(), ctx.next_batch()
        model.update(model.grad(batch, at=model.climbed(model.grad(batch), 0.05)))


class MOON(Objective):
    """Features near those of the received model, away from those of the last one (Li et al. 2021, eq. 3)."""

    stackable = recordable = True
    row_sets = {"previous": "models"}
    features = ("head",)

    def step(self, ctx):
        model, previous, batch = ctx.model(), ctx.model("previous"), ctx.next_batch()
        batch = batch.attach(near=model.features(batch, at=model.start), far=previous.features(batch))

        def contrast(scores, batch, features):
            near = F.cosine_similarity(features["head"], batch.near, dim=-1) / 0.5
            far = F.cosine_similarity(features["head"], batch.far, dim=-1) / 0.5
            return ctx.loss(scores, batch) - 0.7 * (near - torch.logaddexp(near, far)).mean()

        model.update(model.grad(batch, contrast))


class FedProto(Objective):
    """Features near the prototypes of their class (Tan et al. 2022, eq. 6); prototypes are as large as the head."""

    stackable = recordable = True
    row_sets = {"prototypes": "models"}
    features = ("head",)

    def step(self, ctx):
        def loss(scores, batch, features, prototypes):
            return ctx.loss(scores, batch) + 0.4 * F.mse_loss(features["head"], prototypes[batch.labels])

        model = ctx.model()
        model.update(model.grad(ctx.next_batch(), loss, ctx.rows("prototypes")[2]))
