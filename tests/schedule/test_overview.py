"""The command that shows schedules, and the page about them."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from mpi4dl.errors import ScheduleError
from mpi4dl.schedule import dump, make_schedule
from mpi4dl.schedule.__main__ import main
from mpi4dl.schedule.overview import portrait, table
from schedule.configurations import NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text(encoding="utf-8")


def test_all_schedules_side_by_side():
    rows = main(["3", "5"]).splitlines()
    assert [re.match(r"\| `(.+?)`", row)[1] for row in rows[2:]] == list(NAMES)
    assert rows[4] == "| `1f1b` | 3 | 28.6% | 28.6% | 3 | 1× | 10 |"
    assert len({row.count("|") for row in rows}) == 1


def test_one_schedule():
    assert main(["2", "1", "layer"]) == (
        "layer: 2 stages on 2 actors, 1 micro-batch\n"
        "  actor                  0    1\n"
        "  live activations       1    1\n"
        "  received, not used     1    1\n"
        "  messages sent          1    1\n"
        "  bubble 50.0%\n"
        "\n"
        "0 │ F0 ·  ·  ·  B0 ──\n"
        "1 │ ·  F0 B0 ── ·  ·\n"
        "\n"
        "actor 0: 0F0 0SF0 0RB0 0B0 0R\n"
        "actor 1: 1RF0 1F0 1B0 1SB0 1R"
    )


def test_a_schedule_from_a_file(tmp_path):
    schedule = make_schedule("zb-v", 4, 2)
    path = tmp_path / "mine.txt"
    path.write_text(dump(schedule), encoding="utf-8")
    assert main([str(path)]) == portrait(schedule)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "expected ACTORS MICRO_BATCHES"),
        (["4"], "expected ACTORS"),
        (["4", "four"], "expected ACTORS"),
        (["4", "4", "1f1"], "did you mean 1f1b"),
        (["0", "4"], "at least 1"),
    ],
)
def test_what_cannot_be_shown(arguments, why):
    with pytest.raises(ScheduleError, match=why):
        main(arguments)


@pytest.mark.parametrize(("actors", "micro_batches"), [(4, 4), (8, 32)])
def test_the_tables_of_the_page(actors, micro_batches):
    assert table(actors, micro_batches) in PAGE


def test_the_page_names_every_schedule():
    assert re.findall(r"^## .*`([\w-]+)`", PAGE, flags=re.M) == list(NAMES)


def test_the_examples_of_the_page():
    """Every drawing is the output of the line above it."""
    examples = "\n".join(re.findall(r"```pycon\n(.*?)```", PAGE, flags=re.S))
    test = doctest.DocTestParser().get_doctest(examples, {}, "schedules.md", None, 0)
    assert len(test.examples) > len(NAMES)
    failures: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=failures.append)
    assert not failures, "".join(failures)
