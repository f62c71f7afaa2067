"""Where the time of one step goes, by kinds of work, for several modes side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("waiting for others", ("messages",)),
    ("convolution", ("conv",)),
    ("normalisation", ("batch_norm", "addcmul", "ChannelNorm")),
    ("pooling", ("pool",)),
    ("ReLU and sums", ("threshold", "clamp_min", "aten::add", "relu")),
    ("copies", ("copy_", "cat", "fill_", "zero_")),
)
REST = "everything else"


def _kind(name: str) -> str:
    found = (kind for kind, words in KINDS if any(word in name for word in words))
    return next(found, REST)


def _one(step: Callable[[str], None], mode: str) -> dict[str, float]:
    step(mode)
    step(mode)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step(mode)
    seconds: dict[str, float] = defaultdict(float)
    for event in found.key_averages():
        seconds[_kind(event.key)] += event.self_cpu_time_total / 1e6
    return seconds


def profile_table(title: str, modes: list[str], step: Callable[[str], None], rank: int) -> None:
    """Seconds of rank 0 in PyTorch's operators and in messages; the rest is Python, mostly."""
    columns = [_one(step, mode) for mode in modes]
    if rank:
        return
    print(f"\n{title}: seconds of rank 0 by kinds of work")
    print(f"{'':24s}", *(f"{mode:>18s}" for mode in modes))
    for kind in (*(kind for kind, _ in KINDS), REST):
        print(f"{kind:24s}", *(f"{column[kind]:18.3f}" for column in columns))
    print(f"{'together':24s}", *(f"{sum(column.values()):18.3f}" for column in columns))
