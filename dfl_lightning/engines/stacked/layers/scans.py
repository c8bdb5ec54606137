"""Recurrences of k clients at once: a batched product and some entrywise operations for each step.

Autograd would record each operation of each step. Here the backward pass is written down: it computes the gradients of
all steps' gates, from which one product each gives those of weights and inputs. What steps keep for it lies step by
step and gate by gate, since entrywise operations are several times as fast on contiguous numbers, and weights are
transposed once, for faster products.

Shapes, for T steps of B samples with H units: gates [k, T, B, gates * H], states [k, B, H], outputs [k, T, B, H].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


def in_order(steps: int, reverse: bool) -> range:
    """Return the steps in the order of the recurrence."""
    return range(steps - 1, -1, -1) if reverse else range(steps)


class RNNScan(torch.autograd.Function):
    """Recurrence of `nn.RNN`: h' = f(gates + W h), with f = tanh or relu."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, hidden: Tensor, relu: bool, reverse: bool) -> Tensor:
        """Return the hidden states after each step."""
        first, transposed, (clients, steps, *rest) = hidden, weight.mT.contiguous(), gates.shape
        outputs = gates.new_empty(steps, clients, *rest)
        of_inputs, after = gates.unbind(1), outputs.unbind(0)
        for t in in_order(steps, reverse):
            hidden = torch.add(torch.bmm(hidden, transposed), of_inputs[t], out=after[t])
            hidden = hidden.relu_() if relu else hidden.tanh_()
        ctx.relu, ctx.reverse = relu, reverse
        ctx.save_for_backward(outputs, weight, first)
        return outputs.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of gates, weight and the first state."""
        outputs, weight, first = ctx.saved_tensors
        of_gates = outputs.new_empty(len(first), len(outputs), *first.shape[1:])
        of_hidden = torch.zeros_like(first)
        for t in in_order(len(outputs), not ctx.reverse):
            of_hidden = of_hidden.add_(grad[:, t])
            if ctx.relu:
                of_hidden.mul_(outputs[t] > 0)
            else:
                _tanh_backward(of_hidden, outputs[t], grad_input=of_hidden)
            of_gates[:, t] = of_hidden
            of_hidden = torch.bmm(of_hidden, weight)
        return of_gates, _of_weight(of_gates, outputs, first, ctx.reverse), of_hidden, None, None


class GRUScan(torch.autograd.Function):
    """Recurrence of `nn.GRU`, with gates in torch's order: reset, update, new."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor | None, hidden: Tensor, reverse: bool) -> Tensor:
        """Return the hidden states after each step.

        Args:
            ctx: of autograd.
            gates: inputs' part of all gates, with all biases except `bias`.
            weight: [k, 3 * H, H].
            bias: the part of the bias that the reset gate multiplies, [k, H]; None: 0.
            hidden: the first state.
            reverse: True to begin with the last step.
        """
        first, transposed, steps = hidden, weight.mT.contiguous(), gates.shape[1]
        kept, outputs = gates.new_empty(steps, 4, *hidden.shape), gates.new_empty(steps, *hidden.shape)
        of_two, of_new = (part.unbind(2) for part in _by_gate(gates, 3).split((2, 1)))
        boths, resets, updates, news, inners, after = _each(kept[:, :2], *kept.unbind(1), outputs)
        for t in in_order(steps, reverse):
            product = _by_gate(torch.bmm(hidden, transposed), 3)
            torch.add(of_two[t], product[:2], out=boths[t]).sigmoid_()
            if bias is None:
                inners[t].copy_(product[2])
            else:
                torch.add(product[2], bias.unsqueeze(1), out=inners[t])
            torch.addcmul(of_new[t][0], resets[t], inners[t], out=news[t]).tanh_()
            hidden = torch.lerp(news[t], hidden, updates[t], out=after[t])
        ctx.reverse, ctx.has_bias = reverse, bias is not None
        ctx.save_for_backward(kept, weight, first, outputs)
        return outputs.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of gates, weight, bias and the first state."""
        kept, weight, first, outputs = ctx.saved_tensors
        size = first.shape[-1]
        of_gates = outputs.new_empty(len(first), len(outputs), first.shape[1], 3 * size)
        of_products = torch.empty_like(of_gates)  # Of W h and its bias.
        now, of_hidden = kept.new_empty(3, *first.shape), torch.zeros_like(first)
        of_reset, of_update, of_inner = now.unbind(0)
        before, of_after, of_steps = _before(outputs, first, ctx.reverse), grad.unbind(1), of_products.unbind(1)
        resets, updates, news, inners = _each(*kept.unbind(1))
        for t in in_order(len(outputs), not ctx.reverse):
            reset, update, new, inner, state = resets[t], updates[t], news[t], inners[t], before[t]
            of_hidden = of_hidden.add_(of_after[t])
            _sigmoid_backward((state - new).mul_(of_hidden), update, grad_input=of_update)
            passed = of_hidden * update
            of_new = of_hidden.sub_(passed)
            _tanh_backward(of_new, new, grad_input=of_new)
            _sigmoid_backward(of_new * inner, reset, grad_input=of_reset)
            torch.mul(of_new, reset, out=of_inner)
            of_gates[:, t, :, 2 * size :] = of_new
            _by_gate(of_steps[t], 3).copy_(now)
            of_hidden = passed.add_(torch.bmm(of_steps[t], weight))
        of_gates[..., : 2 * size] = of_products[..., : 2 * size]
        of_bias = of_products[..., 2 * size :].sum((1, 2)) if ctx.has_bias else None
        return of_gates, _of_weight(of_products, outputs, first, ctx.reverse), of_bias, of_hidden, None


class LSTMScan(torch.autograd.Function):
    """Recurrence of `nn.LSTM`, with gates in torch's order: input, forget, cell, output."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        weight: Tensor,
        projection: Tensor | None,
        hidden: Tensor,
        cell: Tensor,
        reverse: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the hidden states after each step, and the cells after the last one.

        Args:
            ctx: of autograd.
            gates: inputs' part of all gates, with all biases.
            weight: [k, 4 * H, P], where P = H without a projection.
            projection: [k, P, H], from a step's output to the hidden state; None: there is none.
            hidden: the first hidden state, [k, B, P].
            cell: the first cells, [k, B, H].
            reverse: True to begin with the last step.
        """
        first, first_cell, transposed, steps = hidden, cell, weight.mT.contiguous(), gates.shape[1]
        kept, (cells, bounded, raw) = gates.new_empty(steps, 4, *cell.shape), gates.new_empty(3, steps, *cell.shape)
        outputs = raw if projection is None else gates.new_empty(steps, *hidden.shape)
        of_inputs = _by_gate(gates, 4).unbind(2)
        nows, boths, enters, forgets, news, leaves = _each(kept, kept[:, :2], *kept.unbind(1))
        new_cells, small, after, projected = _each(cells, bounded, raw, outputs)
        for t in in_order(steps, reverse):
            torch.add(of_inputs[t], _by_gate(torch.bmm(hidden, transposed), 4), out=nows[t])
            boths[t].sigmoid_()
            news[t].tanh_()
            leaves[t].sigmoid_()
            cell = torch.mul(forgets[t], cell, out=new_cells[t]).addcmul_(enters[t], news[t])
            hidden = torch.mul(leaves[t], torch.tanh(cell, out=small[t]), out=after[t])
            if projection is not None:
                hidden = projected[t].copy_(torch.bmm(hidden, projection.mT))
        ctx.reverse = reverse
        ctx.save_for_backward(kept, weight, projection, first, first_cell, cells, bounded, raw, outputs)
        ctx.set_materialize_grads(False)
        return outputs.transpose(0, 1), cell.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, of_last: Tensor | None) -> tuple[Tensor | None, ...]:
        """Compute the gradients of gates, weight, projection and the first states."""
        kept, weight, projection, first, first_cell, cells, bounded, raw, outputs = ctx.saved_tensors
        of_gates = outputs.new_empty(len(first), len(outputs), first.shape[1], 4 * cells.shape[-1])
        of_outputs = None if projection is None else outputs.new_empty(len(first), len(outputs), *first.shape[1:])
        now, of_hidden = torch.empty_like(kept[0]), torch.zeros_like(first)
        of_cell = torch.zeros_like(first_cell) if of_last is None else of_last.clone()
        of_enter, of_forget, of_new, of_leave = now.unbind(0)
        enters, forgets, news, leaves, small = _each(*kept.unbind(1), bounded)
        before, of_steps = _before(cells, first_cell, ctx.reverse), of_gates.unbind(1)
        of_after = None if grad is None else grad.unbind(1)
        for t in in_order(len(outputs), not ctx.reverse):
            enter, forget, new, leave, cell = enters[t], forgets[t], news[t], leaves[t], before[t]
            of_hidden = of_hidden if of_after is None else of_hidden.add_(of_after[t])
            if of_outputs is not None:
                of_outputs[:, t] = of_hidden
                of_hidden = torch.bmm(of_hidden, projection)
            _sigmoid_backward(of_hidden * small[t], leave, grad_input=of_leave)
            of_hidden.mul_(leave)
            of_cell.add_(_tanh_backward(of_hidden, small[t], grad_input=of_hidden))
            _sigmoid_backward(of_cell * new, enter, grad_input=of_enter)
            _sigmoid_backward(of_cell * cell, forget, grad_input=of_forget)
            _tanh_backward(of_cell * enter, new, grad_input=of_new)
            of_cell.mul_(forget)
            _by_gate(of_steps[t], 4).copy_(now)
            of_hidden = torch.bmm(of_steps[t], weight)
        of_projection = None
        if of_outputs is not None:
            of_projection = torch.bmm(of_outputs.flatten(1, 2).mT, raw.transpose(0, 1).flatten(1, 2))
        of_weight = _of_weight(of_gates, outputs, first, ctx.reverse)
        return of_gates, of_weight, of_projection, of_hidden, of_cell, None


def _by_gate(x: Tensor, gates: int) -> Tensor:
    """View [k, ..., gates * H] as [gates, k, ..., H]."""
    return x.view(*x.shape[:-1], gates, -1).movedim(-2, 0)


def _each(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Return the steps of tensors [T, ...]; to make all views at once is faster than one by one."""
    return [tensor.unbind(0) for tensor in tensors]


def _before(after: Tensor, first: Tensor, reverse: bool) -> list[Tensor]:
    """Return the state before each step, [k, B, H] each.

    Args:
        after: states after each step, [T, k, B, H].
        first: the first state, [k, B, H].
        reverse: True if the recurrence begins with the last step.
    """
    states = after.unbind(0)
    return [*states[1:], first] if reverse else [first, *states[:-1]]


def _of_weight(of_products: Tensor, outputs: Tensor, first: Tensor, reverse: bool) -> Tensor:
    """Compute the gradient of the weight of hidden states, [k, gates * H, H].

    Args:
        of_products: gradient of the weight's products, [k, T, B, gates * H].
        outputs: hidden states after each step, [T, k, B, H].
        first: the first hidden state, [k, B, H].
        reverse: True if the recurrence begins with the last step.
    """
    before = torch.stack(_before(outputs, first, reverse), 1)
    return torch.bmm(of_products.flatten(1, 2).mT, before.flatten(1, 2))
