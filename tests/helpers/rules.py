"""A local rule of the literature, written as a user would; see `tests/objectives`."""

import torch.nn.functional as F

from dfl_lightning.objectives import Objective


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
