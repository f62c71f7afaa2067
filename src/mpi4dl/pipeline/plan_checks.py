"""What cannot be: each check names the culprit, both numbers, and what would work nearest to it.

The order matters: a check may count on those before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from ..errors import GeometryError, PlanError, ScheduleError
from ..geometry import Layout
from ..schedule import SCHEDULES
from ..schedule.schedule import counted
from .ranks import placement_of
from .settings import Settings

PRECISIONS = ("fp32", "bf16", "fp16")

BOTH_WAYS = ", ".join(name for name, recipe in SCHEDULES.items() if recipe.bidirectional)

_AT_LEAST_ONE = "split_size parts local_dp replicas times fused_layers".split()


def check(settings: Settings) -> None:
    """Refuse what no number of ranks and no model could carry out."""
    for reason in _reasons(settings):
        raise PlanError(reason)


def _reasons(settings: Settings) -> Iterator[str]:
    yield from _too_small(settings)
    yield from _spatial_stages(settings)
    yield from _slices(settings)
    yield from _orders(settings)
    yield from _shared_actors(settings)
    yield from _balance(settings)
    yield from _options(settings)


def _too_small(settings: Settings) -> Iterator[str]:
    for name in _AT_LEAST_ONE:
        if getattr(settings, name) < 1:
            yield f"{name} is {getattr(settings, name)}; it must be at least 1"
    if settings.spatial_size < 0:
        yield f"spatial_size is {settings.spatial_size}; it must be at least 0"
    listed = settings.num_spatial_parts
    if listed == ():
        yield "num_spatial_parts is an empty list; use 1 for a plan without spatial stages"
    for count in listed if isinstance(listed, tuple) else (listed,):
        if count < 1:
            yield f"num_spatial_parts is {listed}; a stage has at least 1 part"


def _spatial_stages(settings: Settings) -> Iterator[str]:
    split, spatial = settings.split_size, settings.spatial_size
    if spatial > split:
        listed = settings.num_spatial_parts
        fewer = f", with {split} of the numbers {listed}" if isinstance(listed, tuple) else ""
        yield (
            f"spatial_size is {spatial}, and there {counted_stages(split)} (split_size): use "
            f"spatial_size {split}{fewer}, or split_size {spatial}"
        )
    lists: dict[str, tuple[object, ...]] = {
        "num_spatial_parts": settings.spatial_parts,
        "slice_method": settings.slice_methods,
    }
    for name, values in lists.items():
        if len(values) != spatial:
            one = f"use one value for all of them, such as {name}={values[0]!r}, or " * bool(values)
            size = f", or spatial_size {len(values)}" if 0 < len(values) <= split else ""
            yield (
                f"{name} lists {counted(len(values), 'stage')} {values}, and spatial_size is "
                f"{spatial}: {one}list {spatial}{size}"
            )
    if spatial == split and settings.local_dp > 1:
        yield (
            f"local_dp is {settings.local_dp}, and all {counted(split, 'stage')} are spatial: no "
            f"stage is left to share the batch in. Use local_dp 1, or split_size {split + 1}"
        )


def _slices(settings: Settings) -> Iterator[str]:
    methods = settings.slice_methods or (str(settings.slice_method),)
    counts = settings.spatial_parts or (0,)
    for stage, (parts, method) in enumerate(zip(counts, methods, strict=True)):
        # Without spatial stages there is nothing to cut, but a word that means nothing is a slip.
        wanted = parts or _cells(method)
        try:
            Layout.sliced((1,) * 8, wanted, method)
        except GeometryError as error:
            cells = _cells(method)
            remedy = f"; use num_spatial_parts {cells}, or square" if cells > 1 else ""
            yield f"slice_method of stage {stage}: {error}{remedy}"


def _cells(method: str) -> int:
    """Parts of a grid such as 2x3; 1 if it is none."""
    product = 1
    for factor in method.split("x"):
        product *= int(factor) if factor.isdecimal() else 1
    return product


def _orders(settings: Settings) -> Iterator[str]:
    recipe = SCHEDULES.get(settings.schedule)
    if recipe and not recipe.bidirectional and settings.times > 1:
        yield (
            f"times is {settings.times}, and {settings.schedule} trains 1 batch a step: use parts "
            f"{settings.parts * settings.times}, or one of {BOTH_WAYS}"
        )
    try:
        placement_of(settings)
    except ScheduleError as error:
        yield str(error)


def _shared_actors(settings: Settings) -> Iterator[str]:
    """Stages of one actor are on the same ranks, so there must be equally many of them."""
    placement = placement_of(settings)
    for actor in range(placement.actors):
        stages = [stage for direction, stage in placement.held(actor) if direction == 0]
        first = stages[0]
        for stage in stages[1:]:
            here, there = settings.tiles(first), settings.tiles(stage)
            if here == there:
                continue
            alike = f"local_dp {here}, or " * (
                settings.spatial_size < settings.split_size and len({*settings.spatial_parts}) == 1
            )
            yield (
                f"{settings.schedule} puts the stages {first} and {stage} on the same ranks, and "
                f"they need {here} and {there}. Use {alike}equally many parts in both, or a "
                "schedule with one stage on each rank, such as 1f1b"
            )


def _balance(settings: Settings) -> Iterator[str]:
    balance, split = settings.balance, settings.split_size
    if balance is None:
        return
    if len(balance) != split:
        yield (
            f"balance lists the layers of {counted(len(balance), 'stage')} {balance}, and there "
            f"{counted_stages(split)} (split_size): list {split} numbers, or use split_size "
            f"{len(balance)}"
        )
    if any(layers < 1 for layers in balance):
        yield (
            f"balance is {balance}; every stage needs at least 1 layer: with {sum(balance)} "
            f"layers, split_size is at most {max(sum(balance), 1)}"
        )


def _options(settings: Settings) -> Iterator[str]:
    if settings.fused_layers > 1 and not settings.halo_d2:
        yield (
            f"fused_layers is {settings.fused_layers}, and halo_d2 is off: use halo_d2=True, or "
            "fused_layers 1"
        )
    if settings.checkpoint_activations < 0:
        yield (
            f"checkpoint_activations is {settings.checkpoint_activations}; use False, True, or a "
            "number of layers"
        )
    if settings.precision not in PRECISIONS:
        near = get_close_matches(settings.precision, PRECISIONS, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield f"precision is {settings.precision!r}, not one of {', '.join(PRECISIONS)}{hint}"
    if settings.master_comm_opt and not SCHEDULES[settings.schedule].bidirectional:
        yield (
            f"master_comm_opt is for two directions, and {settings.schedule} has 1: use one of "
            f"{BOTH_WAYS}, or master_comm_opt=False"
        )
    if settings.master_comm_opt and placement_of(settings).directions == 1:
        yield (
            f"master_comm_opt is for two directions, and {settings.schedule} with times 1 uses 1: "
            "use times 2, or master_comm_opt=False"
        )


def counted_stages(count: int) -> str:
    return f"is {count} stage" if count == 1 else f"are {count} stages"
