"""What the schedules cost, and what they look like.

python -m mpi4dl.schedule 4 8             all of them, on 4 actors with 8 micro-batches
python -m mpi4dl.schedule 4 8 1f1b        one of them: its drawing, its lists, its report
python -m mpi4dl.schedule mine.txt        one from a file
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import ScheduleError
from .overview import on_actors, portrait, table
from .text import load


def main(arguments: Sequence[str]) -> str:
    if len(arguments) == 1 and not arguments[0].isdecimal():
        return portrait(load(Path(arguments[0]).read_text(encoding="utf-8")))
    if len(arguments) not in (2, 3) or not all(map(str.isdecimal, arguments[:2])):
        raise ScheduleError(f"expected ACTORS MICRO_BATCHES [NAME], or a file\n\n{__doc__}")
    actors, micro_batches = map(int, arguments[:2])
    if len(arguments) == 2:
        return table(actors, micro_batches)
    return portrait(on_actors(arguments[2], actors, micro_batches))


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except ScheduleError as error:
        sys.exit(str(error))
