"""What a plan says, and what it refuses: before there is any process."""

from __future__ import annotations

import dataclasses
import pickle
import re
from textwrap import dedent

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import mpi4dl
from mpi4dl import Plan, PlanError
from mpi4dl.errors import Mpi4dlError
from mpi4dl.geometry import Layout
from mpi4dl.pipeline import StageKind
from mpi4dl.pipeline.near import near
from mpi4dl.schedule import SCHEDULES, lower, validate

SEED_EXAMPLES = [
    ({"split_size": 2, "num_spatial_parts": 4, "spatial_size": 1}, 5, "4 + 1 = 5"),
    ({"split_size": 3, "num_spatial_parts": 4, "spatial_size": 2}, 9, "4 + 4 + 1 = 9"),
    ({"split_size": 5, "num_spatial_parts": 4, "spatial_size": 1}, 8, "4 + 1 + 1 + 1 + 1 = 8"),
    ({"split_size": 2, "num_spatial_parts": 4, "local_dp": 4}, 8, "4 + 4 = 8"),
    ({"split_size": 3, "num_spatial_parts": (4, 2)}, 7, "4 + 2 + 1 = 7"),
    ({"split_size": 3, "num_spatial_parts": (2, 4)}, 7, "2 + 4 + 1 = 7"),
    ({"split_size": 2, "num_spatial_parts": 4, "replicas": 2}, 10, "2 × (4 + 1) = 10"),
    ({"replicas": 3}, 3, "3 × 1 = 3"),
    ({}, 1, "1"),
]


@pytest.mark.parametrize(("settings", "ranks", "terms"), SEED_EXAMPLES)
def test_how_many_ranks(settings, ranks, terms):
    plan = Plan(**settings)
    assert plan.world_size == plan.mesh.size == ranks
    assert plan.sum_of_ranks == terms
    plan.check_world(ranks)


@given(
    split=st.integers(1, 6),
    listed=st.lists(st.integers(1, 6), max_size=6),
    local_dp=st.integers(1, 4),
    replicas=st.integers(1, 3),
)
def test_the_world_is_as_large_as_the_original_documents(split, listed, local_dp, replicas):
    spatial = len(listed)
    assume(spatial < split or (spatial == split and local_dp == 1))
    plan = Plan(
        split_size=split,
        num_spatial_parts=listed or 1,
        local_dp=local_dp,
        replicas=replicas,
    )
    one = split + sum(listed) - spatial + (split - spatial) * (local_dp - 1)
    assert plan.world_size == one * replicas
    assert plan.mesh.ranks_of_replica == one


def test_one_integer_stands_for_every_spatial_stage():
    plan = Plan(split_size=4, num_spatial_parts=4, spatial_size=3)
    assert [plan.tiles(stage) for stage in range(4)] == [4, 4, 4, 1]
    assert [plan.mesh.ranks(0, 0, stage)[0] for stage in range(4)] == [0, 4, 8, 12]


@pytest.mark.parametrize(
    ("settings", "spatial_size"),
    [
        ({}, 0),
        ({"num_spatial_parts": 4}, 1),
        ({"num_spatial_parts": (4, 2)}, 2),
        ({"num_spatial_parts": (4,)}, 1),
        ({"num_spatial_parts": 4, "spatial_size": 3}, 3),
    ],
)
def test_how_many_stages_are_spatial_if_nothing_is_said(settings, spatial_size):
    assert Plan(split_size=4, **settings).spatial_size == spatial_size


def test_lists_may_be_written_in_three_ways():
    plans = {
        Plan(split_size=3, num_spatial_parts=parts, slice_method=methods, balance=balance)
        for parts, methods, balance in [
            ((4, 2), ("square", "vertical"), (3, 2, 1)),
            ([4, 2], ["square", "vertical"], [3, 2, 1]),
            ("4,2", "square, vertical", "3,2,1"),
        ]
    }
    (plan,) = plans
    assert plan.num_spatial_parts == (4, 2)
    assert plan.slice_methods == ("square", "vertical")
    assert Plan(num_spatial_parts="4", balance="7") == Plan(num_spatial_parts=4, balance=(7,))


def test_kinds_of_stages():
    plan = Plan(split_size=3, num_spatial_parts=(4, 1), local_dp=2)
    assert [plan.kind(s) for s in range(3)] == [
        StageKind.SPATIAL,
        StageKind.WHOLE,
        StageKind.BATCH,
    ]


def test_layouts():
    plan = Plan(
        split_size=4,
        num_spatial_parts=(4, 6, 2),
        slice_method=("square", "2x3", "horizontal"),
        local_dp=3,
    )
    size = (5, 97, 75)
    assert plan.layout(0, size) == Layout.grid(size, (1, 2, 2))
    assert plan.layout(1, size) == Layout.grid(size, (1, 2, 3))
    assert plan.layout(2, size) == Layout.grid(size, (1, 2, 1))
    assert plan.layout(3, size) == Layout.grid(size, (3, 1, 1))
    assert plan.layout(3, (5, 10)) == Layout.grid((5, 10), (3, 1))
    assert Plan().layout(0, size) == Layout.grid(size, (1, 1, 1))
    for stage in range(4):
        assert plan.layout(stage, size).ranks == len(plan.mesh.ranks(0, 0, stage))


def test_the_whole_model_may_be_spatial():
    plan = Plan(split_size=2, num_spatial_parts=2, spatial_size=2)
    assert [plan.kind(stage) for stage in (0, 1)] == [StageKind.SPATIAL] * 2


# ── schedules ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_has_a_part_for_every_rank(name):
    times = 2 if SCHEDULES[name].bidirectional else 1
    plan = Plan(split_size=4, num_spatial_parts=2, local_dp=2, parts=3, schedule=name, times=times)
    schedule = plan.make_schedule()
    assert schedule is plan.make_schedule()
    assert schedule.placement == plan.placement
    assert plan.mesh.table == plan.placement.table
    assert schedule.micro_batches == 3 * times == plan.micro_batches
    assert validate(schedule)
    program = lower(schedule)
    for rank in range(plan.world_size):
        assert {a.stage for a in program.part(plan.mesh.held(rank)) if a.kind.computes} == {
            stage for _, stage in plan.mesh.held(rank)
        }


def test_evaluation_has_the_weights_where_training_has_them():
    plan = Plan(split_size=4, parts=3, schedule="zb-v")
    assert plan.forward_schedule().placement == plan.placement
    assert plan.forward_schedule().micro_batches == 3
    assert plan.forward_schedule(7).micro_batches == 7
    assert not plan.forward_schedule().trains


def test_gems_with_one_batch_uses_one_direction_and_says_so():
    plan = Plan(split_size=2, schedule="gems")
    assert plan.mesh.directions == 1
    assert "directions    1: with times 1 nothing is mirrored" in str(plan)
    assert Plan(split_size=2, schedule="gems", times=2).mesh.directions == 2


def test_mirrored_tiles_may_share_ranks():
    """The original asks for twice as many ranks as parts here."""
    plan = Plan(split_size=2, num_spatial_parts=4, schedule="gems", times=2)
    assert plan.world_size == 5
    assert plan.mesh.held(2) == ((0, 0), (1, 0))


# ── batches ──────────────────────────────────────────────────────────────────────────────────────


def test_micro_batches_differ_by_at_most_one_sample():
    plan = Plan(split_size=2, parts=2, schedule="gems", times=2, replicas=2)
    assert plan.micro_batches == 8
    assert plan.split_batch(8) == ((1, 1, 1, 1), (1, 1, 1, 1))
    assert plan.split_batch(11) == ((2, 2, 1, 1), (2, 1, 1, 1))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 40))
def test_every_sample_is_in_one_micro_batch(replicas, parts, more):
    plan = Plan(replicas=replicas, parts=parts)
    samples = plan.micro_batches + more
    sizes = [size for replica in plan.split_batch(samples) for size in replica]
    assert (len(sizes), sum(sizes)) == (plan.micro_batches, samples)
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


@pytest.mark.parametrize(
    ("settings", "samples", "why"),
    [
        (
            {"parts": 4, "replicas": 2},
            7,
            "a step has 7 samples, and the plan makes 8 micro-batches of it (replicas 2 × times 1 "
            "× parts 4): use at least 8 samples, or parts 3",
        ),
        ({"split_size": 2, "schedule": "gems", "times": 2}, 1, "1 sample, and the plan makes 2 "),
        ({"replicas": 2}, 0, "use at least 2 samples"),
    ],
)
def test_batches_that_are_too_small(settings, samples, why):
    with pytest.raises(PlanError, match=re.escape(why)):
        Plan(**settings).check_batch(samples)


# ── the world ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "ranks", "why"),
    [
        (
            {"split_size": 2, "num_spatial_parts": 4},
            8,
            "this plan is for 5 ranks (4 + 1 = 5), and there are 8: start 5, or plan for 8 with "
            "local_dp 4 or num_spatial_parts 7 or split_size 5",
        ),
        (
            {"split_size": 2, "num_spatial_parts": 4},
            10,
            "(4 + 1 = 5), and there are 10: start 5, or plan for 10 with replicas 2 or",
        ),
        ({}, 4, "this plan is for 1 rank (1), and there are 4: start 1, or plan for 4 with rep"),
        ({"replicas": 2, "split_size": 2}, 1, "(2 × (1 + 1) = 4), and there is 1: start 4"),
        (
            {"split_size": 2, "num_spatial_parts": 4, "schedule": "gems", "times": 2},
            4,
            "(4 + 1 = 5), and there are 4: start 5, or plan for 4 with num_spatial_parts 3",
        ),
    ],
)
def test_another_number_of_ranks_is_refused_with_what_would_fit_it(settings, ranks, why):
    with pytest.raises(PlanError, match=re.escape(why)):
        Plan(**settings).check_world(ranks)


@pytest.mark.parametrize("ranks", range(1, 13))
def test_what_is_proposed_fits(ranks):
    plan = Plan(split_size=3, num_spatial_parts=4, spatial_size=2, parts=4)
    for proposal in near(plan, ranks):
        name, value = proposal.split()
        assert dataclasses.replace(plan, **{name: int(value)}).world_size == ranks


# ── what cannot be ───────────────────────────────────────────────────────────────────────────────

IMPOSSIBLE = [
    ({"split_size": 0}, "split_size is 0; it must be at least 1"),
    ({"parts": 0}, "parts is 0; it must be at least 1"),
    ({"local_dp": -1}, "local_dp is -1; it must be at least 1"),
    ({"replicas": 0}, "replicas is 0; it must be at least 1"),
    ({"times": 0, "schedule": "gems"}, "times is 0; it must be at least 1"),
    ({"fused_layers": 0}, "fused_layers is 0; it must be at least 1"),
    ({"spatial_size": -1}, "spatial_size is -1; it must be at least 0"),
    ({"split_size": 2.5}, "split_size is 2.5; it must be an integer"),
    ({"parts": True}, "parts is True; it must be an integer"),
    ({"parts": "many"}, "parts is 'many'; it must be an integer"),
    ({"halo_d2": 1}, "halo_d2 is 1; it must be True or False"),
    ({"slice_method": 4}, "slice_method is 4; it must be a word"),
    ({"num_spatial_parts": 0}, "num_spatial_parts is 0; a stage has at least 1 part"),
    (
        {"split_size": 3, "num_spatial_parts": (4, 0)},
        "num_spatial_parts is (4, 0); a stage has at least 1 part",
    ),
    ({"num_spatial_parts": ()}, "num_spatial_parts is an empty list; use 1"),
    (
        {"split_size": 2, "num_spatial_parts": 4, "spatial_size": 3},
        "spatial_size is 3, and there are 2 stages (split_size): use spatial_size 2, or split_size "
        "3",
    ),
    (
        {"num_spatial_parts": (4, 2)},
        "spatial_size is 2, and there is 1 stage (split_size): use spatial_size 1, with 1 of the "
        "numbers (4, 2), or split_size 2",
    ),
    (
        {"split_size": 3, "num_spatial_parts": (4, 2), "spatial_size": 1},
        "num_spatial_parts lists 2 stages (4, 2), and spatial_size is 1: use one value for all of "
        "them, such as num_spatial_parts=4, or list 1, or spatial_size 2",
    ),
    (
        {"split_size": 3, "num_spatial_parts": 4, "slice_method": ("square", "vertical")},
        "slice_method lists 2 stages ('square', 'vertical'), and spatial_size is 1: use one value",
    ),
    (
        {"split_size": 2, "num_spatial_parts": 4, "spatial_size": 2, "local_dp": 4},
        "local_dp is 4, and all 2 stages are spatial: no stage is left to share the batch in. Use "
        "local_dp 1, or split_size 3",
    ),
    ({"slice_method": "diagonal"}, "unknown slice method 'diagonal': use square, vertical"),
    (
        {"split_size": 2, "num_spatial_parts": 4, "slice_method": "2x3"},
        "slice_method of stage 0: the grid 2x3 has 6 parts, and 4 were asked for; use "
        "num_spatial_parts 6, or square",
    ),
    ({"schedule": "1f1"}, "there is no schedule '1f1', only layer, gpipe, 1f1b"),
    (
        {"times": 3, "parts": 2},
        "times is 3, and gpipe trains 1 batch a step: use parts 6, or one of gems, chimera, zb-ch",
    ),
    (
        {"split_size": 5, "schedule": "zb-v"},
        "zb-v puts 2 stages on every actor, and 5 stages cannot be shared out like that; use 4",
    ),
    (
        {"split_size": 8, "schedule": "interleaved", "stages_per_actor": 3},
        "use 6 or 9 stages, or stages_per_actor 2 or 4 or 8",
    ),
    (
        {"split_size": 4, "stages_per_actor": 2},
        "gpipe puts 1 stage on every actor, and stages_per_actor is 2; use interleaved",
    ),
    (
        {"split_size": 4, "num_spatial_parts": 4, "schedule": "interleaved"},
        "interleaved puts the stages 0 and 2 on the same ranks, and they need 4 and 1. Use "
        "local_dp 4, or equally many parts in both, or a schedule with one stage on each rank",
    ),
    (
        {"split_size": 4, "num_spatial_parts": (4, 2, 2, 2), "schedule": "zb-v"},
        "zb-v puts the stages 0 and 3 on the same ranks, and they need 4 and 2. Use equally many",
    ),
    (
        {"split_size": 3, "balance": (3, 4)},
        "balance lists the layers of 2 stages (3, 4), and there are 3 stages (split_size): list 3 "
        "numbers, or use split_size 2",
    ),
    (
        {"split_size": 3, "balance": (3, 0, 1)},
        "balance is (3, 0, 1); every stage needs at least 1 layer: with 4 layers, split_size is at "
        "most 4",
    ),
    ({"fused_layers": 4}, "fused_layers is 4, and halo_d2 is off: use halo_d2=True, or fused_la"),
    ({"checkpoint_activations": -2}, "checkpoint_activations is -2; use False, True, or"),
    ({"precision": "float16"}, "precision is 'float16', not one of fp32, bf16, fp16; did you mean"),
    (
        {"split_size": 2, "master_comm_opt": True},
        "master_comm_opt is for two directions, and gpipe has 1: use one of gems, chimera",
    ),
    (
        {"split_size": 2, "schedule": "gems", "master_comm_opt": True},
        "master_comm_opt is for two directions, and gems with times 1 uses 1: use times 2",
    ),
]


@pytest.mark.parametrize(("settings", "why"), IMPOSSIBLE, ids=lambda value: str(value)[:60])
def test_what_cannot_be_is_refused_with_what_can(settings, why):
    with pytest.raises(PlanError, match=re.escape(why)) as caught:
        Plan(**settings)
    assert isinstance(caught.value, (Mpi4dlError, ValueError))


def test_the_remedies_of_the_messages_work():
    """Of those that name a value: what the message proposes is a plan."""
    for plan in [
        {"split_size": 2, "num_spatial_parts": 4, "spatial_size": 2},
        {"split_size": 3, "num_spatial_parts": 4, "spatial_size": 3},
        {"split_size": 3, "num_spatial_parts": 4, "spatial_size": 2, "local_dp": 4},
        {"split_size": 2, "num_spatial_parts": 6, "slice_method": "2x3"},
        {"split_size": 2, "num_spatial_parts": 4, "slice_method": "square"},
        {"parts": 6},
        {"split_size": 4, "num_spatial_parts": 4, "schedule": "interleaved", "local_dp": 4},
        {"split_size": 4, "num_spatial_parts": (4, 2, 2, 4), "schedule": "zb-v"},
        {"split_size": 4, "num_spatial_parts": 4, "schedule": "1f1b"},
        {"split_size": 2, "schedule": "gems", "times": 2, "master_comm_opt": True},
        {"fused_layers": 4, "halo_d2": True},
    ]:
        Plan(**plan)


# ── text ─────────────────────────────────────────────────────────────────────────────────────────


def test_printed():
    plan = Plan(
        split_size=2,
        num_spatial_parts=4,
        parts=2,
        schedule="gems",
        times=2,
        replicas=2,
        local_dp=2,
        balance=(5, 3),
    )
    expected = """\
        2 stages on 12 ranks (2 × (4 + 2) = 12)
          schedule      gems
          micro-batches 8 a step: 2 replicas × 2 batches × 2 parts

          stage  layers  ranks   each rank has                  mirrored
          0      5       0 to 3  1/4 of each image, square 2×2  5 to 2
          1      3       4 to 5  1/2 of each micro-batch        1 to 0

        direction 0
          stage 0          stage 1
          ┌───┬───┐        ┌───┐
          │ 0 │ 1 │   ─▶   │ 4 │
          ├───┼───┤        ╞╌╌╌╡
          │ 2 │ 3 │        │ 5 │
          └───┴───┘        └───┘
        direction 1, mirrored
          stage 0          stage 1
          ┌───┬───┐        ┌───┐
          │ 5 │ 4 │   ─▶   │ 1 │
          ├───┼───┤        ╞╌╌╌╡
          │ 3 │ 2 │        │ 0 │
          └───┴───┘        └───┘
        replica 1: the same 6 further on, ranks 6 to 11"""
    assert str(plan) == dedent(expected)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"precision": "bf16"}, "precision     autocast to bf16"),
        ({"checkpoint_activations": 3}, "checkpoints   activations are computed again, 3 layers"),
        ({"checkpoint_activations": True}, "computed again, 1 layer at a time"),
        ({"halo_d2": True}, "halos         none: no stage is cut"),
        (
            {"split_size": 2, "num_spatial_parts": 6, "halo_d2": True, "fused_layers": 2},
            "halos         fused over 2 layers",
        ),
        (
            {"split_size": 2, "num_spatial_parts": 6, "slice_method": "vertical"},
            "1/6 of each image, vertical 1×6",
        ),
        (
            {"split_size": 2, "num_spatial_parts": 8, "slice_method": "2x2x2"},
            "1/8 of each image, 2×2×2",
        ),
        (
            {"split_size": 2, "schedule": "gems", "times": 2, "master_comm_opt": True},
            "gradients     exchanged between mirrored ranks",
        ),
    ],
)
def test_the_table_says_what_was_chosen(settings, line):
    assert line in str(Plan(**settings))


def test_many_stages_fold_into_several_lines():
    lines = str(Plan(split_size=12)).splitlines()
    assert max(map(len, lines)) <= 100
    assert sum("─▶" in line for line in lines) > 1


def test_repr_names_what_was_chosen():
    plan = Plan(split_size=2, num_spatial_parts=4)
    assert repr(plan) == "Plan(split_size=2, num_spatial_parts=4, spatial_size=1)"
    assert eval(repr(plan), {"Plan": Plan}) == plan
    assert repr(Plan()) == "Plan()"


def test_plans_are_values():
    plan = Plan(split_size=2, num_spatial_parts=4)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert dataclasses.replace(plan, parts=3).parts == 3
    assert mpi4dl.Plan is Plan
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.parts = 3
