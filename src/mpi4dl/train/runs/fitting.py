"""The training of a run, from its first step to its last."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...comm.communicator import Communicator, use
from ...comm.objects import shared
from ...geometry import Box
from ...pipeline import Trainer
from ..breakdown import Breakdown, broken_down, mean
from ..device import device_for, synchronize
from ..interruption import interruptible
from ..memory import peak_mib
from ..progress import Progress, progress
from ..timed import Log, timed
from .batches import Batches, Typed, batches, read_from_files
from .ema import Average
from .gallery import Gallery, all_of
from .keeping import AVERAGE, Keeping, Position
from .losses import loss_of
from .making import begin_with, built, optimizer_maker, scheduler_of, stand_in
from .metrics import Metrics
from .records import PICTURES, THUMBNAIL, TRACE, Records, records
from .sections import Configuration
from .stopping import Standstill
from .thumbnails import assembled, boxes, of_array, shown, stride_for, write_picture
from .trace import traced, write_trace


@dataclass
class Result:
    """What came of a run; the same on every rank."""

    losses: list[float] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    reason: str = ""
    """Why it ended."""
    requeue: bool = False
    """Whether it is to be started again: it was asked to stop, and has saved everything."""


def fit(
    configuration: Configuration,
    comm: Communicator,
    model: nn.Module | None = None,
    data: tuple[Batches, Batches | None] | None = None,
    signals: bool = False,
) -> Result:
    """Train as a configuration says. Collective; a model or data of one's own take the place of
    those that it names. With `signals`, SIGTERM ends it after a step, when all is saved."""
    log = Log()
    with use(timed(comm, log)):
        fitting = Fitting(configuration, comm, log, model or built(configuration), data)
        listening = interruptible(fitting.trainer) if signals else contextlib.nullcontext()
        try:
            with listening:
                return fitting.run()
        finally:
            fitting.close()


class Fitting:
    def __init__(
        self,
        configuration: Configuration,
        comm: Communicator,
        log: Log,
        model: nn.Module,
        data: tuple[Batches, Batches | None] | None = None,
    ) -> None:
        self.configuration, self.comm, self._log = configuration, comm, log
        c = configuration
        self.device = device_for(c.training.device, comm)
        self.dtype = getattr(torch, c.training.dtype)
        self.training, self.evaluation = batches(c, comm, self.device) if data is None else data
        self.trainer = self._trainer(model)
        begin_with(self.trainer, c.model)
        make = optimizer_maker(c.optimizer)
        self._rates = stand_in(make) if self.trainer.optimizer is None else self.trainer.optimizer
        self.scheduler = scheduler_of(c.scheduler, self._rates)
        self.average: Average | None = None
        if c.training.ema is not None:
            self.average = Average(self.trainer.named_parameters(), c.training.ema)
            self.trainer.add_companion(AVERAGE, self.average.named)
        stop = c.training.stop_metric
        self.standstill = (
            Standstill(stop, c.training.stop_after, c.training.stop_margin) if stop else None
        )
        self.position, self.result = Position(), Result()
        self.total = len(self.training) * c.training.epochs
        if c.training.steps is not None:
            self.total = min(self.total, c.training.steps)
        self._latest: dict[str, float] = {}
        self._breakdowns: list[Breakdown] = []
        self.keeping = Keeping(c, self.trainer)
        self._go_on(self.keeping.load())
        self.records: Records = records(c, comm.rank, self.position.steps)
        verbose = c.logging.verbose
        self.progress: Progress = progress(comm.rank, self.total, verbose, self.position.steps)

    def _trainer(self, model: nn.Module) -> Trainer:
        c = self.configuration
        return Trainer(
            model,
            c.plan,
            loss=loss_of(c.loss, self.device, self.dtype),
            optimizer=optimizer_maker(c.optimizer),
            split_points=c.model.split_points or None,
            example=torch.empty(1, *self.training.shape, dtype=self.dtype, device="meta"),
            clip_grad_norm=c.training.clip,
            accumulate=c.training.accumulate,
            shard_optimizer=c.optimizer.shard,
            nonfinite=c.training.nonfinite,  # type: ignore[arg-type]
            device=self.device,
            seed=c.training.seed,
        )

    def close(self) -> None:
        self.records.close()
        self.progress.close()

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────

    def _progress(self) -> dict[str, Any]:
        """What a checkpoint needs besides the trainer's state."""
        return {
            "position": asdict(self.position),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "standstill": None if self.standstill is None else asdict(self.standstill),
            "best": self.keeping.best,
            "latest": self._latest,
        }

    def _go_on(self, progress: dict[str, Any] | None) -> None:
        if progress is None:
            return
        self.position = Position(**progress["position"])
        self._latest, self.keeping.best = progress["latest"], progress["best"]
        if self.standstill is not None and progress["standstill"] is not None:
            seen = progress["standstill"]
            self.standstill.best, self.standstill.waited = seen["best"], seen["waited"]
        if self.scheduler is not None and progress["scheduler"] is not None:
            self.scheduler.load_state_dict(progress["scheduler"])
            rates = self.scheduler.get_last_lr()
            for group, rate in zip(self._rates.param_groups, rates, strict=True):
                group["lr"] = rate

    # ── from the first step to the last ──────────────────────────────────────────────────────

    def run(self) -> Result:
        while not self._done():
            self._epoch()
        if self._breakdowns:  # of an epoch that was not finished
            self._summarize()
        self.result.reason = self._reason()
        self.result.requeue = self.trainer.stopping and self.trainer.last_nonfinite is None
        self.keeping.finish(self._progress())
        self.records.write("end", self.position.steps, {"reason": self.result.reason})
        self.progress.say(f"ended after step {self.position.steps}: {self.result.reason}")
        return self.result

    def _done(self) -> bool:
        still = self.standstill is not None and self.standstill.reached
        return self.position.steps >= self.total or still or self.trainer.stopping

    def _reason(self) -> str:
        if self.trainer.stopping:
            where = self.trainer.last_nonfinite
            return "asked to stop" if where is None else f"the loss is no number: {where}"
        if self.standstill is not None and self.standstill.reached:
            return str(self.standstill)
        if self.position.epoch < self.configuration.training.epochs:
            return f"training.steps {self.total} are done"
        return "all epochs are done"

    def _epoch(self) -> None:
        position, c = self.position, self.configuration
        for batch in self.training.epoch(position.epoch, position.in_epoch):
            self._step(batch)
            if self._done():
                break
            if _due(position.steps, c.evaluation.every_steps):
                self._evaluate()
            if _due(position.steps, c.checkpoints.every_steps):
                self.keeping.save(self._progress())
        if position.in_epoch < len(self.training):
            return
        position.epoch, position.in_epoch = position.epoch + 1, 0
        if _due(position.epoch, c.evaluation.every):
            self._evaluate()
        if c.scheduler.every == "epoch":
            self._schedule()
        self._summarize()
        if _due(position.epoch, c.checkpoints.every):
            self.keeping.save(self._progress())

    def _step(self, batch: tuple[Any, Any]) -> None:
        position, c = self.position, self.configuration
        if position.steps == 0:
            self._introduce(batch[0])
        self._log.calls.clear()
        started = time.perf_counter()
        images, labels = self._typed(batch)
        loss = float(self.trainer.step(images, labels))
        synchronize(self.device)
        took = time.perf_counter() - started
        position.in_epoch += 1
        position.steps += 1
        self.result.losses.append(loss)
        self._breakdowns.append(broken_down(took, self.trainer.spans, self._log.calls))
        facts = {"loss": loss, "lr": self.rate, "seconds": took}
        facts["samples_per_second"] = int(images.shape[0]) / took
        if position.steps % c.logging.every == 0:
            self.records.write("step", position.steps, {"epoch": position.epoch, **facts})
        self.progress.step(position.steps, self._shown(facts))
        if position.steps == c.logging.trace:
            self._keep_trace()
        if position.steps % c.training.accumulate == 0:
            if self.average is not None:
                self.average.update()
            if c.scheduler.every == "step":
                self._schedule()

    def _typed(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        images, labels = batch
        if images.dtype != self.dtype:
            images = Typed(images, self.dtype)
        return images, labels

    @property
    def rate(self) -> float:
        """The learning rate, on ranks that train nothing as well."""
        return float(self._rates.param_groups[0]["lr"])

    def _shown(self, facts: Mapping[str, float]) -> str:
        memory = f"{peak_mib(self.device):,.0f} MiB"
        return f"loss {facts['loss']:.4f}, {facts['samples_per_second']:.3g} images/s, {memory}"

    def _schedule(self) -> None:
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            name = self.configuration.scheduler.metric
            if name in self._latest:
                self.scheduler.step(self._latest[name])
        elif self.scheduler is not None:
            self.scheduler.step()

    # ── evaluation ───────────────────────────────────────────────────────────────────────────

    def _evaluate(self) -> None:
        if self.evaluation is None:
            return
        averaged = contextlib.nullcontext() if self.average is None else self.average.in_place()
        with averaged:
            values, gallery = self._measured()
        self._latest = values
        self.result.evaluations.append(values)
        self.keeping.seen(values, self._progress)
        if self.standstill is not None:
            self.standstill.seen(values)
        steps = self.position.steps
        self.records.write("evaluation", steps, values)
        self.records.pictures(steps, gallery)
        if self.comm.rank == 0 and gallery:
            rows = torch.cat(list(gallery.values()), 1)
            write_picture(Path(self.configuration.folder) / PICTURES, rows)
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        self.progress.say(f"evaluation after step {steps}: {numbers}")

    def _measured(self) -> tuple[dict[str, float], dict[str, Tensor]]:
        """The loss, a mean over the samples, and the metrics; and pictures of what was seen."""
        c, total, seen = self.configuration.evaluation, 0.0, 0
        metrics = Metrics(c.metrics, c.ignore)
        gallery = Gallery(self.configuration.plan, self.comm, self.configuration.logging.pictures)
        assert self.evaluation is not None
        for number, batch in enumerate(self.evaluation.epoch(0)):
            images, labels = self._typed(batch)
            watches = [metrics.watch] if number else [metrics.watch, gallery.watch]
            loss = self.trainer.evaluate(images, labels, observe=all_of(watches))
            count = int(images.shape[0])
            total, seen = total + float(loss) * count, seen + count
            if number == 0:
                gallery.take(images)
        values = {"loss": total / seen, **metrics.values(self.comm, self.device)}
        return values, gallery.pictures(self.device)

    # ── what is written down ─────────────────────────────────────────────────────────────────

    def _introduce(self, images: Any) -> None:
        """What the run is, and who has which part of the first image. Collective."""
        plan = self.configuration.plan
        facts: dict[str, Any] = {"model": self.configuration.model.name, "plan": str(plan)}
        if len(images.shape) == 4:
            size = (int(images.shape[2]), int(images.shape[3]))
            held, stride = boxes(plan, size), stride_for(size)
            parts = of_array(images, 0, held[self.comm.rank], stride)
            small = assembled(parts, size, stride, self.comm, self.device)
            facts["layout"] = {"size": size, "boxes": [_bounds(box) for box in held]}
            if self.comm.rank == 0 and small is not None:
                write_picture(Path(self.configuration.folder) / THUMBNAIL, shown(small))
        self.records.write("start", 0, facts)

    def _keep_trace(self) -> None:
        trace = traced(self.trainer.spans, self._log.calls, self.comm, self.device)
        if self.comm.rank == 0:
            write_trace(Path(self.configuration.folder) / TRACE, trace)

    def _summarize(self) -> None:
        """Where the time of this epoch's steps went on each rank, its memory, and what it has read
        from files since the run began. Collective."""
        own = {**asdict(mean(self._breakdowns)), "peak_mib": peak_mib(self.device)}
        own |= read_from_files(self.training, self.evaluation)
        self._breakdowns.clear()
        everyone = shared(own, self.comm, self.device)
        self.records.write("ranks", self.position.steps, {"ranks": everyone})


def _bounds(box: Box | None) -> list[int] | None:
    return None if box is None else [bound for i in box for bound in (i.start, i.stop)]


def _due(count: int, every: int | None) -> bool:
    return bool(every) and count % (every or 1) == 0
