"""`Trainer`: one call a step, on every rank alike, whatever the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..comm.communicator import Communicator
from ..comm.gradients import check_same_parameters
from ..comm.launch import init
from ..comm.objects import shared
from ..errors import NonFiniteError, PlanError
from ..schedule import Program, Span, Timeline, lower
from .batch import Batch
from .engine import Engine, Observe, Step
from .full_state import FullState, Kinds, Position, named_parameters
from .loss_scale import LossScale
from .nonfinite import Policy, checked, kept, place
from .optimizers import MakeOptimizer, check_sharding, sharded
from .outputs import gathered
from .partition import partition
from .plan import Plan
from .randomness import mixed
from .setup import Setup, trained
from .totals import Totals, totals
from .watch import Watch
from .whole_state import NotLoaded, WholeState

Loss = Callable[[Any, Any], Tensor]


class Trainer:
    """Trains a model as a plan says, with the gradients that one process would compute.

        trainer = mpi4dl.Trainer(model, plan, loss=F.cross_entropy, optimizer=partial(SGD, lr=0.1))
        for images, labels in batches:
            loss = trainer.step(images, labels)

    Every rank makes the same calls, and the same whole model: a rank trains its own stages of it,
    in place. `images` and `labels` are whole as well, and each rank reads only its part of them;
    besides tensors they may be arrays that are mapped to files.

    * `loss(output, labels)` gives one number: its mean over the samples, or with
      `reduction="sum"` their sum. `optimizer(parameters)` makes a PyTorch optimizer of this rank's.
    * `split_points` and `example` are those of `partition`.
    * `clip_grad_norm` limits the norm of the whole model's gradient.
    * `accumulate=k`: the optimizer steps, on the mean of k batches, at every k-th call.
    * `shard_optimizer`: copies of a stage share out the optimizer's state (ZeRO-1).
    * `seed` is that of dropout; without one it is drawn from PyTorch's random numbers.
    * `nonfinite`: what to do where the loss or the gradient is infinite or no number. `"raise"` a
      NonFiniteError on every rank, `"skip"` the batch, `"stop"` (skip it, and `stopping` is true);
      whatever it is, nothing of that step changes the model, and `last_nonfinite` names the layer
      where it appeared first. `"ignore"`: nobody looks.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        loss: Loss | None = None,
        optimizer: MakeOptimizer | None = None,
        *,
        split_points: Sequence[str] | None = None,
        example: Tensor | Sequence[int] | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        clip_grad_norm: float | None = None,
        accumulate: int = 1,
        shard_optimizer: bool = False,
        nonfinite: Policy = "ignore",
        device: torch.device | str | None = None,
        seed: int | None = None,
    ) -> None:
        if reduction not in ("mean", "sum"):
            raise PlanError(f"reduction is {reduction!r}; it must be 'mean' or 'sum'")
        checked(nonfinite)
        if accumulate < 1:
            raise PlanError(f"accumulate is {accumulate}; it must be at least 1")
        if shard_optimizer:
            check_sharding(plan, optimizer)
        world = init()
        plan.check_world(world.size)
        stages = partition(model, plan, split_points, example=example)
        where = torch.device(device) if device is not None else _device_of(model)
        self.plan = plan
        self._setup = setup = Setup(plan, stages, world, where)
        self._state = WholeState(stages, setup)
        for stage, module in setup.modules.items():
            check_same_parameters(module, setup.copies[stage])
        self.parameters = trained(setup.modules.values())
        """Those of this rank's stages."""
        self.optimizer: torch.optim.Optimizer | None = None
        if optimizer is not None and shard_optimizer:
            self.optimizer = sharded(optimizer, self.parameters, setup)
        elif optimizer is not None and self.parameters:
            self.optimizer = optimizer(self.parameters)
        self._loss, self._mean, self._clip = loss, reduction == "mean", clip_grad_norm
        self._scale = LossScale(enabled=plan.precision == "fp16")
        self._engine = Engine(setup)
        self._programs: dict[tuple[bool, int], Program] = {}
        # Drawn from the numbers that all ranks have in common, and rank 0's if they have not.
        drawn = int(torch.randint(2**62, ())) if seed is None else seed
        self._position = Position(shared(drawn, world, where)[0], accumulate)
        self._full = FullState(stages, setup, self.optimizer, self._scale, self._position)
        self._spans: list[Span] = []
        self._nonfinite, self._guarded = nonfinite, nonfinite != "ignore"
        self.last_nonfinite: str | None = None
        """Where the last step became infinite or no number; None if it did not."""
        self._stop_requested = False
        self.stopping = False
        """Whether any rank has asked to stop: agreed in each step, and the same on all ranks."""
        self._doing, self._phase = "", ""
        self._watch = Watch(setup, self._waits_for)

    # ── training ─────────────────────────────────────────────────────────────────────────────

    def step(self, images: Any, labels: Any = None) -> Tensor:
        """Train one batch. Returns its loss, on every rank."""
        if self._loss is None:
            raise PlanError("this trainer has no loss: give Trainer(..., loss=...) to train")
        batch = Batch(self.plan, images, labels, training=True)
        self.last_nonfinite = None
        with self.together(f"step {self.steps}"), kept(self._setup, self._guarded) as put_back:
            self._position.waiting += 1
            step = self._run(batch, self._loss, training=True)
            totals = self._totals(step)
            if self._guarded and not (totals.loss.isfinite() and self._usable(totals)):
                self._refuse(batch, totals, put_back)
            elif step.updating:
                self._update(totals)
            self._position.steps += 1
        if self.last_nonfinite is not None and self._nonfinite == "raise":
            raise NonFiniteError(
                f"the loss of step {self.steps - 1} is {float(totals.loss)} and the norm of its "
                f"gradient {totals.norm}: it began with {self.last_nonfinite}. The model is as it "
                "was before; nonfinite='skip' leaves such batches out"
            )
        return totals.loss

    def _update(self, totals: Totals) -> None:
        if totals.updatable:
            factor = 1.0
            if self._clip is not None:  # as torch.nn.utils.clip_grad_norm_
                factor = min(1.0, self._clip / (totals.norm + 1e-6))
            self._scale.unscale(self.parameters, factor)
            if self.optimizer is not None:
                self.optimizer.step()
        self._scale.update(totals.updatable)
        self._forget_gradients()

    def _usable(self, totals: Totals) -> bool:
        """Gradients that are too large for float16 are the loss scale's business."""
        return totals.updatable or self._scale.enabled

    def _refuse(self, batch: Batch, totals: Totals, put_back: Callable[[], None]) -> None:
        """The batch has changed nothing, and those that waited with it for an update are gone."""
        put_back()
        self._forget_gradients()
        self.last_nonfinite = place(
            self._setup, self._engine, lambda: self._run(batch, self._loss, training=True)
        )
        put_back()
        self._forget_gradients()
        self.stopping = self.stopping or self._nonfinite == "stop"

    def _forget_gradients(self) -> None:
        self._position.waiting = 0
        for parameter in self.parameters:
            parameter.grad = None

    @property
    def steps(self) -> int:
        """Calls of `step` so far, also of those before a checkpoint."""
        return self._position.steps

    def request_stop(self) -> None:
        """After the step under way, `stopping` is true on all ranks. Signal handlers may ask."""
        self._stop_requested = True

    @contextmanager
    def together(self, doing: str) -> Iterator[None]:
        """Whatever needs the other ranks: RankLost if one of them has ended."""
        self._doing, self._phase = doing, "the other ranks"
        with self._watch.together():
            yield

    def _waits_for(self) -> str:
        return f"{self._phase or self._engine.waits_for()}, in {self._doing}"

    # ── evaluation ───────────────────────────────────────────────────────────────────────────

    def evaluate(self, images: Any, labels: Any = None, observe: Observe | None = None) -> Tensor:
        """The loss of a batch, on every rank, in evaluation mode; nothing is trained.

        `observe(outputs, labels, samples, comm)` sees each micro-batch on the ranks `comm` of the
        last stage: tiles are each rank's own, plain values are the same on all of them.
        """
        if self._loss is None:
            raise PlanError("this trainer has no loss: give Trainer(..., loss=...) to evaluate")
        batch = Batch(self.plan, images, labels, training=False)
        with self.together("an evaluation"), self._evaluating():
            step = self._run(batch, self._loss, training=False, observe=observe)
            return self._totals(step).loss

    def predict(self, images: Any, gather: bool = True) -> Any:
        """What the model makes of a batch, in evaluation mode.

        Every rank gets all of it; with `gather=False`, a rank of the last stage gets a list of
        `(samples, output)`, in which tiles stay tiles, and the others get an empty one.
        """
        batch = Batch(self.plan, images, None, training=False)
        with self.together("a prediction"), self._evaluating(), torch.no_grad():
            step = self._run(batch, None, training=False)
            if gather:
                return gathered(step, self._setup)
        replica = self._setup.replica
        return [(batch.samples(replica, i), output) for i, output in sorted(step.outputs.items())]

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modes = [(m, m.training) for s in self._setup.modules.values() for m in s.modules()]
        for module, _ in modes:
            module.training = False
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training

    # ── state ────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Tensor]:
        """The whole model's, under its own names, on every rank. Collective."""
        return self._state.collected()

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> NotLoaded:
        """A whole model's; each rank keeps its part.

        With `strict=False`, what has the same name and shape. Returns what was not loaded.
        """
        return self._state.load(state, strict)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """This rank's, by their names in the whole model."""
        return named_parameters(self._setup.modules.values())

    def add_companion(self, label: str, tensors: Mapping[str, Tensor]) -> None:
        """Tensors that belong to this rank's parameters or buffers (an average of weights), by
        names in the whole model: checkpoints keep them as they keep those. All ranks alike."""
        self._full.add_companion(label, tensors)

    def full_state(self) -> dict[str, Any]:
        """This rank's share of all that training goes on from, under names that do not depend on
        the layout: together, the ranks have everything once. Not copied. Collective."""
        return self._full.collect()

    def wanted_state(self, kinds: Kinds, values: Mapping[str, Any]) -> list[str]:
        """Which keys of such a state, saved in any layout, this rank needs. `kinds` are the shapes
        of its tensors, `values` the rest. CheckpointError if they are another training's."""
        return self._full.wanted(kinds, values)

    def load_full_state(self, state: Mapping[str, Any]) -> None:
        """What `wanted_state` has named."""
        self._full.load(state)

    @property
    def device(self) -> torch.device:
        """Where this rank's stages are."""
        return self._setup.device

    @property
    def communicator(self) -> Communicator:
        """Of all ranks of the plan."""
        return self._setup.world

    @property
    def spans(self) -> tuple[Span, ...]:
        """What this rank did in the last step, and when."""
        return tuple(self._spans)

    def timeline(self) -> Timeline:
        """What every rank did in the last step, and when. Collective."""
        world, device = self._setup.world, self._setup.device
        return Timeline(tuple(map(tuple, shared(self._spans, world, device))))

    # ── one run ──────────────────────────────────────────────────────────────────────────────

    def _run(
        self, batch: Batch, loss: Loss | None, training: bool, observe: Observe | None = None
    ) -> Step:
        self._phase = "all ranks to begin"
        self._agree(batch)
        position, replica = self._position, self._setup.replica

        def weight(micro_batch: int) -> float:
            return batch.share(replica, micro_batch) if self._mean else 1.0

        step = Step(
            program=self._program(training, batch.micro_batches),
            batch=batch,
            training=training,
            updating=training and position.waiting == position.accumulate,
            loss=loss,
            weight=weight,
            scale=self._scale.value / (position.accumulate if self._mean else 1),
            seed=mixed(position.seed, position.steps),
            observe=observe,
        )
        self._phase = ""
        self._engine.run(step)
        self._phase = "the loss of all ranks"
        self._spans = step.spans
        return step

    def _program(self, training: bool, micro_batches: int) -> Program:
        key = (training, micro_batches)
        if key not in self._programs:
            plan = self.plan
            schedule = plan.make_schedule() if training else plan.forward_schedule(micro_batches)
            self._programs[key] = lower(schedule)
        return self._programs[key]

    def _agree(self, batch: Batch) -> None:
        """A rank that was called with something else would leave the others waiting."""
        mine, world = str(batch), self._setup.world
        digest = int.from_bytes(sha256(mine.encode()).digest()[:7], "big")
        everyone = world.all_gather(torch.tensor([digest], device=self._setup.device))
        if (everyone == digest).all():
            return
        texts = shared(mine, world, self._setup.device)
        for rank, text in enumerate(texts):
            if text != texts[0]:
                raise PlanError(
                    f"the ranks do not agree about the batch: rank 0 has {texts[0]}; rank {rank} "
                    f"has {text}. Every rank is called with the same images and labels"
                )

    def _totals(self, step: Step) -> Totals:
        norm = self._clip is not None or self._scale.enabled or self._guarded
        found = totals(self._setup, step, norm, self._scale.value, self._stop_requested)
        self.stopping = self.stopping or found.stop
        return found


def _device_of(model: nn.Module) -> torch.device:
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return next((p.device for p in model.parameters()), torch.device("cpu"))
