"""Every schedule, in every small configuration: it can be run, in the published time and memory."""

from __future__ import annotations

import importlib
import textwrap

import pytest

from mpi4dl.schedule import (
    Kind,
    forward_only,
    loop,
    lower,
    make_schedule,
    render,
    simulate,
    validate,
    vee,
)
from mpi4dl.schedule.gems import gems
from mpi4dl.schedule.interleaved import interleaved
from schedule.configurations import NAMES, of

ACTORS = range(1, 9)
MICRO_BATCHES = range(1, 17)


def percent(schedule, **costs) -> float:
    return round(100 * simulate(schedule, **costs).bubble, 1)


# ── they can be run ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("actors", ACTORS)
@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_is_valid_and_holds_what_is_published(name, actors):
    for micro_batches in MICRO_BATCHES:
        report = validate(of(name, actors, micro_batches))
        assert report.peak_live == PEAKS[name](actors, micro_batches, report.peak_live)


@pytest.mark.parametrize("stages_per_actor", [2, 3, 4])
@pytest.mark.parametrize("actors", [1, 2, 3, 4, 5])
def test_interleaved_with_any_number_of_micro_batches_has_the_published_bubble(
    actors, stages_per_actor
):
    for micro_batches in MICRO_BATCHES:
        schedule = interleaved(actors, micro_batches, stages_per_actor)
        report = validate(schedule)
        groups = max(1, micro_batches // actors)
        largest = -(-micro_batches // groups)
        assert report.peak_live == tuple(
            min(
                (stages_per_actor - 1) * largest + 2 * (actors - 1 - a) + 1,
                stages_per_actor * micro_batches,
            )
            for a in range(actors)
        )
        if micro_batches >= actors:
            work = 3 * stages_per_actor * micro_batches
            assert simulate(schedule).length == work + 3 * (actors - 1)


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("actors", [1, 2, 3, 4])
def test_gems_holds_one_batch_however_many_there_are(actors, parts):
    for times in range(1, 7):
        schedule = gems(actors, parts, times)
        assert validate(schedule).peak_live == (parts,) * actors
        assert schedule.placement.directions == min(times, 2)
        assert schedule.directions == tuple(i // parts % 2 for i in range(times * parts))


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def at_most(most: int, peaks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(peak, most) for peak in peaks)


def of_chimera(p: int, m: int, found: tuple[int, ...]) -> tuple[int, ...]:
    """Published as a range, D/2 + 1 to D, for even D and enough micro-batches to fill it."""
    if p % 2 == 0 and m >= p:
        assert min(found) >= p // 2 + 1
    return at_most(min(p, m), found)


def of_zb_v(p: int, m: int, found: tuple[int, ...]) -> tuple[int, ...]:
    """2·P halves of a micro-batch, everywhere, when the pattern is full."""
    return (2 * p,) * p if m >= 2 * p - 1 else at_most(2 * min(p, m), found)


PEAKS = {
    "layer": lambda p, m, found: (1,) * p,
    "gpipe": lambda p, m, found: (m,) * p,
    "1f1b": lambda p, m, found: tuple(min(m, p - actor) for actor in range(p)),
    "interleaved": lambda p, m, found: at_most(max(m + 2 * p, 3 * p - 1), found),
    "zb-h1": lambda p, m, found: (min(m, p),) * p,
    "zb-v": of_zb_v,
    "gems": lambda p, m, found: (1,) * p,
    "chimera": of_chimera,
    "zb-chimera": of_chimera,
}


# ── bubbles ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "at_4_and_4", "at_8_and_32"),
    [
        ("gpipe", 42.9, 17.9),
        ("1f1b", 42.9, 17.9),
        ("interleaved", 27.3, 9.9),
        ("gems", 66.7, 82.4),
        ("zb-h1", 20.0, 6.8),
    ],
)
def test_published_bubbles(name, at_4_and_4, at_8_and_32):
    assert percent(of(name, 4, 4)) == at_4_and_4
    assert percent(of(name, 8, 32)) == at_8_and_32


@pytest.mark.parametrize("p", ACTORS)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 8, 16])
def test_bubbles_by_formula(p, m):
    def length(name):
        return simulate(of(name, p, m)).length

    assert length("layer") == 3 * p * m
    assert length("gpipe") == length("1f1b") == 3 * (m + p - 1)
    assert length("gems") == m * (2 * p + 1) + (m % 2) * (p - 1)
    if m >= p:
        assert length("zb-h1") == 3 * m + p - 1
    if m >= 2 * p - 1:
        assert length("zb-v") == 6 * m
    if p % 2 == 0 and m % p == 0:
        assert length("chimera") == 3 * m + 2 * (p - 2)
        assert length("zb-chimera") <= 3 * m + p // 2


@pytest.mark.parametrize(("p", "m", "slots", "twice"), [(4, 4, 20.0, 25.0), (8, 32, 8.6, 11.1)])
def test_the_two_bubbles_of_chimera(p, m, slots, twice):
    """The published (D-2)/(2N+D-2) counts forwards and backwards as slots of equal length. With
    backwards of twice the length it is (D-2)/(3N/2+D-2), and with split backwards below either.
    """
    assert slots == round(100 * (p - 2) / (2 * m + p - 2), 1)
    assert twice == round(100 * (p - 2) / (3 * m / 2 + p - 2), 1)
    assert percent(of("chimera", p, m), backward=1) == slots
    assert percent(of("chimera", p, m)) == twice
    assert percent(of("zb-chimera", p, m)) < slots


def test_chimera_of_four_cannot_be_faster_than_it_is():
    """Actor 1 has stage 1 and, mirrored, stage 2. No backward reaches it before four forwards and
    the last stage's backward; it has four of them; and after each, another stage has its own."""
    forward, backward = 1, 2
    least = 4 * forward + backward + 4 * backward + backward
    assert simulate(of("chimera", 4, 4)).makespan == least


@pytest.mark.parametrize("p", ACTORS)
def test_zb_v_idles_only_for_want_of_micro_batches(p):
    """An actor that starts with all m micro-batches sees the first again after 2·P - 1 forwards."""
    for m in MICRO_BATCHES:
        idle = simulate(of("zb-v", p, m)).length - 6 * m
        assert idle >= max(0, 2 * p - 1 - m)
        assert idle <= max(0, 2 * (2 * p - 1 - m))
    assert simulate(of("zb-v", p, p)).length == 6 * p + p - 1  # the least, as just said
    assert percent(of("zb-v", 8, 32)) == 0
    assert percent(make_schedule("zb-v", 4, 4)) == 0  # four stages, on two actors
    assert percent(of("zb-v", 4, 4)) == round(100 * 3 / 27, 1)  # eight stages, on four


@pytest.mark.parametrize("p", ACTORS)
def test_zero_bubble_is_never_slower_than_what_it_improves(p):
    for m in MICRO_BATCHES:
        assert simulate(of("zb-h1", p, m)).length <= simulate(of("1f1b", p, m)).length
        assert simulate(of("zb-chimera", p, m)).length <= simulate(of("chimera", p, m)).length


# ── evaluation ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "placement",
    [
        *map(loop, ACTORS),
        loop(3, 2),
        loop(4, 3),
        *map(vee, ACTORS),
        *(loop(p).mirrored() for p in ACTORS),
    ],
    ids=lambda placement: str(placement.table),
)
def test_evaluation(placement):
    for m in MICRO_BATCHES:
        schedule = forward_only(placement, m)
        report = validate(schedule)
        assert {action.kind for _, action in schedule} == {Kind.FORWARD}
        assert report.peak_live == (0,) * placement.actors
        assert not any(event[0].kind is Kind.REDUCE for event in lower(schedule).events)


def test_evaluation_fills_the_pipeline_and_nothing_else():
    for m in MICRO_BATCHES:
        assert simulate(forward_only(loop(4), m)).makespan == m + 3
        assert simulate(forward_only(loop(4), m)).bubble == 0
        assert simulate(forward_only(vee(4), m)).makespan >= 2 * m


# ── drawings ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("module", "schedule"),
    [
        ("layer", of("layer", 3, 2)),
        ("gpipe", of("gpipe", 3, 3)),
        ("one_f_one_b", of("1f1b", 3, 4)),
        ("interleaved", of("interleaved", 2, 3)),
        ("zb_h1", of("zb-h1", 3, 4)),
        ("zb_v", of("zb-v", 2, 3)),
        ("gems", of("gems", 3, 2)),
        ("chimera", of("chimera", 4, 4)),
        ("forward_only", forward_only(loop(3), 4)),
    ],
)
def test_the_drawing_in_the_module_is_what_the_module_makes(module, schedule):
    text = importlib.import_module(f"mpi4dl.schedule.{module}").__doc__
    assert textwrap.indent(render(simulate(schedule)), "    ") in text
