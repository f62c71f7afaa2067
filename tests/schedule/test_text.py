"""Schedules as text: what is written can be read, and golden files hold what was agreed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpi4dl.errors import ScheduleError
from mpi4dl.schedule import dump, load, lower, make_schedule, validate
from schedule.configurations import NAMES, of

GOLDEN = Path(__file__).parent / "golden"

PART = "\nlowered\n"


def golden_text(name: str) -> str:
    """Three actors and four micro-batches: both odd and even, more micro-batches than actors."""
    schedule = of(name, 3, 4)
    return f"{dump(schedule)}{PART}{lower(schedule)}\n"


@pytest.mark.parametrize("name", NAMES)
def test_golden(name):
    """After a change that is meant: delete the file, run this twice, and read the difference."""
    path = GOLDEN / f"{name}.txt"
    if not path.exists():
        path.write_text(golden_text(name), encoding="utf-8")
        pytest.fail(f"{path.name} was missing and is there now: read it before you commit it")
    assert golden_text(name) == path.read_text(encoding="utf-8")


def test_there_are_no_other_golden_files():
    assert {path.stem for path in GOLDEN.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_golden_files_are_schedules(name):
    text, _, _ = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").partition(PART)
    validate(load(text))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("actors", [1, 4])
@pytest.mark.parametrize("micro_batches", [1, 5])
def test_what_is_written_reads_the_same(name, actors, micro_batches):
    schedule = of(name, actors, micro_batches)
    assert load(dump(schedule)) == schedule


def test_the_text():
    assert dump(make_schedule("gems", 2, 1, times=2)) == (
        "schedule gems\n"
        "stages 0 1\n"
        "mirrored 1 0\n"
        "micro-batches 0 1\n"
        "actor 0: 0F0 0B0 1F1' 1B1'\n"
        "actor 1: 1F0 1B0 0F1' 0B1'\n"
    )


def test_empty_lines_and_indentation_do_not_matter():
    schedule = make_schedule("gpipe", 2, 2)
    assert load("\n\n  ".join(dump(schedule).splitlines())) == schedule


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("actor 1", "actor 2", "'actor 2' stands where actor 1 is expected"),
        ("stages 0 1", "", r"missing \['stages'\]"),
        ("schedule gpipe", "schedule gpipe\nauthor me", r"unknown \['author'\]"),
        ("micro-batches 2", "micro-batches two", "'two' should be numbers"),
        ("micro-batches 2", "micro-batches 2 3", "should be the number of micro-batches"),
        ("micro-batches 2", "micro-batches", "should be the number of micro-batches"),
        ("1F0", "1G0", "'1G0' is no action"),
        ("stages 0 1", "stages 0 2", "without gaps"),
        ("stages 0 1", "stages 0 1 2", "2 lists for 3 actors"),
    ],
)
def test_what_cannot_be_read(old, new, why):
    text = dump(make_schedule("gpipe", 2, 2)).replace(old, new)
    with pytest.raises(ScheduleError, match=why):
        load(text)
