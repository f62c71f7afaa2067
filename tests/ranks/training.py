"""Run under torchrun: training steps on tiles against one process, and what processes add.

Every rank computes the reference itself and asserts against it.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import mpi4dl
from mpi4dl.comm.launch import communicator
from mpi4dl.geometry import square_grid

torch.set_num_threads(1)


def classifier() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=2, padding=3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.GroupNorm(2, 8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).double()


def segmenter() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.Conv2d(8, 8, 4, stride=2, padding=1),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
    ).double()


def step(model: nn.Module, x: Tensor, y: Tensor, reduction: str) -> Tensor:
    loss = F.cross_entropy(model(x), y, reduction=reduction)
    loss.backward()
    return loss.detach()


def check(make, batch: int, dense: bool, reduction: str, ddp: bool, steps: int) -> None:
    comm = communicator()
    torch.manual_seed(7)
    reference = make()
    model = copy.deepcopy(reference)
    wrapped = DistributedDataParallel(model) if ddp and comm.size > 1 else model
    # A sum over the labels has gradients that are larger by their number.
    rate = 0.01 / (batch * (38 * 46 if dense else 1) if reduction == "sum" else 1)
    ours = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    theirs = torch.optim.SGD(reference.parameters(), lr=rate, momentum=0.9)
    for _ in range(steps):
        x = torch.randn(batch, 3, 38, 46, dtype=torch.float64)
        shape = (batch, 38, 46) if dense else (batch,)
        y = torch.randint(0, 4, shape)
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
        want = step(reference, x, y, reduction)
        tile = mpi4dl.shard(x, grid=square_grid(comm.size))
        labels = mpi4dl.shard(y, grid=square_grid(comm.size)) if dense else y
        got = step(wrapped, tile, labels, reduction)
        if wrapped is model:
            mpi4dl.sync_gradients(model)
        assert abs(got - want) <= 1e-12 * abs(want), (got, want)
        largest = max(p.grad.norm() for p in reference.parameters())
        for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
            error = (p.grad - q.grad).norm() / (q.grad.norm() + 1e-3 * largest)
            assert error <= 1e-11, (name, error)
        ours.step()
        theirs.step()
    for (name, a), b in zip(
        model.state_dict().items(), reference.state_dict().values(), strict=True
    ):
        assert torch.allclose(a.double(), b.double(), rtol=1e-10, atol=1e-12), name


def check_dropout() -> None:
    comm = communicator()
    x = torch.ones(1, 2, 8 * comm.size, 8)

    def draw(seed: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(seed)
        tile = mpi4dl.shard(x, grid=(comm.size, 1))
        return F.dropout(tile, 0.5).full_tensor(), F.dropout2d(tile).full_tensor(), torch.rand(4)

    first, again, other = draw(1), draw(1), draw(2)
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b), "one seed must reproduce a run"
        parts = comm.all_gather(a)
        assert all(torch.equal(p, a) for p in parts), "ranks must stay in step"
    assert not torch.equal(first[0], other[0])
    blocks = first[0].chunk(comm.size, 2)
    assert comm.size == 1 or not torch.equal(blocks[0], blocks[1]), "tiles must differ"
    assert 0.3 < (first[0] == 0).double().mean() < 0.7


def check_errors() -> None:
    """A mistake on one rank is the same error on all of them, at once."""
    comm = communicator()
    if comm.size == 1:
        return
    layout = mpi4dl.Layout.grid((12, 12), (comm.size, 1))
    rows = layout.boxes[comm.rank].shape[0] + (comm.rank == comm.size - 1)
    with pytest.raises(mpi4dl.LayoutMismatch, match=f"rank {comm.size - 1}"):
        mpi4dl.Tile.from_local(torch.zeros(1, 3, rows, 12), layout)
    with pytest.raises(mpi4dl.LayoutMismatch, match="ranks do not agree"):
        mpi4dl.shard(torch.zeros(1, 3 + (comm.rank == 0), 12, 12), grid=(comm.size, 1))
    x = torch.zeros(1, 3, 12, 12, requires_grad=comm.rank == 0)
    with pytest.raises(mpi4dl.LayoutMismatch, match="ranks do not agree"):
        mpi4dl.shard(x, grid=(comm.size, 1))
    with pytest.raises(mpi4dl.LayoutMismatch, match="product"):
        mpi4dl.shard(torch.zeros(1, 3, 12, 12), grid=(comm.size + 1, 1))
    with pytest.raises(mpi4dl.UnsupportedOperator, match="fft"):
        torch.fft.fft2(mpi4dl.shard(torch.zeros(1, 3, 12, 12), grid=(comm.size, 1)))
    torch.manual_seed(comm.rank)
    model = nn.Conv2d(3, 2, 3)
    model(mpi4dl.shard(torch.zeros(1, 3, 12, 12), grid=(comm.size, 1))).sum().backward()
    with pytest.raises(mpi4dl.LayoutMismatch, match="different values in 2 parameters, weight"):
        mpi4dl.sync_gradients(model)
    torch.manual_seed(0)
    local = torch.full(layout.boxes[comm.rank].shape, float(comm.rank))
    tile = mpi4dl.Tile.from_local(local, layout)
    assert tile.shape == (12, 12)
    assert tile.full_tensor()[-1, -1] == comm.size - 1


def main() -> None:
    comm = mpi4dl.init()
    drawn = comm.all_gather(torch.rand(4))
    assert all(torch.equal(d, drawn[0]) for d in drawn), "unseeded ranks must start in step"
    count = 0
    for ddp in (False, True):
        for reduction in ("mean", "sum"):
            for batch, steps in ((2, 10), (3, 2)):
                check(classifier, batch, False, reduction, ddp, steps)
                check(segmenter, batch - 1, True, reduction, ddp, steps)
                count += 2
    check_dropout()
    check_errors()
    if comm.rank == 0:
        print(f"{count} training runs over {comm.size} processes: all equal")


main()
