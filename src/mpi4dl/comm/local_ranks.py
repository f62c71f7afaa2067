"""Ranks without a launcher: this command again, once for each, on this machine.

One dies, all end. What they print comes through here, line by line, with the rank before it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

from .rendezvous import hosted_store

GRACE = 5.0
"""Seconds between asking a process to end and ending it, when another has failed."""

STOPPING = 30.0
"""The same when a scheduler wants all of it to stop: ranks may save what they have."""

_LAST_WORDS = 0.5
"""Seconds in which ranks may say what they waited for when another has died."""


def run_local_ranks(count: int, command: Sequence[str], speaker: int | None = None) -> int:
    """Run `command` as that many ranks, to the end of all. The exit code is the first bad one.

    A rank that a signal ended counts as 128 and the signal's number, as in a shell. What the rank
    `speaker` prints goes straight to where this process prints: it may draw on a terminal.
    """
    store = hosted_store(count)
    environments = [_environment(rank, count, store.port) for rank in range(count)]
    ranks = [_start(command, env, rank == speaker) for rank, env in enumerate(environments)]
    printing = [t for rank, process in enumerate(ranks) for t in _print(rank, process, count)]
    stopped: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, frame: stopped.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        code = _wait(ranks, stopped)
    finally:
        _end(ranks)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for thread in printing:
            thread.join()
    return code


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // count)),
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # it is there; nobody is to make another
        "MPI4DL_LAUNCHER": "mpi4dl",
    }


def _start(
    command: Sequence[str], environment: Mapping[str, str], speaks: bool
) -> subprocess.Popen[str]:
    output = None if speaks else subprocess.PIPE
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C comes here, and goes to all of them from here
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )


def _end_with_parent() -> None:
    """Also if this process is killed, and can tell nobody."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _print(rank: int, process: subprocess.Popen[str], count: int) -> list[threading.Thread]:
    prefix = f"[{rank:>{len(str(count - 1))}}] " if count > 1 else ""

    def passing_on(source: IO[str] | None, target: IO[str]) -> None:
        for line in source or ():
            target.write(prefix + (line if line.endswith("\n") else line + "\n"))
            target.flush()

    pairs = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    threads = [threading.Thread(target=passing_on, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    return threads


def _wait(ranks: Sequence[subprocess.Popen[str]], stopped: Sequence[int]) -> int:
    """Until all have ended well, one has not, or somebody wants this to stop."""
    told, deadline = 0, float("inf")
    while True:
        codes = [process.poll() for process in ranks]
        if stopped:
            for number in stopped[told:]:
                for process in ranks:
                    _signal(process, number)
                patience = GRACE if signal.SIGINT in stopped else STOPPING
                deadline = min(deadline, time.monotonic() + patience)
            told = len(stopped)
            if None not in codes or time.monotonic() > deadline:
                return _stopped(codes, stopped[0])
        elif any(codes):
            return _report(ranks, codes)
        elif None not in codes:
            return 0
        time.sleep(0.02)


def _stopped(codes: Sequence[int | None], number: int) -> int:
    """What all ranks say, if they had time to say something; else the signal."""
    agreed = codes[0] if len(set(codes)) == 1 else None
    return agreed if agreed is not None and agreed >= 0 else 128 + number


def _report(ranks: Sequence[subprocess.Popen[str]], codes: Sequence[int | None]) -> int:
    """Say which rank ended badly, first; the exit code for it."""
    rank, code = next((rank, code) for rank, code in enumerate(codes) if code)
    how = f"exited with {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
    left = codes.count(None)
    ending = f"; ending the other {left}" if left else ""
    print(f"mpi4dl: rank {rank} {how}{ending}", file=sys.stderr, flush=True)
    deadline = time.monotonic() + _LAST_WORDS
    while code < 0 and time.monotonic() < deadline and any(r.poll() is None for r in ranks):
        time.sleep(0.02)
    return code if code > 0 else 128 - code


def _end(ranks: Sequence[subprocess.Popen[str]]) -> None:
    for process in ranks:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    for process in ranks:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: subprocess.Popen[str], number: int) -> None:
    """To the rank and what it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
