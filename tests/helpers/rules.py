"""A local rule of the literature, written as a user would; see `tests/objectives`."""

import torch.nn.functional as F

from dfl_lightning.objectives import Objective


class NearPrototypes(Objective):
    """Features near given prototypes of their class, which are as large as the head; the term of FedProto alone."""

    stackable = recordable = True
    row_sets = {"prototypes": "models"}
    features = ("head",)

    def step(self, ctx):
        def loss(scores, batch, features, prototypes):
            return ctx.loss(scores, batch) + 0.4 * F.mse_loss(features["head"], prototypes[batch.labels])

        model = ctx.model()
        model.update(model.grad(ctx.next_batch(), loss, ctx.rows("prototypes")[2]))
