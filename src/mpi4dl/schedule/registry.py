"""All training schedules, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from ..errors import ScheduleError
from .chimera import chimera, zb_chimera
from .gems import gems
from .gpipe import gpipe
from .interleaved import interleaved
from .layer import layer
from .one_f_one_b import one_f_one_b
from .placement import check_counts
from .schedule import Schedule, counted
from .zb_h1 import zb_h1
from .zb_v import zb_v


@dataclass(frozen=True)
class Recipe:
    """How a schedule is made, and of how many stages an actor has."""

    make: Callable[[int, int, int, int], Schedule]
    """From actors, micro-batches of a batch, stages of an actor, and batches."""
    about: str
    per_actor: int = 1
    """Stages of an actor, unless the user chooses."""
    choice: bool = False
    """Whether the user may choose how many stages an actor has."""
    bidirectional: bool = False
    """Only these repeat batches, for only they alternate between two directions."""


SCHEDULES: dict[str, Recipe] = {
    "layer": Recipe(lambda p, m, v, t: layer(p, m), "one micro-batch after the other"),
    "gpipe": Recipe(lambda p, m, v, t: gpipe(p, m), "all forwards, then all backwards"),
    "1f1b": Recipe(
        lambda p, m, v, t: one_f_one_b(p, m),
        "as fast, in the memory of as many as there are actors",
    ),
    "interleaved": Recipe(
        lambda p, m, v, t: interleaved(p, m, v),
        "1F1B with several stages an actor",
        per_actor=2,
        choice=True,
    ),
    "zb-h1": Recipe(lambda p, m, v, t: zb_h1(p, m), "1F1B with split backwards"),
    "zb-v": Recipe(
        lambda p, m, v, t: zb_v(p, m), "two stages an actor, split backwards", per_actor=2
    ),
    "gems": Recipe(
        lambda p, m, v, t: gems(p, m, t), "batches in alternating directions", bidirectional=True
    ),
    "chimera": Recipe(
        lambda p, m, v, t: chimera(p, m * t), "two directions at once", bidirectional=True
    ),
    "zb-chimera": Recipe(
        lambda p, m, v, t: zb_chimera(p, m * t),
        "two directions at once, split backwards",
        bidirectional=True,
    ),
}


def make_schedule(
    name: str,
    stages: int,
    micro_batches: int,
    *,
    stages_per_actor: int | None = None,
    times: int = 1,
) -> Schedule:
    """The schedule called `name`, for a model of so many stages.

    A step trains `times` batches of `micro_batches` micro-batches each; `times` above 1 is for
    the bidirectional schedules. Only `interleaved` has a choice of `stages_per_actor`.
    """
    recipe = named(name)
    check_counts(stages=stages, micro_batches=micro_batches, times=times)
    if times > 1 and not recipe.bidirectional:
        both = [known for known, other in SCHEDULES.items() if other.bidirectional]
        raise ScheduleError(
            f"{name} trains one batch a step, and times is {times}: use {micro_batches * times} "
            f"micro-batches instead, or one of {', '.join(both)}"
        )
    per_actor = _stages_per_actor(name, recipe, stages, stages_per_actor)
    return recipe.make(stages // per_actor, micro_batches, per_actor, times)


def named(name: str) -> Recipe:
    if name not in SCHEDULES:
        near = get_close_matches(name.lower().replace("_", "-"), SCHEDULES, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ScheduleError(f"there is no schedule {name!r}, only {', '.join(SCHEDULES)}{hint}")
    return SCHEDULES[name]


def _stages_per_actor(name: str, recipe: Recipe, stages: int, wanted: int | None) -> int:
    per_actor = recipe.per_actor if wanted is None else wanted
    least = 2 if recipe.choice else recipe.per_actor
    if per_actor < least or (per_actor > recipe.per_actor and not recipe.choice):
        only = f"at least {least} stages" if recipe.choice else counted(least, "stage")
        raise ScheduleError(
            f"{name} puts {only} on every actor, and stages_per_actor is {per_actor}; "
            "use interleaved for 2 and more, and 1f1b, zb-h1 or gpipe for 1"
        )
    if stages % per_actor:
        fewer = stages // per_actor * per_actor
        near = f"{fewer} or {fewer + per_actor}" if fewer else str(per_actor)
        divisors = [d for d in range(2, stages + 1) if stages % d == 0 and recipe.choice]
        or_else = f", or stages_per_actor {' or '.join(map(str, divisors))}" if divisors else ""
        raise ScheduleError(
            f"{name} puts {counted(per_actor, 'stage')} on every actor, and "
            f"{counted(stages, 'stage')} cannot be shared out like that; "
            f"use {near} stages{or_else}"
        )
    return per_actor
