"""A task as torch.distributed sees it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .progress import progress
from .task import Task

_UNSET = timedelta(0)


class MpiWork(dist.Work):
    """What an operation returns. Its results are `outputs`, as soon as it is over."""

    def __init__(self, task: Task, outputs: list[Any], sources: Sequence[int] = ()) -> None:
        """`sources` has the rank that sent what arrived, when it is over."""
        super().__init__()
        self.task, self._outputs, self._sources = task, outputs, sources
        self._future: torch.futures.Future[Any] | None = None
        progress().add(task)

    def wait(self, timeout: timedelta = _UNSET) -> bool:
        self.task.wait(timeout.total_seconds())
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.task.poll()

    def is_success(self) -> bool:
        return self.task.poll() and self.task.error is None

    def exception(self) -> BaseException | None:
        return self.task.error

    def result(self) -> list[Tensor]:
        return self._outputs

    def source_rank(self) -> int:
        """Who sent what arrived from anybody."""
        assert self._sources, "known when the message is there: wait first"
        return self._sources[0]

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Completed by the progress thread, so that nobody has to wait here."""
        if self._future is None:
            self._future = torch.futures.Future()
            self.task.when_over(self._complete)
            progress().hurry()
        return self._future

    def _complete(self) -> None:
        assert self._future is not None
        error = self.task.error
        if error is None:
            self._future.set_result(self._outputs)
        else:
            self._future.set_exception(error if isinstance(error, Exception) else RuntimeError())


class Together(dist.Work):
    """Several that are waited for as one."""

    def __init__(self, works: list[MpiWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = _UNSET) -> bool:
        return all(work.wait(timeout) for work in self._works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def result(self) -> list[Any]:
        return [work.result() for work in self._works]

    def get_future(self) -> torch.futures.Future[Any]:
        return torch.futures.collect_all([work.get_future() for work in self._works])
