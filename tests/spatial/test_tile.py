"""Tiles live with the rest of PyTorch: checkpoints, autocast, memory formats, copies, printing."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import mpi4dl
from mpi4dl import Box, Layout, Tile, shard
from support.exactness import Constant, assert_exact, on_tiles, rand, relative
from support.ranks import UNDER_TORCHRUN, run_ranks


class Net(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(6, 6, 3, padding=1),
            nn.GroupNorm(2, 6),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.head = nn.Conv2d(6, 2, 1)
        self.reentrant = reentrant

    def forward(self, x):
        x = self.stem(x)
        if self.reentrant is None:
            x = self.block(x)
        else:
            x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.head(x)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("grid", [(2, 2), (3, 1)])
def test_activation_checkpointing(reentrant, grid):
    assert_exact(Net(reentrant), rand(2, 3, 21, 26), grid=grid)


def test_checkpointing_of_everything_and_with_empty_tiles():
    net = Net()

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=False)

    assert_exact(Whole(), rand(2, 3, 21, 26), grid=(2, 2))
    assert_exact(Whole(), rand(2, 3, 5, 9), grid=(4, 2))


@pytest.mark.parametrize("reentrant", [None, False])
@pytest.mark.parametrize("grid", [(2, 2), (3, 1), (4, 3)])
def test_images_that_want_no_gradient_and_frozen_layers(reentrant, grid):
    assert_exact(Net(reentrant), Constant(rand(2, 3, 24, 26)), grid=grid)
    net = Net(reentrant)
    net.stem.requires_grad_(False)
    assert_exact(net, Constant(rand(2, 3, 24, 26)), grid=grid)
    net.head.requires_grad_(False)
    assert_exact(net, rand(2, 3, 24, 26), grid=grid)


def test_autocast_to_bfloat16():
    net = Net().float()
    x = rand(2, 3, 21, 26, dtype=torch.float32)

    def program(module):
        def run(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = module(x)
                return out, F.cross_entropy(out, torch.zeros(2, 5, 6, dtype=torch.long))

        return run

    out, loss = program(copy.deepcopy(net))(x)
    # Each rank updates the running statistics of its own copy.
    got_out, got_loss = on_tiles(lambda x: program(copy.deepcopy(net))(x), [x], (2, 2)).outputs
    assert out.dtype == got_out.dtype == torch.bfloat16
    assert loss.dtype == got_loss.dtype
    # A few roundings of bfloat16 (2⁻⁸ each) on the way.
    assert relative(got_out, out) < 4 * 2**-8
    assert relative(got_loss, loss) < 4 * 2**-8


def test_channels_last_stays_channels_last():
    def program(comm):
        x = rand(2, 3, 12, 14).contiguous(memory_format=torch.channels_last)
        net = Net().double().to(memory_format=torch.channels_last)
        tile = shard(x, grid=(2, 2)).contiguous(memory_format=torch.channels_last)
        hidden = F.max_pool2d(net.stem[0](tile), 3, 1, 1)
        return hidden.is_contiguous(memory_format=torch.channels_last)

    assert all(run_ranks(4, program))
    x = rand(2, 3, 21, 26)

    def last(x):
        return x.to(memory_format=torch.channels_last)

    class Last(Net):
        def forward(self, x):
            return super().forward(last(x))

    assert_exact(Last(), x, grid=(2, 2))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    net = Net().double().eval()
    x = rand(1, 3, 21, 26)
    with torch.no_grad():
        want = net(x)

    def program(comm):
        with mode():
            out = net(shard(x, grid=(2, 2)))
            assert not out.requires_grad
            return out.full_tensor()

    for got in run_ranks(4, program):
        assert relative(got.clone(), want) < 1e-12


def test_deepcopy_print_state_dict_and_data():
    def program(comm):
        net = Net().double()
        tile = shard(rand(1, 3, 21, 26), grid=(2, 2))
        tile.requires_grad_()
        twin = copy.deepcopy(tile)
        assert isinstance(twin, Tile)
        assert twin.requires_grad
        assert twin.data_ptr() != tile.data_ptr()
        text = f"{tile!r} {tile} {net(tile)}"
        assert "global (1, 3, 21, 26)" in text
        assert f"rank {comm.rank}/4" in text
        buffer = io.BytesIO()
        torch.save(net.state_dict(), buffer)
        buffer.seek(0)
        net.load_state_dict(torch.load(buffer, weights_only=True))
        with pytest.raises(TypeError, match="cannot be pickled"):
            torch.save(tile, io.BytesIO())
        assert isinstance(tile.data, Tile)
        assert isinstance(tile.detach(), Tile)

    run_ranks(4, program)


def test_shapes_are_those_of_the_whole_image():
    def program(comm):
        tile = shard(rand(2, 3, 7, 9), grid=(2, 2))
        assert tile.shape == tile.size() == tile.global_shape == (2, 3, 7, 9)
        assert tile.size(-1) == 9
        assert tile.dim() == tile.ndim == 4
        assert tile.numel() == 2 * 3 * 7 * 9
        assert len(tile) == 2
        assert tile.layout == Layout.grid((7, 9), (2, 2))
        assert tile.to_local().shape[2:] == tile.layout.boxes[comm.rank].shape
        assert type(tile.to_local()) is torch.Tensor
        assert tile.dtype == torch.float64
        assert tile.is_floating_point()
        assert not tile.is_cuda
        assert tile.new_zeros(4).shape == (4,)
        assert torch.zeros_like(tile).shape == tile.shape

    run_ranks(4, program)


def test_gradients_of_tiles_are_tiles():
    def program(comm):
        tile = shard(rand(1, 2, 7, 9), grid=(2, 2)).requires_grad_()
        out = tile * 3
        out.sum().backward()
        assert isinstance(tile.grad, Tile)
        assert torch.equal(
            tile.grad.full_tensor(), torch.full((1, 2, 7, 9), 3.0 * comm.size).double()
        )
        (grad,) = torch.autograd.grad((tile * 2).sum(), tile)
        assert isinstance(grad, Tile)
        whole = rand(1, 2, 7, 9, seed=3)
        (by_whole,) = torch.autograd.grad(tile * 2, tile, whole)
        assert torch.equal(by_whole.full_tensor(), 2 * whole)
        tile.grad = None
        (tile * 2).backward(shard(whole, grid=(2, 2)))
        assert torch.equal(tile.grad.full_tensor(), 2 * whole)

    run_ranks(4, program)


def test_from_local_and_redistribute():
    x = rand(1, 2, 9, 10)

    def program(comm):
        layout = Layout.from_cuts((9, 10), [(3,), (7,)])
        box = layout.boxes[comm.rank]
        tile = Tile.from_local(x[(..., *box.slices_in(mpi4dl.Box.full((9, 10))))], layout)
        assert torch.equal(tile.full_tensor(), x)
        other = tile.redistribute(Layout.grid((9, 10), (4, 1)))
        assert other.layout == Layout.grid((9, 10), (4, 1))
        assert torch.equal(other.full_tensor(), x)

    run_ranks(4, program)


@pytest.mark.skipif(UNDER_TORCHRUN, reason="about a process that is alone")
def test_one_process_needs_no_process_group():
    tile = shard(rand(1, 3, 9, 9))
    assert torch.equal(tile.full_tensor(), tile.to_local())
    net = Net().double()
    net(tile).sum().backward()
    mpi4dl.sync_gradients(net)
    assert all(p.grad is not None for p in net.parameters())


def test_errors_name_operator_and_layer():
    class Spectral(nn.Module):
        def forward(self, x):
            return torch.fft.fft2(x)

    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(nn.ReLU(), Spectral())).double()
    with pytest.raises(
        mpi4dl.UnsupportedOperator, match=r"fft_fft2.*1\.1 \(Spectral\).*spatial_op"
    ):
        on_tiles(net, [rand(1, 3, 8, 8)], (2, 1))


def test_a_user_registers_an_operator():
    from mpi4dl.spatial.registry import HANDLERS

    with pytest.raises(mpi4dl.UnsupportedOperator):
        on_tiles(torch.special.bessel_j0, [rand(1, 2, 8, 8)], (2, 1))

    @mpi4dl.spatial_op(torch.special.bessel_j0)
    def bessel(func, x):
        return mpi4dl.wrap(func(x.to_local()), x.placement)

    try:
        x = rand(1, 2, 8, 8)
        got = on_tiles(lambda x: torch.special.bessel_j0(x.detach()), [x], (2, 1)).outputs[0]
        assert torch.equal(got, torch.special.bessel_j0(x))
    finally:
        del HANDLERS[torch.special.bessel_j0]


def test_values_of_a_part_are_never_taken_for_the_whole():
    def program(comm):
        tile = shard(rand(1, 1, 8, 8), grid=(2, 1))
        for ask in (float, bool, lambda t: t.item(), lambda t: t.numpy(), lambda t: t.tolist()):
            with pytest.raises(mpi4dl.UnsupportedOperator, match="full_tensor"):
                ask(tile)
        with pytest.raises(mpi4dl.UnsupportedOperator, match="in place"):
            torch.zeros(1, 1, 8, 8, dtype=torch.float64).add_(tile)
        with pytest.raises(mpi4dl.UnsupportedOperator, match="out="):
            torch.add(tile, 1, out=torch.zeros(1, 1, 4, 8, dtype=torch.float64))
        with pytest.raises(TypeError, match=r"mpi4dl\.shard"):
            Tile(torch.zeros(3))

    run_ranks(2, program)


def test_wrong_layouts_are_refused_with_both_numbers():
    def program(comm):
        with pytest.raises(mpi4dl.LayoutMismatch, match="6 ranks and there are 2"):
            shard(rand(1, 1, 8, 8), grid=(2, 3))
        with pytest.raises(mpi4dl.LayoutMismatch, match=r"size \(9, 9\)"):
            shard(rand(1, 1, 8, 8), layout=Layout.grid((9, 9), (2, 1)))
        with pytest.raises(mpi4dl.LayoutMismatch, match="twice"):
            shard(rand(1, 1, 8, 8), grid=(2, 1), dims=(2, -2))
        with pytest.raises(mpi4dl.LayoutMismatch, match="cannot be cut"):
            shard(rand(8), grid=(2, 1))
        with pytest.raises(mpi4dl.LayoutMismatch, match="tile already"):
            shard(shard(rand(1, 1, 8, 8), grid=(2, 1)), grid=(2, 1))

    run_ranks(2, program)


def test_ranks_that_disagree_are_all_told():
    x = rand(1, 2, 8, 8)

    def program(comm):
        first = comm.rank == 0
        calls = [
            lambda: shard(x, grid=(2, 2) if first else (4, 1)),
            lambda: shard(x, grid=(2, 2), dims=(2, 3) if first else (1, 2)),
            lambda: shard(x[0, 0, 0] if first else x, grid=(2, 2)),
            lambda: Tile.from_local(
                rand(1, 2, 4, 4),
                Layout.grid((8, 8), (2, 2)) if first else Layout.from_cuts((8, 8), [(3,), (4,)]),
            ),
            lambda: shard(x, layout=Layout((8,), tuple(Box.of((0, 2)) for _ in range(4)))),
        ]
        for call in calls:
            with pytest.raises(mpi4dl.LayoutMismatch):
                call()

    run_ranks(4, program)


def test_dimensions_may_be_counted_from_either_end():
    x = rand(1, 2, 7, 9)
    layout = Layout.grid((7, 9), (2, 2))

    def program(comm):
        part = shard(x, layout=layout, dims=(2, 3)).to_local()
        tile = Tile.from_local(part, layout, dims=(2, 3))
        assert tile.placement.dims == (-2, -1)
        return tile.full_tensor()

    assert all(torch.equal(got, x) for got in run_ranks(4, program))
