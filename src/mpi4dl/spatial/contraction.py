"""Products that sum over dimensions: matmul, einsum, linear layers, attention.

Every dimension of every operand has a letter, as in einsum. What is cut decides:

    kept     bchw, dc → bdhw   the result is cut where the tile is
    summed   bchw, bkhw → bck  every rank sums its part, then the ranks add up: plain
    crossed  bld, bmd → blm    l and m are the same pixels on other ranks: refused
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..comm.exchange import all_reduce_sum
from ..errors import LayoutMismatch
from .placement import Placement
from .randomness import own_stream
from .registry import no_intercept, refuse, spatial_op, spatial_op_named
from .tile import Tile, alias, narrowed, redistribute, wrap

Letters = tuple[Hashable, ...]


def contracted(
    func: Any,
    operands: Sequence[Tensor],
    letters: Sequence[Letters],
    output: Letters,
    compute: Callable[..., Tensor],
    linear: bool = True,
) -> Tensor:
    """`compute` on this rank's parts of the operands. Without `linear`, nothing can be summed."""
    reference = _reference(func, operands, letters)
    broadcast = _broadcast_letters(func, operands, letters, reference)
    _check_extents(func, operands, letters)
    placement: Placement = operands[reference].placement  # type: ignore[attr-defined]
    names = letters[reference]
    cut = _cut_letters(operands[reference], names)
    summed = not cut <= set(output)
    if summed and not linear:
        _refuse_attention(func)
    if summed and not cut.isdisjoint(output):
        refuse(
            func,
            "it sums over a dimension that is split over ranks and keeps another one that is",
            "Split image dimensions only, or call .full_tensor() first",
        )
    essence = _essence(placement)
    targets = [essence and _followed(essence, names, own) for own in letters]
    parts = [_part(x, target) for x, target in zip(operands, targets, strict=True)]
    if not all(part.numel() for part in parts):
        _check_as_others(compute, parts)
    with no_intercept():
        out = compute(*parts)
    if summed:
        return all_reduce_sum(out, placement.comm)
    result = _kept(placement, names, output, broadcast)
    return out if result is None else wrap(out, result)


def _refuse_attention(func: Any) -> None:
    refuse(
        func,
        "every pixel would meet the pixels of all ranks: attention over all pixels (tokens) is "
        "not supported on tiles",
        "Attend within windows, split the batch only (dims=(0,)), or end the spatial part before "
        "with tile.full_tensor(), which gathers the whole tensor on every rank",
    )


def _cut_letters(operand: Tensor, letters: Letters) -> frozenset[Hashable]:
    if not isinstance(operand, Tile):
        return frozenset()
    return frozenset(letters[d] for d in operand.placement.cut_dims)


def _reference(func: Any, operands: Sequence[Tensor], letters: Sequence[Letters]) -> int:
    """The operand whose cuts the others follow: all that they are cut in, it is too."""
    tiles = [i for i, operand in enumerate(operands) if isinstance(operand, Tile)]
    cuts = {i: _cut_letters(operands[i], letters[i]) for i in tiles}
    reference = max(tiles, key=lambda i: len(cuts[i]))
    if not all(cut <= cuts[reference] for cut in cuts.values()):
        _refuse_attention(func)
    for i in tiles:
        axes = [letters[i][d] for d in operands[i].placement.factors]  # type: ignore[attr-defined]
        if any(letters[i].count(letter) > 1 for letter in axes):
            refuse(func, "a diagonal along a split dimension", "Call .full_tensor() first")
    return reference


def _broadcast_letters(
    func: Any, operands: Sequence[Tensor], letters: Sequence[Letters], reference: int
) -> frozenset[Hashable]:
    """Letters of axes along which the reference has one row and others have more; none is cut."""
    tile, found = operands[reference], set()
    for dim, n in tile.placement.global_sizes.items():  # type: ignore[attr-defined]
        letter, is_cut = letters[reference][dim], dim in tile.placement.cut_dims  # type: ignore[attr-defined]
        for operand, names in zip(operands, letters, strict=True):
            extent = operand.shape[names.index(letter)] if letter in names else n
            if n == 1 != extent:
                found.add(letter)
            elif is_cut and extent not in (1, n):
                raise LayoutMismatch(
                    f"{getattr(func, '__name__', func)} of {[tuple(o.shape) for o in operands]}: "
                    f"the sizes {n} and {extent} of a common dimension differ"
                )
        if is_cut and letter in found:
            refuse(func, "a tile of one row is broadcast", "Expand it first")
    return frozenset(found)


def _check_extents(func: Any, operands: Sequence[Tensor], letters: Sequence[Letters]) -> None:
    """Sizes that do not fit, in an error that speaks of the whole image."""
    found: dict[Hashable, int] = {}
    for operand, names in zip(operands, letters, strict=True):
        for letter, n in zip(names, operand.shape, strict=True):
            if n != 1 and found.setdefault(letter, n) != n:
                raise RuntimeError(
                    f"{getattr(func, '__name__', func)} of {[tuple(o.shape) for o in operands]}: "
                    f"the sizes {found[letter]} and {n} of a common dimension differ"
                )


def _check_as_others(compute: Callable[..., Tensor], parts: Sequence[Tensor]) -> None:
    """PyTorch checks less where there is nothing; what the other ranks refuse is refused here."""
    cells = [part.new_zeros([max(n, 1) for n in part.shape]) for part in parts]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        compute(*cells)


@lru_cache(maxsize=16384)
def _kept(
    placement: Placement, reference: Letters, output: Letters, broadcast: frozenset[Hashable]
) -> Placement | None:
    """The placement of the output: the axes whose letter it has. The others are not cut."""
    lost = [
        d for d, x in enumerate(reference, -len(reference)) if x not in output or x in broadcast
    ]
    rest = placement.without(lost, keep=True)
    return None if rest is None else _followed(rest, reference, output)


@lru_cache(maxsize=16384)
def _followed(placement: Placement, reference: Letters, letters: Letters) -> Placement:
    """Where an operand with these letters is cut; those that it lacks lie beyond its dimensions."""
    where: dict[int, int] = {}
    for i, d in enumerate(sorted(placement.factors)):
        letter = reference[d]
        beyond = -len(letters) - len(placement.factors) + i
        where[d] = letters.index(letter) - len(letters) if letter in letters else beyond
    return placement.moved(where)


def _part(operand: Tensor, target: Placement | None) -> Tensor:
    """This rank's part of an operand, as a plain tensor."""
    if target is None:
        return alias(operand)
    if not isinstance(operand, Tile):
        return narrowed(operand, target)
    if operand.placement == target or _essence(operand.placement) == target:
        return alias(operand)
    shape = operand.shape
    if all(len(shape) >= -d and shape[d] == n for d, n in target.global_sizes.items()):
        return alias(redistribute(operand, target))
    # It lacks a dimension that the others are cut in, so it is the smaller one: to every rank.
    return narrowed(operand.full_tensor(), target)


@lru_cache(maxsize=16384)
def _essence(placement: Placement) -> Placement | None:
    """The placement without axes that are not cut; None if none is."""
    return placement.without(tuple(set(placement.dims) - set(placement.cut_dims)), keep=True)


# ── products of two ──────────────────────────────────────────────────────────────────────────────


def _batch(operand: Tensor) -> Letters:
    """Letters of all but two dimensions, which broadcast: numbered from the last one."""
    return tuple(range(operand.ndim - 2, 0, -1))


@spatial_op_named("matmul", "__matmul__", "mm", "bmm", "mv", "dot", "vdot")
def matmul(func: Any, input: Tensor, other: Tensor) -> Tensor:
    """Any mix of tiles and plain tensors; vectors as in torch.matmul."""
    left = (*_batch(input), "row", "sum")[-input.ndim :]
    right = ("sum",) if other.ndim == 1 else (*_batch(other), "sum", "column")
    batch = max(_batch(input), _batch(other), key=len)
    output = (*batch, *left[-2:-1], *(right[-1:] if other.ndim > 1 else ()))
    return contracted(func, (input, other), (left, right), output, func)


@spatial_op(torch.Tensor.__rmatmul__)
def reflected_matmul(func: Any, input: Tensor, other: Any) -> Any:
    if not isinstance(other, Tensor):
        return NotImplemented
    return matmul(torch.matmul, other, input)


@spatial_op_named("addmm", "addmv", "baddbmm")
def add_matmul(
    func: Any, input: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    product = torch.matmul(a, b)
    scaled = product if alpha == 1 else product * alpha
    added = input if beta == 1 else input * beta
    return scaled if beta == 0 else (scaled + added).to(product.dtype)


@spatial_op(torch.functional.tensordot)
def tensordot(func: Any, a: Tensor, b: Tensor, dims: Any = 2, out: Any = None) -> Tensor:
    if out is not None:
        refuse(func, "out= cannot be a tile's memory", "Use the returned tile")
    if isinstance(dims, int):
        dims = (range(-dims, 0), range(dims))
    summed = ([int(i) % a.ndim for i in dims[0]], [int(j) % b.ndim for j in dims[1]])
    left: list[Hashable] = [("a", i) for i in range(a.ndim)]
    right: list[Hashable] = [("b", j) for j in range(b.ndim)]
    for i, j in zip(*summed, strict=True):
        left[i] = right[j] = i
    output = tuple(x for x in (*left, *right) if isinstance(x, tuple))
    letters = (tuple(left), tuple(right))
    return contracted(func, (a, b), letters, output, lambda x, y: func(x, y, summed))


@spatial_op_named("linear")
def linear(func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer over the last dimension. Where that is split, every rank has its columns."""
    rows = tuple(("row", i) for i in range(input.ndim - 1))
    columns = ("out",) * (weight.ndim - 1)
    split = any(isinstance(t, Tile) and -1 in t.placement.cut_dims for t in (input, weight))
    operands = [input, weight] if bias is None or split else [input, weight, bias]
    letters = [(*rows, "in"), (*columns, "in"), columns][: len(operands)]
    out = contracted(func, operands, letters, (*rows, *columns), func)
    # In the dtype of the product, which autocast may have chosen.
    return out + bias.to(out.dtype) if split and bias is not None else out


# ── einsum ───────────────────────────────────────────────────────────────────────────────────────


@spatial_op(torch.functional.einsum)
def einsum(func: Any, equation: str, *operands: Tensor) -> Tensor:
    letters, output = parsed(equation, tuple(operand.ndim for operand in operands))
    return contracted(
        func, operands, letters, output, lambda *parts: torch.einsum(equation, *parts)
    )


@lru_cache(maxsize=4096)
def parsed(equation: str, ndims: tuple[int, ...]) -> tuple[tuple[Letters, ...], Letters]:
    """The letters of the operands and of the output; an ellipsis is numbers from the right."""
    inputs, arrow, output = equation.replace(" ", "").replace("...", ".").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ndims):
        raise ValueError(f"einsum: {equation!r} has {len(terms)} operands, and {len(ndims)} given")
    spans = []
    for term, n in zip(terms, ndims, strict=True):
        spans.append(n - len(term.replace(".", "")))
        if spans[-1] < 0 or (spans[-1] > 0 and "." not in term):
            raise ValueError(f"einsum: {term!r} in {equation!r} for a tensor of {n} dimensions")

    def spelled(term: str, span: int) -> Letters:
        rest = tuple(range(span, 0, -1))
        return tuple(x for c in term for x in (rest if c == "." else (c,)))

    if not arrow:
        plain = inputs.replace(",", "").replace(".", "")
        output = "." + "".join(sorted(c for c in set(plain) if plain.count(c) == 1))
    letters = tuple(spelled(term, span) for term, span in zip(terms, spans, strict=True))
    return letters, spelled(output, max(spans, default=0))


# ── attention ────────────────────────────────────────────────────────────────────────────────────


@spatial_op_named("scaled_dot_product_attention")
def attention(
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """Where the batch or the heads are split, or the queries alone, each rank has its own."""
    operands = [query, key, value, *([] if attn_mask is None else [attn_mask])]
    names = [("query", "in"), ("key", "in"), ("key", "out"), ("query", "key")]
    pairs = zip(operands, names, strict=False)
    letters: list[Letters] = [(*_batch(x), *own)[-x.ndim :] for x, own in pairs]
    tile = next(t for t in operands if isinstance(t, Tile))
    if is_causal and "query" in _cut_letters(query, letters[0]):
        _refuse_attention(func)

    def compute(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        with own_stream(q, tile.placement) if dropout_p else nullcontext():
            return _with_mask(func(q, k, v, mask, dropout_p, is_causal, **options), mask)

    output = (*_batch(query), "query", "out")
    return contracted(func, operands, letters, output, compute, linear=False)


def _with_mask(out: Tensor, mask: Tensor | None) -> Tensor:
    """An empty result keeps the mask in its graph, which PyTorch forgets there."""
    if mask is None or not mask.requires_grad or out.numel():
        return out
    return out + mask.sum() * 0


@spatial_op(F.multi_head_attention_forward)
def multi_head_attention(
    func: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """(tokens, batch, features): only the batch may be split, and each rank has its own."""
    tile = next(t for t in (query, key, value) if isinstance(t, Tile))
    placement = _essence(tile.placement)
    if placement is not None and (placement.cut_dims != (-2,) or query.ndim != 3):
        _refuse_attention(func)
    mask, padding = kwargs.get("attn_mask"), kwargs.get("key_padding_mask")
    if mask is not None and mask.ndim != 2:
        refuse(func, "a mask for each image and head is not supported on tiles", "Use a 2-D mask")
    parts = {id(t): _part(t, placement) for t in (query, key, value)}
    wanted = kwargs.get("need_weights", True)
    if padding is not None:
        # Without weights PyTorch would ask an empty batch for the length of its masks.
        kwargs |= {"key_padding_mask": _part(padding, placement), "need_weights": True}
    dropout = args[7] if kwargs.get("training", True) else 0.0
    with own_stream(tile, tile.placement) if dropout else nullcontext(), no_intercept():
        out, weights = func(*(parts[id(t)] for t in (query, key, value)), *args, **kwargs)
    out, weights = _with_mask(out, mask), weights if wanted else None
    if placement is None:
        return (wrap(out, query.placement) if isinstance(query, Tile) else out), weights
    if weights is not None:
        weights = wrap(weights, placement.moved({-2: -weights.ndim}))
    return wrap(out, placement), weights
