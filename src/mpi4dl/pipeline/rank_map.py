"""Which rank has what, as a picture in text.

direction 0
  stage 0          stage 1
  ┌───┬───┐        ┌───┐
  │ 0 │ 1 │   ─▶   │ 4 │
  ├───┼───┤        ╞╌╌╌╡      solid lines cut the image, dashed ones the batch
  │ 2 │ 3 │        │ 5 │
  └───┴───┘        └───┘
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest

from ..comm.mesh import Mesh
from ..geometry import Layout
from .settings import Settings, StageKind

WIDTH = 96
ARROW = "   ─▶   "
ARROW_LINE = 2  # under the title and the upper edge


def rank_map(settings: Settings, mesh: Mesh) -> str:
    """The stages of replica 0 in every direction, and where the other replicas are."""
    lines: list[str] = []
    for direction in range(mesh.directions):
        if mesh.directions > 1:
            lines.append(("direction 0", "direction 1, mirrored")[direction])
        for row in _rows([_stage(settings, mesh, direction, s) for s in range(mesh.stages)]):
            lines += [f"  {line}".rstrip() for line in row]
    return "\n".join([*lines, *_other_replicas(mesh)])


def grid_of(settings: Settings, stage: int) -> tuple[int, ...]:
    """Rows and columns of a stage's tiles; for volumes the depth goes first."""
    if settings.kind(stage) is StageKind.SPATIAL:
        return _grid(settings.tiles(stage), settings.slice_methods[stage])
    return (settings.tiles(stage), 1)


@lru_cache(maxsize=256)
def _grid(parts: int, method: str) -> tuple[int, ...]:
    """Counted in a layout that is fine enough, so that only the geometry knows the methods."""
    layout = Layout.sliced((parts,) * 8, parts, method)
    counts = [len({box[axis].start for box in layout.boxes}) for axis in range(8)]
    while len(counts) > 2 and counts[0] == 1:
        del counts[0]
    return tuple(counts)


def _stage(settings: Settings, mesh: Mesh, direction: int, stage: int) -> list[str]:
    *_, columns = grid_of(settings, stage)
    batch = settings.kind(stage) is StageKind.BATCH
    ranks = [str(rank) for rank in mesh.ranks(0, direction, stage)]
    wide = len(str(mesh.ranks_of_replica - 1))
    rows = [ranks[i : i + columns] for i in range(0, len(ranks), columns)]
    picture = _boxes(rows, wide, "╞╌╌╡" if batch else "├─┼┤")
    title = f"stage {stage}"
    across = max(len(title), len(picture[0]))
    return [line.ljust(across) for line in (title, *picture)]


def _boxes(rows: Sequence[Sequence[str]], wide: int, between: str) -> list[str]:
    def rule(ends: str) -> str:
        left, line, cross, right = tuple(ends)
        return left + cross.join([line * (wide + 2)] * len(rows[0])) + right

    lines = [rule("┌─┬┐")]
    for row in rows:
        lines.append("│" + "│".join(f" {rank:>{wide}} " for rank in row) + "│")
        lines.append(rule(between))
    return [*lines[:-1], rule("└─┴┘")]


def _rows(stages: Sequence[list[str]]) -> Iterator[list[str]]:
    """Pictures side by side, as many as a line holds."""
    row: list[str] = []
    for number, stage in enumerate(stages):
        arrow = ARROW if number else ""
        if row and len(row[0]) + len(arrow) + len(stage[0]) > WIDTH:
            yield row
            row = []
        row = _beside(row, stage, arrow)
    yield row


def _beside(row: list[str], stage: list[str], arrow: str) -> list[str]:
    blank = " " * len(arrow)
    across, width = len(row[0]) if row else 0, len(stage[0])
    return [
        (left or "").ljust(across)
        + (arrow if i == ARROW_LINE else blank)
        + (right or "").ljust(width)
        for i, (left, right) in enumerate(zip_longest(row, stage))
    ]


def _other_replicas(mesh: Mesh) -> Iterator[str]:
    for replica in range(1, mesh.replicas):
        first = replica * mesh.ranks_of_replica
        yield f"replica {replica}: the same {first} further on, ranks {first} to " + str(
            first + mesh.ranks_of_replica - 1
        )
