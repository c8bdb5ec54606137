"""Convolutions of k clients as batched products with matrices of patches, in the layout in which torch writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Patches:
    """Layout of the patches of a client's images as the columns of one matrix.

    A client's images are put one below the other into a tall image, with as many rows of zeros between them as the
    convolution pads on one side: these serve the image above and the one below. The patches of the tall image already
    are a matrix; those of single images would have to be transposed. Patches that overlap two images are unused.

    Args:
        shape: shape of the images, [k, B, C, H, W].
        kernel: height and width of the kernel.
        stride: vertical and horizontal stride.
        padding: vertical and horizontal padding on each side.
        dilation: vertical and horizontal distance of the kernel's entries.
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
        """Number of output rows from one image to the next in the tall image."""
        return max(-(-(self.shape[3] + self.padding[0]) // self.stride[0]), self.out[0])

    @property
    def first(self) -> int:
        """Number of output rows above the first image; torch pads both ends equally, and the last image needs them."""
        span = self.dilation[0] * (self.kernel[0] - 1) + 1
        return max(0, -((2 * self.padding[0] - span) // self.stride[0]) - 1)

    @property
    def numbers(self) -> int:
        """Number of entries of all patches, with unused ones."""
        clients, batch, channels, _, width = self.shape
        tall = torch.zeros(1, 1, batch * self.rows * self.stride[0], width, device="meta")
        return clients * channels * F.unfold(tall, *self._options).numel()

    @property
    def _options(self) -> tuple[tuple[int, int], ...]:
        padding = (self.padding[0] + self.first * self.stride[0], self.padding[1])
        return self.kernel, self.dilation, padding, self.stride

    def columns(self, images: Tensor) -> Tensor:
        """Extract the patches of images [k, B, C, H, W] as [k, C * kh * kw, positions]."""
        clients, batch, channels, height, width = self.shape
        apart = self.rows * self.stride[0]
        if apart == height:
            tall = images.transpose(1, 2).contiguous()
        else:
            tall = images.new_zeros(clients, channels, batch, apart, width)
            tall[:, :, :, :height].copy_(images.transpose(1, 2))
        # All planes are channels of a single image, since torch unfolds a batch image by image, with a launch for each.
        patches = F.unfold(tall.view(1, clients * channels, batch * apart, width), *self._options)
        return patches.view(clients, -1, patches.shape[-1])

    def images(self, columns: Tensor) -> Tensor:
        """Compute the gradient of images from that of their patches, which are summed at their positions."""
        clients, batch, channels, height, width = self.shape
        apart = self.rows * self.stride[0]
        tall = F.fold(columns.view(1, -1, columns.shape[-1]), (batch * apart, width), *self._options)
        return tall.view(clients, channels, batch, apart, width)[:, :, :, :height].transpose(1, 2)

    def valid(self, products: Tensor) -> Tensor:
        """Select the positions of images among all, [k, O, positions] -> [k, O, B, H', W'], as a view."""
        batch, (height, width) = self.shape[1], self.out
        lines = products.unflatten(2, (-1, width))[:, :, self.first : self.first + batch * self.rows]
        return lines.unflatten(2, (batch, self.rows))[:, :, :, :height]


class PatchConvolution(torch.autograd.Function):
    """Convolutions of k clients as products of their weights and patches.

    It has a backward pass of its own, because autograd would copy gradients once for every view.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, patches: Patches) -> Tensor:
        """Compute outputs [B, k * O, H', W'], channels-last.

        Images are [k, B, C, H, W], `weight` is [k, O, C, kh, kw], `bias` is [k, O] or None.
        """
        columns, matrix = patches.columns(images), weight.flatten(2)
        products = torch.bmm(matrix, columns) if bias is None else torch.baddbmm(bias.unsqueeze(2), matrix, columns)
        ctx.save_for_backward(columns, matrix)
        ctx.patches, ctx.kernel = patches, weight.shape[2:]
        valid = patches.valid(products).permute(2, 0, 1, 3, 4)
        shape = (len(valid), len(weight) * weight.shape[1], *patches.out)
        out = torch.empty(shape, dtype=valid.dtype, device=valid.device, memory_format=torch.channels_last)
        out.unflatten(1, weight.shape[:2]).copy_(valid)
        return out  # Not a view, since the next layer may write into it.

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Compute the needed gradients of images, weight and bias."""
        columns, matrix = ctx.saved_tensors
        clients, channels = matrix.shape[:2]
        wants_images, wants_weight, wants_bias, _ = ctx.needs_input_grad
        products = grad.new_zeros(clients, channels, columns.shape[2])
        ctx.patches.valid(products).copy_(grad.unflatten(1, (clients, channels)).permute(1, 2, 0, 3, 4))
        of_weight = torch.bmm(products, columns.mT).unflatten(2, ctx.kernel) if wants_weight else None
        of_images = ctx.patches.images(torch.bmm(matrix.mT, products)) if wants_images else None
        return of_images, of_weight, products.sum(2) if wants_bias else None, None
