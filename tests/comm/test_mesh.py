"""Which rank has what, in both directions, with replicas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi4dl.comm.mesh import Mesh
from mpi4dl.errors import PlanError
from mpi4dl.schedule import Placement, loop, vee

BOTH = ((0, 1), (1, 0))


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    actors = draw(st.integers(1, 5))
    placement: Placement = draw(
        st.sampled_from([loop(actors), loop(actors, 2), loop(actors, 3), vee(actors)])
    )
    if draw(st.booleans()):
        placement = placement.mirrored()
    tiles = tuple(draw(st.lists(st.integers(1, 6), min_size=actors, max_size=actors)))
    return Mesh(tiles, placement.table, draw(st.integers(1, 3)))


def test_four_tiles_and_one():
    mesh = Mesh((4, 1), ((0, 1),))
    assert (mesh.size, mesh.ranks_of_replica, mesh.stages, mesh.directions) == (5, 5, 2, 1)
    assert mesh.ranks(0, 0, 0) == (0, 1, 2, 3)
    assert mesh.ranks(0, 0, 1) == (4,)
    assert mesh.held(3) == ((0, 0),)
    assert mesh.tile(3, 0, 0) == 3
    assert mesh.copies(0) == (0, 1, 2, 3)


def test_the_mirror_image_gives_ranks_in_the_middle_two_tiles_of_one_stage():
    mesh = Mesh((4, 1), BOTH)
    assert mesh.ranks(0, 1, 0) == (4, 3, 2, 1)
    assert mesh.ranks(0, 1, 1) == (0,)
    assert mesh.held(0) == ((0, 0), (1, 1))
    assert mesh.held(1) == ((0, 0), (1, 0))
    assert mesh.held(4) == ((0, 1), (1, 0))
    assert (mesh.tile(1, 0, 0), mesh.tile(1, 1, 0)) == (1, 3)
    assert mesh.copies(0) == (0, 1, 2, 3, 4)
    assert mesh.copies(1) == (0, 4)


def test_replicas_follow_each_other():
    mesh = Mesh((2, 1), BOTH, replicas=2)
    assert mesh.size == 6
    assert mesh.ranks(1, 0, 0) == (3, 4)
    assert mesh.ranks(1, 1, 0) == (5, 4)
    assert [mesh.replica(rank) for rank in range(6)] == [0, 0, 0, 1, 1, 1]
    assert mesh.copies(1) == (0, 2, 3, 5)


def test_several_stages_of_one_actor():
    mesh = Mesh((2, 1), ((0, 1, 0, 1),))
    assert mesh.held(0) == mesh.held(1) == ((0, 0), (0, 2))
    assert mesh.ranks(0, 0, 3) == (2,)


@given(meshes())
def test_ranks_and_held_are_inverse(mesh):
    pairs = {
        (rank, direction, stage, tile)
        for replica in range(mesh.replicas)
        for direction in range(mesh.directions)
        for stage in range(mesh.stages)
        for tile, rank in enumerate(mesh.ranks(replica, direction, stage))
    }
    assert pairs == {
        (rank, direction, stage, mesh.tile(rank, direction, stage))
        for rank in range(mesh.size)
        for direction, stage in mesh.held(rank)
    }
    for stage in range(mesh.stages):
        assert mesh.copies(stage) == tuple(sorted({r for r, _, s, _ in pairs if s == stage}))


@given(meshes())
def test_rank_r_of_one_direction_is_the_last_but_r_of_the_other(mesh):
    last = mesh.ranks_of_replica - 1
    for stage in range(mesh.stages):
        if mesh.directions == 2:
            there = tuple(last - rank for rank in mesh.ranks(0, 0, stage))
            assert mesh.ranks(0, 1, stage) == there


@given(meshes())
def test_neighbouring_stages_share_all_of_their_ranks_or_none(mesh):
    for direction in range(mesh.directions):
        for stage in range(mesh.stages - 1):
            here = set(mesh.ranks(0, direction, stage))
            there = set(mesh.ranks(0, direction, stage + 1))
            assert here == there or not here & there


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (((4, 1), ((0, 1),), 0), "0 replicas: there must be at least 1"),
        (((4, 0), ((0, 1),)), r"the actors have \(4, 0\) ranks: each needs at least 1"),
        (((), ()), "0 directions: a pipeline has 1 or 2"),
        (((1,), ((0,), (0,), (0,))), "3 directions"),
        (((4, 1), ((0, 0),)), r"stages lie on the actors \[0\], and ranks are given for 2"),
        (((1, 1), ((0, 1), (0, 1))), r"direction 1 .* \(0, 1\); the mirror image .* is \(1, 0\)"),
    ],
)
def test_meshes_that_cannot_be(arguments, why):
    with pytest.raises(PlanError, match=why):
        Mesh(*arguments)


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (lambda mesh: mesh.held(10), "no rank 10: they are 0 to 9"),
        (lambda mesh: mesh.ranks(2, 0, 0), "no replica 2: they are 0 to 1"),
        (lambda mesh: mesh.ranks(0, 1, 0), "no direction 1"),
        (lambda mesh: mesh.copies(-1), "no stage -1"),
        (lambda mesh: mesh.tile(4, 0, 0), "rank 4 has no part of stage 0 in direction 0; ranks"),
    ],
)
def test_questions_without_an_answer(question, why):
    with pytest.raises(PlanError, match=why):
        question(Mesh((4, 1), ((0, 1),), replicas=2))
