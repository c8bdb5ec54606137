"""Convolutions of k clients as batched products with matrices of patches, which are read as torch writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Patches:
    """How the patches of a client's images become the columns of one matrix.

    A client's images lie above one another in a tall one, with as many rows of zeros in between as a convolution pads
    on one side: they serve the image above and the one below. Its patches are then a matrix as they are; image by image
    they would have to be transposed. Patches that reach into two images are computed for nothing.

    Args:
        shape: of the images, [k, B, C, H, W].
        kernel: height and width; so are the next ones.
        stride: of a convolution, as are the next ones.
        padding: on each side.
        dilation: between the kernel's places.
    """

    shape: Sequence[int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of an output."""
        height, width = (
            (size + 2 * p - d * (kernel - 1) - 1) // s + 1
            for size, kernel, s, p, d in zip(
                self.shape[3:], self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return height, width

    @property
    def rows(self) -> int:
        """Rows of positions from one image to the next."""
        return max(-(-(self.shape[3] + self.padding[0]) // self.stride[0]), self.out[0])

    @property
    def first(self) -> int:
        """Rows of positions above the first image: torch pads both ends alike, and the last image needs some more."""
        span = self.dilation[0] * (self.kernel[0] - 1) + 1
        return max(0, -((2 * self.padding[0] - span) // self.stride[0]) - 1)

    @property
    def numbers(self) -> int:
        """Of all patches, those that are computed for nothing included."""
        clients, batch, channels, _, width = self.shape
        tall = torch.zeros(1, 1, batch * self.rows * self.stride[0], width, device="meta")
        return clients * channels * F.unfold(tall, *self._options).numel()

    @property
    def _options(self) -> tuple[tuple[int, int], ...]:
        padding = (self.padding[0] + self.first * self.stride[0], self.padding[1])
        return self.kernel, self.dilation, padding, self.stride

    def columns(self, images: Tensor) -> Tensor:
        """Images [k, B, C, H, W] -> their patches, [k, C * kh * kw, positions]."""
        clients, batch, channels, height, width = self.shape
        apart = self.rows * self.stride[0]
        if apart == height:
            tall = images.transpose(1, 2).contiguous()
        else:
            tall = images.new_zeros(clients, channels, batch, apart, width)
            tall[:, :, :, :height].copy_(images.transpose(1, 2))
        # Every plane is a channel of a single image: torch unfolds a batch image by image, a launch each.
        patches = F.unfold(tall.view(1, clients * channels, batch * apart, width), *self._options)
        return patches.view(clients, -1, patches.shape[-1])

    def images(self, columns: Tensor) -> Tensor:
        """The gradient of images from that of their patches: patches are added up where they lie."""
        clients, batch, channels, height, width = self.shape
        apart = self.rows * self.stride[0]
        tall = F.fold(columns.view(1, -1, columns.shape[-1]), (batch * apart, width), *self._options)
        return tall.view(clients, channels, batch, apart, width)[:, :, :, :height].transpose(1, 2)

    def valid(self, products: Tensor) -> Tensor:
        """Numbers at all positions, [k, O, positions] -> those of the images, [k, O, B, H', W'], a view."""
        batch, (height, width) = self.shape[1], self.out
        lines = products.unflatten(2, (-1, width))[:, :, self.first : self.first + batch * self.rows]
        return lines.unflatten(2, (batch, self.rows))[:, :, :, :height]


class PatchConvolution(torch.autograd.Function):
    """k convolutions at once, as products of their weights and patches.

    Written out because autograd would lay gradients out once for every view on the way.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, patches: Patches) -> Tensor:
        """Images [k, B, C, H, W], weight [k, O, C, kh, kw], bias [k, O] or None -> [B, k * O, H', W'] channels last."""
        columns, matrix = patches.columns(images), weight.flatten(2)
        products = torch.bmm(matrix, columns) if bias is None else torch.baddbmm(bias.unsqueeze(2), matrix, columns)
        ctx.save_for_backward(columns, matrix)
        ctx.patches, ctx.kernel = patches, weight.shape[2:]
        found = patches.valid(products).permute(2, 0, 1, 3, 4)
        shape = (len(found), len(weight) * weight.shape[1], *patches.out)
        out = torch.empty(shape, dtype=found.dtype, device=found.device, memory_format=torch.channels_last)
        out.unflatten(1, weight.shape[:2]).copy_(found)
        return out  # no view: layers behind may write into it

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Gradients of images, weight and bias, as far as they are wanted."""
        columns, matrix = ctx.saved_tensors
        clients, channels = matrix.shape[:2]
        wants_images, wants_weight, wants_bias, _ = ctx.needs_input_grad
        products = grad.new_zeros(clients, channels, columns.shape[2])
        ctx.patches.valid(products).copy_(grad.unflatten(1, (clients, channels)).permute(1, 2, 0, 3, 4))
        of_weight = torch.bmm(products, columns.mT).unflatten(2, ctx.kernel) if wants_weight else None
        of_images = ctx.patches.images(torch.bmm(matrix.mT, products)) if wants_images else None
        return of_images, of_weight, products.sum(2) if wants_bias else None, None
