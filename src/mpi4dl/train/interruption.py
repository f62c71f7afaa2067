"""Signals with which a scheduler asks a job to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..pipeline import Trainer

REQUEUE = 75
"""Exit code (EX_TEMPFAIL of sysexits.h): saved, and to be started again."""


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
    """
    raise NotImplementedError
    yield
