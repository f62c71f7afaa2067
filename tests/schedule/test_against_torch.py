"""torch.distributed.pipelining has some of these schedules. Where it has, they are the same.

Its tables are asked for with stages that do nothing, and no processes.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.pipelining import schedules as theirs

from mpi4dl.schedule import Action, Kind, Schedule, lower, simulate, validate
from mpi4dl.schedule.gpipe import gpipe
from mpi4dl.schedule.interleaved import interleaved
from mpi4dl.schedule.one_f_one_b import one_f_one_b
from mpi4dl.schedule.zb_h1 import zb_h1
from mpi4dl.schedule.zb_v import zb_v

# torch writes 0SEND_F1 and 0REDUCE_GRAD, and gathers and frees shards, which we do not.
NAMES = {"SEND_": "S", "RECV_": "R", "REDUCE_GRAD": "R"}
OTHER = ("UNSHARD", "RESHARD")


class Stage:
    """As much of a stage as a schedule asks for. Writes down what it is told to do."""

    def __init__(self, actors: int, stages: int, actor: int = 0, index: int = 0) -> None:
        self.stage_index = index
        self.num_stages = stages
        self.group_size = actors
        self.group_rank = actor
        self.is_first = index == 0
        self.is_last = index == stages - 1
        self.has_backward = True
        self.device = "cpu"
        self.submod = None
        self.done: list[str] = []

    def forward_one_chunk(self, micro_batch: int, *args: Any, **kwargs: Any) -> None:
        self.done.append(f"{self.stage_index}F{micro_batch}")

    def backward_one_chunk(self, micro_batch: int, *args: Any, **kwargs: Any) -> None:
        self.done.append(f"{self.stage_index}B{micro_batch}")

    def perform_reduce_grad(self, scale: int) -> None:
        self.done.append(f"{self.stage_index}R")

    def no_messages(self, micro_batch: int) -> list[Any]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_messages


def ours(schedule: Schedule, actor: int) -> list[str]:
    return [str(a) for a in lower(schedule).actions[actor] if a.kind.computes]


def table(make: Any, actors: int, per_actor: int, micro_batches: int) -> dict[int, list[str]]:
    stages = [Stage(actors, actors * per_actor) for _ in range(per_actor)]
    rows = make(stages, micro_batches).pipeline_order
    return {actor: [str(a) for a in row if a is not None] for actor, row in rows.items()}


@pytest.mark.parametrize(
    ("make", "mine"), [(theirs.ScheduleGPipe, gpipe), (theirs.Schedule1F1B, one_f_one_b)]
)
@pytest.mark.parametrize(("actors", "micro_batches"), [(1, 1), (2, 2), (2, 5), (4, 4), (4, 9)])
def test_what_torch_executes(make, mine, actors, micro_batches):
    """Its engine, not the table that it prints: in 2.13, that one counts the forwards of 1F1B's
    last stage from 1. (1F1B in torch wants as many micro-batches as stages; ours does not.)"""
    for actor in range(actors):
        stage = Stage(actors, actors, actor, index=actor)
        schedule = make(stage, micro_batches)
        schedule._has_backward = True
        schedule._stage_forward_initialized = schedule._stage_backward_initialized = True
        schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
        assert stage.done == [*ours(mine(actors, micro_batches), actor), f"{actor}R"]


@pytest.mark.parametrize("per_actor", [2, 3])
@pytest.mark.parametrize("actors", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 6, 8, 10, 12, 16])
def test_interleaved(actors, per_actor, micro_batches):
    """torch wants equal groups of micro-batches, and refuses the other numbers."""
    if micro_batches % max(1, micro_batches // actors):
        with pytest.raises(ValueError, match="multiple of the number of rounds"):
            table(theirs.ScheduleInterleaved1F1B, actors, per_actor, micro_batches)
        validate(interleaved(actors, micro_batches, per_actor))
        return
    found = table(theirs.ScheduleInterleaved1F1B, actors, per_actor, micro_batches)
    schedule = interleaved(actors, micro_batches, per_actor)
    assert found == {actor: ours(schedule, actor) for actor in range(actors)}


@pytest.mark.parametrize("actors", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 6, 8, 16])
def test_zb_h1_is_the_interleaved_zero_bubble_schedule_of_one_stage_an_actor(actors, micro_batches):
    if micro_batches % max(1, micro_batches // actors):
        return
    found = table(theirs.ScheduleInterleavedZeroBubble, actors, 1, micro_batches)
    schedule = zb_h1(actors, micro_batches)
    assert found == {actor: ours(schedule, actor) for actor in range(actors)}


@pytest.mark.parametrize("actors", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 5, 7, 8, 12, 16, 20])
def test_zb_v(actors, micro_batches):
    """The same, if there are enough micro-batches for it; with fewer, ours is never longer."""
    found = table(theirs.ScheduleZBVZeroBubble, actors, 2, micro_batches)
    schedule = zb_v(actors, micro_batches)
    if micro_batches >= 2 * actors - 1:
        assert found == {actor: ours(schedule, actor) for actor in range(actors)}
        return
    rows = tuple(tuple(map(Action.parse, found[actor])) for actor in range(actors))
    torchs = Schedule("torch", schedule.placement, schedule.directions, rows)
    assert simulate(schedule).length <= simulate(torchs).length
    assert validate(schedule).peak_live <= (2 * actors,) * actors
    if 1 < micro_batches == actors:
        assert simulate(schedule).length < simulate(torchs).length


@pytest.mark.parametrize(
    ("make", "schedule"),
    [
        (theirs.ScheduleInterleaved1F1B, interleaved(3, 6)),
        (theirs.ScheduleInterleavedZeroBubble, zb_h1(3, 6)),
        (theirs.ScheduleZBVZeroBubble, zb_v(3, 6)),
    ],
    ids=lambda thing: getattr(thing, "name", ""),
)
def test_the_same_messages_and_reductions(make, schedule):
    """As sets: torch receives when the sender has sent, we before the work during which it does."""
    per_actor = schedule.stages // schedule.actors
    stages = [Stage(schedule.actors, schedule.stages) for _ in range(per_actor)]
    rows = make(stages, schedule.micro_batches).pipeline_order_with_comms
    for actor, row in enumerate(lower(schedule).actions):
        texts = [str(a) for a in rows[actor] if not str(a).endswith(OTHER)]
        for long, short in NAMES.items():
            texts = [text.replace(long, short) for text in texts]
        assert sorted(texts) == sorted(map(str, row))


def test_dual_pipe_v_is_a_schedule_too():
    """torch's, taken apart into single actions: not one of ours, and valid by our rules."""
    stages = [Stage(3, 6) for _ in range(2)]
    rows = theirs.ScheduleDualPipeV(stages, 8).pipeline_order
    lists = tuple(
        tuple(Action.parse(str(a)) for step in rows[actor] for a in step.sub_actions or (step,))
        for actor in range(3)
    )
    placement = zb_v(3, 8).placement
    report = validate(Schedule("dual-pipe-v", placement, (0,) * 8, lists))
    assert {a.kind for row in lists for a in row} == {
        *(Kind.FORWARD, Kind.BACKWARD),
        *(Kind.INPUT, Kind.WEIGHT),
    }
    assert max(report.peak_live) <= 7
