"""Groups of layers with one wide exchange: the same results, and fewer messages."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import mpi4dl
from mpi4dl import FusedHalo
from mpi4dl.spatial import margin
from support.exactness import Constant, assert_exact, rand
from support.ranks import UNDER_TORCHRUN, run_ranks


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1, in_place: bool = True) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(in_place)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = self.relu(self.norm1(self.one(x)))
        y = self.norm2(self.two(y))
        y += self.skip(x)
        return self.relu(y)


def net() -> nn.Sequential:
    return nn.Sequential(
        FusedHalo(nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3), nn.BatchNorm2d(4), nn.ReLU(True))),
        FusedHalo(nn.Sequential(Block(4, 4), Block(4, 4))),
        FusedHalo(Block(4, 6, 2)),
        nn.Conv2d(6, 2, 3, padding=1),
    )


GRIDS = [(2, 1), (1, 3), (2, 2), (3, 2)]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("size", [(40, 44), (39, 45), (33, 31)])
def test_residual_networks(size, grid):
    assert_exact(net(), rand(2, 3, *size), grid=grid)
    assert_exact(net(), Constant(rand(2, 3, *size)), grid=grid)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(
    "group",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 5, padding=2)),
        nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Conv2d(3, 4, 3, padding=1), nn.AvgPool2d(3, 1, 1)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.SiLU()),
        nn.Sequential(nn.ConvTranspose2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 1, 2, dilation=2)),
        nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, 1, 1)),
        nn.Sequential(nn.ReLU(True), nn.Conv2d(3, 4, 3, 1, 1), nn.BatchNorm2d(4).eval()),
        nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.Upsample(scale_factor=2), nn.Conv2d(4, 4, 3)),
        nn.Sequential(nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Conv2d(3, 4, 3, 1, 1)),
        nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    ],
    ids=str,
)
def test_groups_of_other_layers(group, grid):
    assert_exact(FusedHalo(group), rand(2, 3, 21, 26), grid=grid)


def test_squeeze_and_excite_inside_a_group():
    class Excite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gate = nn.Conv2d(3, 3, 3, 1, 1), nn.Conv2d(3, 3, 1)

        def forward(self, x):
            y = self.conv(x)
            return self.conv(y * self.gate(F.adaptive_avg_pool2d(y, 1)).sigmoid())

    assert_exact(FusedHalo(Excite()), rand(2, 3, 21, 26), grid=(2, 2))


def test_empty_tiles_and_one_process():
    assert_exact(FusedHalo(Block(3, 3)), rand(2, 3, 3, 5), grid=(4, 2))
    assert_exact(FusedHalo(Block(3, 3)), rand(2, 3, 9, 9), grid=(1, 1))


def test_with_checkpointing_and_a_cut_batch():
    class Saved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=False)

    assert_exact(Saved(), rand(2, 3, 40, 44), grid=(2, 2))
    assert_exact(net(), rand(4, 3, 40, 44), grid=(2, 2), dims=(0, 2))


@pytest.mark.skipif(UNDER_TORCHRUN, reason="counts the messages of threads")
def test_the_number_of_messages_drops():
    layers = [nn.Conv2d(3, 3, 3, 1, 1) for _ in range(4)]

    def messages(module: nn.Module) -> int:
        module = module.double()

        def program(comm):
            tile = mpi4dl.shard(rand(1, 3, 32, 32), grid=(2, 1))
            module(tile).sum().backward()
            return comm.messages_sent

        return max(run_ranks(2, program))

    plain, fused = messages(nn.Sequential(*layers)), messages(FusedHalo(nn.Sequential(*layers)))
    # Two ranks, each sends one halo: for four layers forward, and for those but the first
    # backward, since the image wants no gradient. Fused: once, forward.
    assert plain == 2 * (4 + 3)
    assert fused == 2


def test_a_group_with_one_halo_is_left_as_it_is():
    """Its margin would be one exchange as well, and a copy."""

    def program(comm):
        tile, seen = mpi4dl.shard(rand(1, 4, 32, 32), grid=(2, 1)), []
        for group in (nn.Sequential(conv(), nn.ReLU()), nn.Sequential(conv(), conv())):
            group[0].register_forward_pre_hook(lambda m, args: seen.append(args[0].margin))
            FusedHalo(group.double())(tile)
        assert [margin is not None for margin in seen] == [False, True]

    run_ranks(2, program)


def conv(stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(4, 4, 3, stride, 1)


class Two(nn.Module):
    """Two convolutions, and a function of them and the input."""

    def __init__(self, function) -> None:
        super().__init__()
        self.a, self.b, self.function = conv(), conv(), function

    def forward(self, x, *args, **kwargs):
        return self.function(self, x, *args, **kwargs)


def channels_doubled(m, x):
    y = m.a(x)
    y[:, :2].mul_(2.0)
    return m.b(y)


def channel_erased(m, x):
    y = m.a(x)
    y[:, 0] = 0
    return m.b(y)


def channels_shifted(m, x):
    y = m.a(x)
    out = torch.zeros_like(y)
    out[:, :2], out[:, 2:] = y[:, 2:], y[:, :2]
    return m.b(out)


def input_written(m, x):
    x = x * 1
    y = m.a(x)
    x[:, 0] = 0.0
    return m.b(x) + y.detach()


def alias_written(m, x):
    y = m.a(x)
    y.detach()[:, 1:3].zero_()
    return m.b(y)


def dropped_in_place(m, x):
    y = m.a(x)
    return m.b(F.dropout(y, 0.0, True, inplace=True) + y)


def whole_added(m, x):
    y = m.a(x)
    y.add_(torch.ones(x.shape, dtype=x.dtype))
    return m.b(y)


def asked_for_its_type(m, x):
    y = m.a(x)
    assert "Double" in y.type()
    return m.b(y)


def hooked(m, x):
    y = m.a(x)
    if y.requires_grad:
        y.register_hook(lambda g: 2 * g)
    return m.b(y)


def kept(m, x):
    m.feature = m.a(x)
    return m.b(m.feature)


def checkpointed(m, x):
    return m.b(checkpoint(lambda t: m.a(t).relu(), m.a(x), use_reentrant=False))


def checkpointed_reentrant(m, x):
    return m.b(checkpoint(lambda t: m.a(t).relu(), m.a(x), use_reentrant=True))


def roots_of_a_border(m, x):
    """Infinite slopes at zero, which only padding could bring about."""
    ones = torch.ones(4, 1, 3, 3, dtype=x.dtype)
    return m.b(F.conv2d(x.abs() + 0.1, ones, padding=1, groups=4).sqrt())


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(
    "function",
    [
        *(channels_doubled, channel_erased, channels_shifted, input_written, alias_written),
        *(dropped_in_place, whole_added, asked_for_its_type, hooked, kept, checkpointed),
        *(checkpointed_reentrant, roots_of_a_border),
    ],
)
def test_what_modules_do_with_tensors_between_their_layers(function, grid):
    assert_exact(FusedHalo(Two(function)), rand(2, 4, 21, 26), grid=grid)


def test_a_tensor_that_leaves_by_another_door_is_a_tile_like_all():
    class Spied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fused = FusedHalo(nn.Sequential(conv(), conv()))

        def forward(self, x):
            seen = []
            hook = self.fused.module[0].register_forward_hook(lambda m, i, o: seen.append(o))
            y = self.fused(x)
            hook.remove()
            assert len(seen) == 1, "the dry run calls no hooks"
            return y, seen[0].mean(), seen[0] * y, seen[0].flip(1)

    for grid in GRIDS:
        assert_exact(Spied(), rand(2, 4, 21, 26), grid=grid)


def test_hooks_on_gradients_inside_a_group():
    inner = nn.Sequential(conv(), nn.ReLU(), conv())
    inner[1].register_full_backward_hook(lambda m, inputs, outputs: (2 * inputs[0],))
    assert_exact(FusedHalo(inner), rand(2, 4, 21, 26), grid=(2, 2))


def test_a_plan_is_a_guess_and_what_happens_otherwise_is_right():
    """Arguments, modes and attributes may change what a module does after its plan was made."""

    def repeated(m, x, times=1, dilation=1):
        for _ in range(times):
            x = F.conv2d(x, m.a.weight, padding=dilation, dilation=dilation)
        return x

    class All(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fused = FusedHalo(Two(repeated))

        def forward(self, x):
            return [self.fused(x, t, dilation=d) for t, d in ((1, 1), (3, 1), (1, 2), (1, 1))]

    assert_exact(All(), rand(2, 4, 21, 26), grid=(2, 2))


def test_windows_with_nothing_but_padding_in_them():
    layout = mpi4dl.Layout.from_cuts((14,), [[1]])
    net = nn.Sequential(nn.Conv1d(3, 2, 1, 3, 2), nn.ReLU())
    assert_exact(FusedHalo(net), rand(2, 3, 14), layout=layout)


def test_groups_in_groups_and_copies_of_groups():
    inner = FusedHalo(nn.Sequential(conv(), conv()))
    net = FusedHalo(nn.Sequential(inner, nn.ReLU(), FusedHalo(conv(2))))
    assert_exact(nn.Sequential(inner, net), rand(2, 4, 21, 26), grid=(2, 2))

    def program(comm):
        group = FusedHalo(conv()).double()
        tile = mpi4dl.shard(rand(2, 4, 21, 26), grid=(2, 1))
        assert torch.equal(group(tile).to_local(), copy.deepcopy(group)(tile).to_local())

    run_ranks(2, program)


def test_without_gradients():
    net = FusedHalo(nn.Sequential(conv(), nn.ReLU(True), conv())).double().eval()
    x = rand(1, 4, 21, 26)
    with torch.no_grad():
        want = net(x)

    def program(comm):
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                got = net(mpi4dl.shard(x, grid=(2, 2))).full_tensor()
                assert torch.allclose(got, want, rtol=0, atol=1e-12)

    run_ranks(4, program)


def test_the_block_form_is_the_same_for_modules_as_they_are():
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Block(4, 4), nn.Sequential(Block(4, 6, 2), nn.Conv2d(6, 6, 3))

        def forward(self, x):
            with mpi4dl.fused_halo():
                return self.two(self.one(x))

    for grid in GRIDS:
        assert_exact(Fused(), rand(2, 4, 21, 26), grid=grid)


@pytest.mark.skipif(UNDER_TORCHRUN, reason="counts the messages of threads")
def test_the_block_form_sends_less_and_ends_with_the_block():
    net = nn.Sequential(conv(), conv(), conv()).double()

    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError("on purpose")

    def program(comm):
        tile = mpi4dl.shard(rand(1, 4, 32, 32), grid=(2, 1))
        with pytest.raises(ValueError, match="on purpose"), mpi4dl.fused_halo():
            Failing()(tile)
        counts = []
        for manager in (nullcontext, mpi4dl.fused_halo, nullcontext):
            with manager():
                net(tile)
            comm.all_gather(torch.ones(1))  # both ranks have sent all
            counts.append(comm.messages_sent)
            comm.all_gather(torch.ones(1))
        return counts

    assert run_ranks(2, program) == [[6, 6 + 2, 6 + 2 + 6]] * 2


@pytest.mark.skipif(UNDER_TORCHRUN, reason="counts the messages of threads")
def test_a_residual_block_needs_one_exchange_each_way():
    def messages(module: nn.Module) -> int:
        module = module.double().eval()  # no statistics to exchange

        def program(comm):
            tile = mpi4dl.shard(rand(1, 4, 32, 32), grid=(2, 1)).requires_grad_()
            module(tile).sum().backward()
            return comm.messages_sent

        return max(run_ranks(2, program))

    blocks = [Block(4, 4), Block(4, 6, 2)]
    assert messages(nn.Sequential(*blocks)) == 2 * 2 * 4 - 2  # stride 2 asks one side only
    assert messages(FusedHalo(nn.Sequential(*blocks))) == 2 * 2


def test_no_operator_of_a_group_copies_a_padded_tile(monkeypatch):
    """Kernels pad wide tiles by themselves, so that what is kept for backward is the tile."""
    monkeypatch.setattr(margin, "_region", None)
    net = nn.Sequential(Block(4, 4), Block(4, 6, 2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 1, 1))
    assert_exact(FusedHalo(net), rand(2, 4, 48, 40), grid=(3, 1))
