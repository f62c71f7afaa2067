"""Signals with which a scheduler asks a job to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ..pipeline import Trainer

REQUEUE = 75
"""Exit code (EX_TEMPFAIL of sysexits.h): all is saved, start this again."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def interruptible(trainer: Trainer) -> Iterator[None]:
    """SIGTERM and SIGUSR1, on any rank, make `trainer.stopping` true on all after the same step.

        with interruptible(trainer):
            for ...:
                trainer.step(images, labels)
                if trainer.stopping:
                    checkpoints.save(trainer, progress)
                    checkpoints.wait()
                    sys.exit(REQUEUE)

    In the main thread, where Python runs what a signal asks for.
    """

    def asked(number: int, frame: FrameType | None) -> None:
        trainer.request_stop()

    before = {number: signal.signal(number, asked) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
