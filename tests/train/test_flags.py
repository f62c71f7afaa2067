"""The flags are frozen: scripts and job files count on them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from mpi4dl.errors import UsageError
from mpi4dl.train import KINDS, flags
from mpi4dl.train.arguments import Parser, in_flags

FROZEN = Path(__file__).parent / "flags.txt"


def described(action: argparse.Action) -> str:
    """A line of the frozen list: names, values and default."""
    names = ", ".join(action.option_strings)
    choices = f" {{{','.join(map(str, action.choices))}}}" if action.choices else ""
    number = " optional" if action.nargs == "?" else " switch" if action.nargs == 0 else ""
    return f"{names}{choices}{number} = {action.default!r}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_flags_are_those_that_were_frozen(kind):
    parser = flags(KINDS[kind], Parser(prog="bench", add_help=False))
    found = "\n".join(map(described, parser._actions)) + "\n"
    assert found == FROZEN.read_text()


def test_flags_may_be_shortened_as_they_always_could():
    parser = flags(KINDS["spatial"], Parser(prog="bench"))
    assert parser.parse_args(["--image", "64", "--num-spatial", "2"]).image_size == 64


def test_lists_are_taken_as_they_are_written():
    parser = flags(KINDS["spatial"], Parser(prog="bench"))
    assert parser.parse_args(["--num-spatial-parts", "4,2"]).num_spatial_parts == "4,2"


def test_errors_are_raised_and_not_printed(capsys):
    with pytest.raises(UsageError, match=r"--parts is 'two'; it must be an integer"):
        flags(KINDS["layer"], Parser(prog="bench")).parse_args(["--parts", "two"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("spatial_size is 3, and there are 2", "--spatial-size is 3, and there are 2"),
        ("use halo_d2=True, or", "use --halo-D2, or"),
        ("balance (3, 4) is for 7", "--balance 3,4 is for 7"),
        ("use times 2, or master_comm_opt=False", "use --times 2, or no --enable-master-comm-opt"),
        ("equally many parts in both", "equally many parts in both"),
        ("(replicas 1 × times 2 × parts 3)", "(replicas 1 × --times 2 × --parts 3)"),
        ("2 stages on 5 ranks (4 + 1 = 5)", "2 stages on 5 ranks (4 + 1 = 5)"),
    ],
)
def test_messages_of_plans_name_flags(message, expected):
    assert in_flags(message) == expected
