"""A step as every rank spent it, in the format of Chrome's tracing (Perfetto reads it as well)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ...comm.communicator import Communicator
from ...comm.objects import shared
from ...schedule import Action, Kind, Span
from ..timed import Call

_KINDS = {
    Kind.FORWARD: "compute",
    Kind.BACKWARD: "compute",
    Kind.INPUT: "compute",
    Kind.WEIGHT: "compute",
    Kind.REDUCE: "gradients",
}
_CALLS = {"tiles": "halo", "gradients": "gradients", "mirror": "gradients"}
WORDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT: "backward of the input",
    Kind.WEIGHT: "backward of the weights",
    Kind.SEND_FORWARD: "send forward",
    Kind.RECEIVE_FORWARD: "receive forward",
    Kind.SEND_BACKWARD: "send back",
    Kind.RECEIVE_BACKWARD: "receive back",
    Kind.REDUCE: "add up gradients",
}


def traced(
    spans: Sequence[Span], calls: Sequence[Call], world: Communicator, device: torch.device
) -> dict[str, Any]:
    """Of all ranks, on rank 0's clock of the day. Collective."""
    offset = time.time() - time.perf_counter()  # one clock for all processes of a machine
    everyone = shared((tuple(spans), tuple(calls), offset), world, device)
    starts = [
        t for s, c, o in everyone for t in (*(x.start + o for x in s), *(x.start + o for x in c))
    ]
    # To rank 0's clock first: times of the day are too large to have all digits of a microsecond.
    shifts = [its - everyone[0][2] for _, _, its in everyone]
    starts = [
        one.start + shift
        for (own, talked, _), shift in zip(everyone, shifts, strict=True)
        for one in (*own, *talked)
    ]
    origin = min(starts, default=0.0)
    events: list[dict[str, Any]] = []
    for rank, (own, talked, _) in enumerate(everyone):
        shift = shifts[rank] - origin
        events.append(_named("process_name", rank, 0, f"rank {rank}"))
        events.append(_named("thread_name", rank, 0, "schedule"))
        events.append(_named("thread_name", rank, 1, "communication"))
        events += [_span(rank, span, shift) for span in own]
        events += [_call(rank, call, shift) for call in talked]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(file: Path, trace: dict[str, Any]) -> None:
    file.write_text(json.dumps(trace) + "\n", encoding="utf-8")


def kind_of(action: Action) -> str:
    return _KINDS.get(action.kind, "transfer")


def _named(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _span(rank: int, span: Span, shift: float) -> dict[str, Any]:
    action = span.action
    micro_batch = "" if action.micro_batch is None else f", micro-batch {action.micro_batch}"
    return {
        "ph": "X",
        "name": f"{WORDS[action.kind]} {action}",
        "cat": kind_of(action),
        "pid": rank,
        "tid": 0,
        **_times(span.start + shift, span.stop - span.start),
        "args": {"what": f"stage {action.stage}{micro_batch}, direction {action.direction}"},
    }


def _call(rank: int, call: Call, shift: float) -> dict[str, Any]:
    kind = _CALLS.get(call.use, "transfer")
    return {
        "ph": "X",
        "name": kind,
        "cat": kind,
        "pid": rank,
        "tid": 1,
        **_times(call.start + shift, call.stop - call.start),
    }


def _times(start: float, duration: float) -> dict[str, float]:
    """In microseconds, as the format wants them."""
    return {"ts": round(start * 1e6, 3), "dur": round(duration * 1e6, 3)}
