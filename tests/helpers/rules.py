"""Local rules of the literature, each written as a user would; see `tests/objectives`."""

import torch
import torch.nn.functional as F

from dfl_lightning.objectives import Objective


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
