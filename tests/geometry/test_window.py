"""Windows against enumeration: which inputs does each output read, one kernel tap at a time."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpi4dl.errors import GeometryError
from mpi4dl.geometry import (
    ComposedWindow,
    Interval,
    SlidingWindow,
    TableWindow,
    TransposedWindow,
    WholeWindow,
    conv_size,
    pool_size,
    transposed_size,
)
from support.layouts import layouts

FAR = 80  # further than any window below reaches


@dataclass(frozen=True)
class Options:
    """Of one axis of an operator, padding such that PyTorch would take it."""

    kernel: int
    stride: int
    padding: int
    dilation: int


options = st.builds(
    Options, st.integers(1, 7), st.integers(1, 5), st.integers(0, 6), st.integers(1, 3)
)


@st.composite
def sliding(draw: st.DrawFn, in_size: int | None = None) -> SlidingWindow:
    """A convolution, or a pooling with `ceil_mode`."""
    o = draw(options)
    n = in_size if in_size is not None else draw(st.integers(1, 24))
    if draw(st.booleans()):
        out = conv_size(n, o.kernel, o.stride, o.padding, o.dilation)
    else:
        out = pool_size(n, o.kernel, o.stride, o.padding, o.dilation, ceil_mode=True)
    assume(out >= 1)
    return SlidingWindow(n, out, o.kernel, o.stride, o.padding, o.dilation)


@st.composite
def transposed(draw: st.DrawFn, in_size: int | None = None) -> TransposedWindow:
    o = draw(options)
    n = in_size if in_size is not None else draw(st.integers(1, 12))
    extra = draw(st.integers(0, max(o.stride, o.dilation) - 1))
    out = transposed_size(n, o.kernel, o.stride, o.padding, o.dilation, extra)
    assume(1 <= out <= 40)
    return TransposedWindow(n, out, o.kernel, o.stride, o.padding, o.dilation)


@st.composite
def tables(draw: st.DrawFn, in_size: int | None = None) -> TableWindow:
    n = in_size if in_size is not None else draw(st.integers(1, 12))
    out = draw(st.integers(1, 12))
    ends = st.lists(st.integers(0, n - 1), min_size=out, max_size=out).map(sorted)
    first, other = draw(ends), draw(ends)
    last = [max(a, b) for a, b in zip(first, other, strict=True)]
    return TableWindow(n, out, tuple(first), tuple(last))


@st.composite
def chains(draw: st.DrawFn) -> ComposedWindow:
    windows: list[SlidingWindow | TransposedWindow | TableWindow] = []
    n = draw(st.integers(1, 24))
    for _ in range(draw(st.integers(1, 4))):
        windows.append(draw(st.one_of(sliding(n), transposed(n), tables(n))))
        n = windows[-1].out_size
    return ComposedWindow(tuple(windows))


@st.composite
def parts(draw: st.DrawFn, size: int) -> Interval:
    a, b = draw(st.tuples(st.integers(0, size), st.integers(0, size)))
    return Interval(min(a, b), max(a, b))


def taps(window: SlidingWindow, output: int) -> set[int]:
    start = output * window.stride - window.padding
    return {start + j * window.dilation for j in range(window.kernel)}


def targets(window: TransposedWindow, source: int) -> set[int]:
    start = source * window.stride - window.padding
    return {start + j * window.dilation for j in range(window.kernel)}


def spans(window: TransposedWindow) -> dict[int, tuple[int, int]]:
    """The first and the last output of every input, inside the image or outside."""
    return {i: (min(targets(window, i)), max(targets(window, i))) for i in range(-FAR, FAR)}


def covering(window: TransposedWindow, first: int, last: int) -> set[int]:
    """The inputs whose span touches these outputs, and such that their spans reach both ends."""
    touching = {i for i, (a, b) in spans(window).items() if a <= last and b >= first}
    before = max(i for i, (a, _) in spans(window).items() if a <= first)
    after = min(i for i, (_, b) in spans(window).items() if b >= last)
    return touching | {before, after}


def rows(window: TableWindow, output: int) -> set[int]:
    return set(range(window.first[output], window.last[output] + 1))


def hull(numbers: set[int]) -> tuple[int, int] | None:
    return (min(numbers), max(numbers) + 1) if numbers else None


def bounds(interval: Interval) -> tuple[int, int] | None:
    return None if interval.empty else (interval.start, interval.stop)


def elements(interval: Interval) -> range:
    return range(interval.start, interval.stop)


# ── sliding: convolution and pooling ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("window", "out", "reads"),
    [
        (SlidingWindow(8, 8, 3, 1, 1), (0, 4), (-1, 5)),
        (SlidingWindow(8, 8, 3, 1, 1), (4, 8), (3, 9)),
        (SlidingWindow(8, 6, 3), (2, 3), (2, 5)),
        (SlidingWindow(16, 8, 7, 2, 3), (0, 4), (-3, 10)),
        (SlidingWindow(16, 8, 2, 2), (3, 5), (6, 10)),
        (SlidingWindow(16, 16, 3, 1, 2, 2), (5, 6), (3, 8)),
        (SlidingWindow(9, 3, 1, 4), (1, 3), (4, 9)),
    ],
)
def test_what_well_known_convolutions_read(window, out, reads):
    assert window.reads(Interval(*out)) == Interval(*reads)


@given(sliding(), st.data())
def test_a_sliding_window_reads_exactly_the_hull_of_its_taps(window, data):
    out = data.draw(parts(window.out_size))
    read = {i for o in elements(out) for i in taps(window, o)}
    assert bounds(window.reads(out)) == hull(read)


@given(sliding())
def test_an_output_belongs_to_the_tile_that_holds_the_centre_of_its_window(window):
    for cut in range(1, window.in_size):
        for output in range(window.out_size):
            first, last = min(taps(window, output)), max(taps(window, output))
            assert (output < window.cut(cut)) == ((first + last) // 2 < cut)


# ── transposed ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("window", "out", "reads"),
    [
        (TransposedWindow(4, 8, 2, 2), (0, 4), (0, 2)),
        (TransposedWindow(4, 8, 2, 2), (3, 5), (1, 3)),
        (TransposedWindow(4, 8, 4, 2, 1), (0, 4), (-1, 3)),
        (TransposedWindow(4, 4, 3, 1, 1), (1, 2), (0, 3)),
        (TransposedWindow(4, 10, 1, 3), (1, 3), (0, 2)),
    ],
)
def test_what_well_known_transposed_convolutions_read(window, out, reads):
    assert window.reads(Interval(*out)) == Interval(*reads)


@given(transposed(), st.data())
def test_a_transposed_window_reads_every_input_that_writes_to_it(window, data):
    out = data.draw(parts(window.out_size))
    read = set(elements(window.reads(out)))
    wanted = set(elements(out))
    writers = {i for i in range(-FAR, FAR) if targets(window, i) & wanted}
    assert writers <= read
    assert wanted or not read


@given(transposed(), st.data())
def test_a_transposed_window_is_the_smallest_whose_output_covers(window, data):
    out = data.draw(parts(window.out_size).filter(lambda i: not i.empty))
    read = window.reads(out)
    assert bounds(read) == hull(covering(window, out.start, out.stop - 1))
    assert window.writes_from(read.start) == spans(window)[read.start][0] <= out.start


@given(transposed())
def test_a_transposed_cut_is_the_centre_of_what_the_input_writes(window):
    for cut in range(window.in_size + 1):
        written = targets(window, cut)
        assert window.cut(cut) == (min(written) + max(written)) // 2


# ── whole, table, composed ───────────────────────────────────────────────────────────────────────


def test_a_whole_window_reads_everything_and_has_no_cuts():
    window = WholeWindow(7, 3)
    assert window.reads(Interval(1, 2)) == Interval(0, 7)
    with pytest.raises(GeometryError, match="not cut has no cuts"):
        window.cut(3)


@given(tables(), st.data())
def test_a_table_window_reads_exactly_the_hull_of_its_rows(window, data):
    out = data.draw(parts(window.out_size))
    read = {i for o in elements(out) for i in rows(window, o)}
    assert bounds(window.reads(out)) == hull(read)


@given(tables())
def test_a_table_window_cuts_in_proportion(window):
    """Before the cut lie the outputs that start before the same fraction of the outputs."""
    for cut in range(window.in_size + 1):
        part = Fraction(cut, window.in_size)
        before = [o for o in range(window.out_size) if Fraction(o, window.out_size) < part]
        assert window.cut(cut) == len(before)


@given(chains(), st.data())
def test_a_composed_window_reads_what_its_windows_read_one_after_the_other(chain, data):
    """By enumeration of whole regions, for a rank computes no region with holes in it."""
    out = data.draw(parts(chain.out_size))
    need = set(elements(out))
    for window in reversed(chain.windows):
        region = set(range(*(hull(need) or (0, 0)))) & set(range(window.out_size))
        if isinstance(window, SlidingWindow):
            need = {i for o in region for i in taps(window, o)}
        elif isinstance(window, TableWindow):
            need = {i for o in region for i in rows(window, o)}
        else:
            need = covering(window, min(region), max(region)) if region else set()
    assert bounds(chain.reads(out)) == hull(need)


@given(chains(), st.data())
def test_a_composed_window_reads_every_input_that_influences_it(chain, data):
    influences = set(elements(data.draw(parts(chain.out_size))))
    out = Interval(min(influences), max(influences) + 1) if influences else Interval(0, 0)
    for window in reversed(chain.windows):
        if isinstance(window, SlidingWindow):
            influences = {i for o in influences for i in taps(window, o)}
        elif isinstance(window, TableWindow):
            influences = {i for o in influences for i in rows(window, o)}
        else:
            influences = {i for i in range(window.in_size) if targets(window, i) & influences}
        influences &= set(range(window.in_size))
    assert influences <= set(elements(chain.reads(out)))


@given(st.data())
def test_a_composed_window_cuts_as_its_windows_do_one_after_the_other(data):
    layout = data.draw(layouts(axes=1, smallest=1))
    windows: list[SlidingWindow | TransposedWindow | TableWindow] = []
    step_by_step = layout
    for _ in range(data.draw(st.integers(1, 3))):
        n = step_by_step.size[0]
        windows.append(data.draw(st.one_of(sliding(n), transposed(n), tables(n))))
        step_by_step = step_by_step.remap(0, windows[-1].out_size, windows[-1].cut)
    chain = ComposedWindow(tuple(windows))
    assert layout.remap(0, chain.out_size, chain.cut) == step_by_step


def test_windows_that_do_not_follow_each_other_are_refused():
    with pytest.raises(GeometryError, match="makes 6 outputs cannot be followed by one that reads"):
        ComposedWindow((SlidingWindow(8, 6, 3), SlidingWindow(8, 6, 3)))


# ── every window ─────────────────────────────────────────────────────────────────────────────────

any_window = st.one_of(sliding(), transposed(), tables(), chains())


@given(any_window, st.data())
def test_a_larger_output_never_reads_less(window, data):
    out = data.draw(parts(window.out_size))
    inner = data.draw(parts(window.out_size)).intersect(out)
    assert window.reads(out).contains(window.reads(inner))
    assert window.reads(Interval(out.start, out.start)).empty


@given(any_window)
def test_cuts_never_fall(window):
    cuts = [window.cut(c) for c in range(window.in_size + 1)]
    assert cuts == sorted(cuts)


@given(any_window, st.data())
def test_the_layout_after_any_window_tiles_again(window, data):
    layout = data.draw(layouts(smallest=1))
    axis = data.draw(st.integers(0, len(layout.size) - 1))
    whole = layout.remap(axis, window.in_size, lambda c: c * window.in_size // layout.size[axis])
    after = whole.remap(axis, window.out_size, window.cut)
    after.check_disjoint()
    assert after.size[axis] == window.out_size
