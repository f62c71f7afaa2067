"""What a process finds out about its surroundings, and what it says where they are not usable."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import mpi4dl
from mpi4dl.comm.communicator import SERIAL, Serial, use
from mpi4dl.comm.launch import communicator
from support.ranks import UNDER_TORCHRUN, run_ranks

pytestmark = pytest.mark.skipif(UNDER_TORCHRUN, reason="these processes have a group already")

COMPLETE = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture
def launched(monkeypatch):
    """Sets the launcher's variables to these and no others, and lets no group be formed."""

    def formed(*args: object) -> None:
        pytest.fail("a process group was formed")

    def launched(**variables: str) -> None:
        for name in (*COMPLETE, "LOCAL_RANK", "MPI4DL_BACKEND"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    monkeypatch.setattr(dist, "init_process_group", formed)
    return launched


def test_without_a_launcher_there_is_one_rank(launched):
    launched()
    assert mpi4dl.init() is mpi4dl.init() is SERIAL
    assert (SERIAL.rank, SERIAL.size) == (0, 1)
    assert not dist.is_initialized()
    mpi4dl.shutdown()  # of nothing


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        (["RANK"], "WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        (["WORLD_SIZE", "MASTER_PORT"], "RANK, MASTER_ADDR"),
        (["RANK", "WORLD_SIZE", "MASTER_ADDR"], "MASTER_PORT"),
    ],
)
def test_half_an_environment_is_refused_with_both_halves(launched, present, missing):
    launched(**{name: COMPLETE[name] for name in present})
    message = f"the environment has {', '.join(present)} and lacks {missing}: start with torchrun"
    with pytest.raises(mpi4dl.LaunchError, match=message):
        mpi4dl.init()


def test_a_pytorch_without_distributed_is_refused(launched, monkeypatch):
    launched(**COMPLETE)
    monkeypatch.setattr(dist, "is_available", lambda: False)
    with pytest.raises(mpi4dl.LaunchError, match=r"no torch\.distributed: install another"):
        mpi4dl.init()


@pytest.mark.parametrize(
    ("variables", "rank"), [({"RANK": "3"}, 3), ({"RANK": "7", "LOCAL_RANK": "2"}, 2)]
)
def test_more_ranks_than_gpus_are_refused(launched, monkeypatch, variables, rank):
    launched(**{**COMPLETE, "WORLD_SIZE": "8", **variables})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    message = f"local rank {rank} has no GPU: this machine shows 2.*MPI4DL_BACKEND=gloo"
    with pytest.raises(mpi4dl.LaunchError, match=message):
        mpi4dl.init()


@pytest.mark.parametrize(
    ("gpus", "asked", "variable", "backend"),
    [
        (0, None, None, "gloo"),
        (1, None, None, "nccl"),
        (1, None, "gloo", "gloo"),
        (1, "gloo", "nccl", "gloo"),
        (0, "fake", None, "fake"),
    ],
)
def test_the_backend_is_the_one_asked_for_or_fits_the_machine(
    launched, monkeypatch, gpus, asked, variable, backend
):
    class FormedError(Exception):
        pass

    def formed(name: str) -> None:
        raise FormedError(name)

    launched(**COMPLETE, **({"MPI4DL_BACKEND": variable} if variable else {}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(dist, "init_process_group", formed)
    monkeypatch.setattr(dist, "is_backend_available", lambda name: True)
    with pytest.raises(FormedError, match=f"^{backend}$"):
        mpi4dl.init(asked)


def test_a_communicator_in_use_is_the_one_that_counts():
    ours = Serial()
    with use(ours):
        assert communicator() is mpi4dl.init() is ours
    assert communicator() is SERIAL
    assert run_ranks(3, lambda comm: communicator() is comm) == [True] * 3
