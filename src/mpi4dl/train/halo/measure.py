"""Turns of work, measured: how long they take, and what passes between ranks.

An iteration begins when all ranks are there, and takes as long as it takes the slowest of them.
`back to back` is the mean time of iterations that nobody waits between, as in a training step.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from itertools import pairwise

import torch

from ...comm.communicator import Communicator
from ...geometry import Layout
from .passing import Counted
from .result import Result
from .work import Turn, Work


def measure(work: Work, options: Namespace, layout: Layout, comm: Communicator) -> list[Result]:
    """Collective. Turns alternate, so that what disturbs the machine disturbs all of them."""
    counts = _counts(work, options, layout, comm)
    turns = work(options, layout, comm)
    times = _times(turns, options, comm)
    streams = [_back_to_back(turn, options, comm) for turn in turns]
    results = []
    for turn, stream in zip(turns, streams, strict=True):
        for name in _rows(turn):
            messages, received, reduced = counts[name]
            whole = len(turn) == 1 or name == "together"
            results.append(
                Result(
                    name, times[name], stream if whole else None, messages, received, max(reduced)
                )
            )
    return results


def _rows(turn: Turn) -> list[str]:
    """The phases, and if there are several, all of them together."""
    names = [name for name, _ in turn]
    return names if len(names) == 1 else [*names, "together"]


def _counts(
    work: Work, options: Namespace, layout: Layout, comm: Communicator
) -> dict[str, tuple[list[int], list[int], list[int]]]:
    """Messages, bytes received and bytes summed of each row, by rank: from an iteration untimed."""
    counted = Counted(comm)
    found: dict[str, list[int]] = {}
    for turn in work(options, layout, counted):
        # Once before, since some things are sent only by the first call.
        for _, call in turn:
            call()
        marks = [counted.counts()]
        for _, call in turn:
            call()
            marks.append(counted.counts())
        spans = [*pairwise(marks), (marks[0], marks[-1])]
        for name, (before, after) in zip(_rows(turn), spans, strict=False):
            found[name] = [b - a for a, b in zip(before, after, strict=True)]
    table = torch.tensor(list(found.values()), device=options.device)
    by_rank = comm.all_gather(table).permute(1, 2, 0).tolist()
    return {name: tuple(counts) for name, counts in zip(found, by_rank, strict=True)}


def _times(turns: Sequence[Turn], options: Namespace, comm: Communicator) -> dict[str, list[float]]:
    own: dict[str, list[float]] = {name: [] for turn in turns for name in _rows(turn)}
    for iteration in range(options.warmup + options.iterations):
        for turn in turns:
            meet(options, comm)
            marks = [now(options)]
            for _, call in turn:
                call()
                marks.append(now(options))
            if iteration >= options.warmup:
                spans = [*pairwise(marks), (marks[0], marks[-1])]
                for name, (begun, ended) in zip(_rows(turn), spans, strict=False):
                    own[name].append((ended - begun) * 1e3)
    table = torch.tensor(list(own.values()), dtype=torch.float64, device=options.device)
    slowest = comm.all_gather(table).amax(0).tolist()
    return dict(zip(own, slowest, strict=True))


def _back_to_back(turn: Turn, options: Namespace, comm: Communicator) -> float:
    meet(options, comm)
    begun = now(options)
    for _ in range(options.iterations):
        for _, call in turn:
            call()
    took = torch.tensor([(now(options) - begun) * 1e3], device=options.device)
    return float(comm.all_gather(took).max()) / options.iterations


def meet(options: Namespace, comm: Communicator) -> None:
    """Everybody is there, and nothing of before is still under way."""
    comm.all_reduce(torch.zeros(1, device=options.device))


def now(options: Namespace) -> float:
    if options.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
