"""Losses over all pixels of the whole image.

Each rank adds up its own pixels; one all-reduce of the sum (and, where pixels weigh
differently, of the weight) makes the loss that one process would compute, on every rank.
"""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import _reduction

from ..comm.exchange import all_reduce_sum, reduced
from .agree import raised_together
from .elementwise import placed_together
from .registry import named, no_intercept, refuse, spatial_op
from .tile import Tile, alias, narrowed, redistribute, wrap


def reduction_of(kwargs: dict[str, Any], reduction: str) -> str:
    """The reduction asked for, the old `size_average` and `reduce` included."""
    size_average, reduce = kwargs.pop("size_average", None), kwargs.pop("reduce", None)
    if size_average is not None or reduce is not None:
        return _reduction.legacy_get_string(size_average, reduce)
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction!r} is not a valid value for reduction")
    return reduction


# ── classification of pixels ─────────────────────────────────────────────────────────────────────


def _target_for(func: Any, input: Tile, target: Tensor, classes_apart: bool) -> Tensor:
    """The target in the boxes of the input, whose dimension 1 it lacks if `classes_apart`."""
    n = input.ndim
    if 1 - n in input.placement.global_sizes:
        refuse(func, "the classes are split over ranks", "Split batch or image dimensions only")
    placement = input.placement
    if classes_apart:
        # The batch is one number nearer to the end; image dimensions count the same.
        placement = placement.moved({-n: 1 - n})
    if isinstance(target, Tile):
        return alias(redistribute(target, placement))
    return narrowed(target, placement)


def _classes_first(x: Tensor) -> Tensor:
    """(N, C, …) to (cells, C), which every loss accepts, also where a rank has no cell."""
    return x.movedim(1, -1).flatten(0, -2)


@spatial_op(F.cross_entropy)
def cross_entropy(
    func: Any,
    input: Tile,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    how = reduction_of({"size_average": size_average, "reduce": reduce}, reduction)
    _check_pair(func, input, target)
    apart = not target.is_floating_point()
    here = _target_for(func, input, target, apart)
    local = alias(input)
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    cells: Any = input.numel() // max(input.shape[1], 1)
    if apart:
        cells = _total_weight(func, here, weight, ignore_index, input)
    if how == "none":
        value = F.cross_entropy(local, here, weight, reduction="none", **options)
        return wrap(alias(value), input.placement.moved({-input.ndim: 1 - input.ndim}))
    here = here.flatten() if apart else _classes_first(here)
    total, kind = _summed(F.cross_entropy, _classes_first(local), here, weight, **options)
    total = all_reduce_sum(total, input.placement.comm)
    if how == "mean":
        total = total / cells
    return total.to(kind)


def _summed(
    loss: Any, input: Tensor, target: Tensor, weight: Tensor | None, **options: Any
) -> tuple[Tensor, torch.dtype]:
    """The loss of this rank's cells, in float32 at least, and the dtype that it is to have.

    One cell tells the dtype, which autocast may change, and finds what is wrong with the other
    arguments, also where a rank has no cells.
    """

    def of(x: Tensor, t: Tensor, w: Tensor | None) -> Tensor:
        return loss(x, t, w, reduction="sum", **options)

    half = input.dtype in (torch.bfloat16, torch.float16)
    if not half and input.shape[0]:
        total = of(input, target, weight)
        return total, total.dtype
    cell = of(input.new_zeros(1, *input.shape[1:]), target.new_zeros(1, *target.shape[1:]), weight)
    wide = torch.float32 if half else cell.dtype
    if input.shape[0] == 0:  # all that may want a gradient stays in the graph, as elsewhere
        nothing = input.to(wide).sum() + target.to(wide).sum()
        return nothing if weight is None else nothing + weight[:0].sum(), cell.dtype
    numbers = target.to(wide) if target.is_floating_point() else target
    total = of(input.to(wide), numbers, None if weight is None else weight.to(wide))
    return total, cell.dtype


def _total_weight(
    func: Any, target: Tensor, weight: Tensor | None, ignore: int, input: Tile
) -> Tensor:
    """What a mean over pixels divides by: the weights of all targets that are not ignored.

    One message tells all ranks as well whether any of them has a target that is no class.
    """
    classes = input.shape[1]
    kept = target[target != ignore]
    real = kept.clamp(0, classes - 1)
    own = torch.tensor(kept.numel(), device=target.device) if weight is None else weight[real].sum()
    both = torch.stack([own.double(), (real != kept).sum().double()])
    total, wrong = reduced(both, input.placement.comm).unbind()
    if wrong > 0:
        raise IndexError(
            f"{func.__name__}: {int(wrong)} targets are neither a class (0 to {classes - 1}) nor "
            f"ignore_index ({ignore})"
        )
    return total


def _check_pair(func: Any, input: Any, target: Tensor) -> None:
    if not isinstance(input, Tile):
        refuse(
            func,
            "the input is a plain tensor and the target a tile",
            "Give the target whole: every rank computes the loss of the whole tensor",
        )
    if input.ndim < 2:
        refuse(func, "it has no batch dimension", "Add one with unsqueeze(0)")
    want = tuple(input.shape)
    if not target.is_floating_point() or target.ndim != input.ndim:
        want = (want[0], *want[2:])
    if tuple(target.shape) != want:
        raise ValueError(f"the target is {tuple(target.shape)}, and the input asks for {want}")


@spatial_op(*named("nll_loss", "nll_loss2d", "nll_loss_nd"))
def nll_loss(
    func: Any,
    input: Tile,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    how = reduction_of({"size_average": size_average, "reduce": reduce}, reduction)
    _check_pair(func, input, target)
    here = _target_for(func, input, target, True)
    local = alias(input)
    cells = _total_weight(func, here, weight, ignore_index, input)
    if how == "none":
        value = F.nll_loss(local, here, weight, ignore_index=ignore_index, reduction="none")
        return wrap(alias(value), input.placement.moved({-input.ndim: 1 - input.ndim}))
    here = here.flatten()
    total, kind = _summed(
        F.nll_loss, _classes_first(local), here, weight, ignore_index=ignore_index
    )
    total = all_reduce_sum(total, input.placement.comm)
    if how == "mean":
        total = total / cells
    return total.to(kind)


# ── losses that treat every element by itself ────────────────────────────────────────────────────

_POINTWISE = (
    "binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss smooth_l1_loss "
    "huber_loss poisson_nll_loss soft_margin_loss hinge_embedding_loss gaussian_nll_loss kl_div "
    "margin_ranking_loss"
).split()
_OF_ONE_SHAPE = (F.binary_cross_entropy, F.binary_cross_entropy_with_logits)
_OF_VALUES = (F.binary_cross_entropy, F.gaussian_nll_loss)
"""They refuse probabilities beyond 0 and 1, or negative variances, which one rank may have."""


def _check_shapes(input: Tensor, target: Tensor) -> None:
    """What one process checks: two parts may have one shape where the whole tensors do not."""
    if input.shape != target.shape:
        raise ValueError(
            f"Target size ({target.shape}) must be the same as input size ({input.shape})"
        )


@spatial_op(*named(*_POINTWISE))
def pointwise_loss(func: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Per element on the own part, then the mean or sum over the whole image."""
    if isinstance(func, BuiltinFunctionType):
        refuse(
            func,
            "it takes its reduction as a number",
            f"Call torch.nn.functional.{func.__name__}",
        )
    if any(isinstance(a, str) for a in args):
        refuse(func, "its reduction is given by position", "Name it: reduction=...")
    if func is F.l1_loss and _weight_was_dropped():
        refuse(
            func,
            "PyTorch does not pass its weight on to tensors that have rules of their own",
            "Write (weight * (input - target).abs()).sum() / weight.sum()",
        )
    how = kwargs.pop("reduction", "mean")
    batch_mean = how == "batchmean" and func.__name__ == "kl_div"
    how = "sum" if batch_mean else reduction_of(kwargs, how)
    keys = list(kwargs)
    operands = [*args, *kwargs.values()]
    if func in _OF_ONE_SHAPE:
        _check_shapes(operands[0], operands[1])
    placement, values = placed_together(func, tuple(operands))
    count = len(args)

    def compute() -> Tensor:
        with no_intercept():
            named_values = dict(zip(keys, values[count:], strict=True))
            return func(*values[:count], **named_values, reduction="none")

    if func in _OF_VALUES:
        value = raised_together(compute, values[0].device, placement.comm)
    else:
        value = compute()
    whole = wrap(alias(value), placement)
    if how == "none":
        return whole
    if batch_mean:
        return whole.sum() / whole.shape[0]
    if how == "mean" and func is F.mse_loss and kwargs.get("weight") is not None:
        return whole.sum() / kwargs["weight"].sum()
    return whole.mean() if how == "mean" else whole.sum()


def _weight_was_dropped() -> bool:
    """Whether the call of `F.l1_loss` had a weight, which its own frame alone still knows."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not F.l1_loss.__code__:
        frame = frame.f_back
    return frame is not None and frame.f_locals.get("weight") is not None


@spatial_op(
    *named(
        *(
            "cosine_embedding_loss ctc_loss multi_margin_loss multilabel_margin_loss "
            "multilabel_soft_margin_loss triplet_margin_loss triplet_margin_with_distance_loss"
        ).split()
    )
)
def refused(func: Any, *args: Any, **kwargs: Any) -> Any:
    refuse(
        func,
        "it has no rule on tiles",
        "Write it with elementwise operators and sums, or gather its input with .full_tensor()",
    )


@spatial_op(*named("one_hot"))
def one_hot(func: Any, input: Tile, num_classes: int = -1) -> Tile:
    if num_classes < 0:
        refuse(func, "the number of classes is not given", "Pass num_classes")
    local = alias(input)
    value = raised_together(
        lambda: F.one_hot(local, num_classes), local.device, input.placement.comm
    )
    where = {d: d - 1 for d in range(-input.ndim, 0)}
    return wrap(alias(value), input.placement.moved(where))
