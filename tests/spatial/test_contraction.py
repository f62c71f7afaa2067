"""Products, linear layers and attention on tiles are those of one process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mpi4dl
from support.exactness import assert_exact, assert_refused, rand
from support.ranks import run_ranks

GRIDS_2D = [(1, 1), (1, 2), (3, 1), (2, 2), (2, 3)]


def no_grid() -> mpi4dl.Layout:
    box = mpi4dl.Box.of
    boxes = (box((0, 4), (0, 5)), box((4, 7), (0, 2)), box((4, 7), (2, 5)), box((7, 7), (0, 5)))
    return mpi4dl.Layout((7, 5), boxes)


class ChannelsLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 4, bias=False))

    def forward(self, x):
        return self.layers(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x):
        n, _, h, w = x.shape
        return self.linear(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(n, 4, h, w)


class Classifier(nn.Module):
    """VGG's end: every pixel of every channel is a feature."""

    def __init__(self, features):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(features, 6), nn.ReLU(), nn.Linear(6, 4)
        )

    def forward(self, x):
        return self.layers(x)


NETS = {"channels last": ChannelsLast, "tokens": Tokens, "classifier": lambda: Classifier(105)}


@pytest.mark.parametrize("grid", [*GRIDS_2D, (9, 1)])
@pytest.mark.parametrize("name", NETS)
def test_linear_layers(name, grid):
    assert_exact(NETS[name](), rand(2, 3, 7, 5), grid=grid)


@pytest.mark.parametrize("name", NETS)
def test_linear_layers_on_boxes_that_are_no_grid(name):
    assert_exact(NETS[name](), rand(2, 3, 7, 5), layout=no_grid())


def test_linear_layers_along_a_split_row():
    for bias in (True, False):
        assert_exact(nn.Linear(9, 4, bias=bias), rand(2, 3, 9), grid=(3,))
        assert_exact(nn.Linear(9, 4, bias=bias), rand(2, 3, 9), grid=(2,), dims=(1,))
    assert_exact(lambda x, w: F.linear(x, w), rand(2, 9), rand(9), grid=(3,), plain=(1,))
    assert_exact(lambda x, w: F.linear(x, w), rand(7, 9), rand(9), grid=(3,), dims=(0,), plain=(1,))
    assert_exact(
        lambda x, w: F.linear(w, x), rand(7, 9), rand(2, 9), grid=(3,), dims=(0,), plain=(1,)
    )


def test_linear_layers_on_volumes_and_batches():
    net = nn.Linear(2, 3)
    assert_exact(
        lambda x: x.movedim(1, -1) @ torch.ones(2, 3).double(), rand(1, 2, 3, 5, 4), grid=(2, 2, 2)
    )
    assert_exact(net, rand(3, 5, 7, 2), grid=(2, 2), dims=(0, 2))
    assert_exact(Classifier(105), rand(5, 3, 7, 5), grid=(2,), dims=(0,))
    assert_exact(Classifier(6), rand(2, 6, 1, 1), grid=(2, 2))


PRODUCTS = {
    "pixels @ weights": lambda x, w: x.permute(0, 2, 3, 1) @ w,
    "weights @ pixels": lambda x, w: w.t() @ x.flatten(2),
    "matmul of batches": lambda x, w: torch.matmul(w.t().expand(2, 4, 3), x.flatten(2)),
    "bmm": lambda x, w: torch.bmm(x.flatten(2).transpose(1, 2), w.expand(2, 3, 4)),
    "mm": lambda x, w: torch.mm(x.permute(0, 2, 3, 1).reshape(-1, 3), w),
    "pixels @ vector": lambda x, w: x.permute(0, 2, 3, 1) @ w[:, 0],
    "mv": lambda x, w: torch.mv(x.permute(0, 2, 3, 1).reshape(-1, 3), w[:, 0]),
    "vector @ pixels": lambda x, w: w[:, 0] @ x.flatten(2),
    "Gram matrix": lambda x, w: x.flatten(2) @ x.flatten(2).transpose(1, 2),
    "Gram matrix of all images": lambda x, w: x.flatten(1) @ x.flatten(1).t(),
    "dot": lambda x, w: torch.dot(x.flatten(), x.sin().flatten()),
    "columns summed": lambda x, w: x.flatten(2) @ torch.linspace(0, 1, 35, dtype=x.dtype),
    "pooled by a matrix": lambda x, w: x.flatten(2) @ torch.ones(35, 2, dtype=x.dtype),
    "addmm": lambda x, w: torch.addmm(w[0], x.permute(0, 2, 3, 1).reshape(-1, 3), w, alpha=2),
    "baddbmm": lambda x, w: torch.baddbmm(
        x.flatten(2), w[:, :3].expand(2, 3, 3), x.flatten(2), beta=0.5
    ),
    "tensordot": lambda x, w: torch.tensordot(x, w, dims=([1], [0])),
    "tensordot over pixels": lambda x, w: torch.tensordot(x, x.sin(), ([0, 2, 3], [0, 2, 3])),
    "linear attention": lambda x, w: (
        x.flatten(2).transpose(1, 2)
        @ (x.flatten(2).exp() @ x.flatten(2).transpose(1, 2))
        / x.flatten(2).exp().sum(-1)[:, None]
    ),
    "attention over channels": lambda x, w: (
        (x.flatten(2) @ x.flatten(2).transpose(-2, -1)).softmax(-1) @ x.flatten(2)
    ).view(x.shape),
}


@pytest.mark.parametrize("grid", [*GRIDS_2D, (9, 1)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, grid):
    assert_exact(PRODUCTS[name], rand(2, 3, 7, 5), rand(3, 4, seed=1), grid=grid, plain=(1,))


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_on_boxes_that_are_no_grid(name):
    assert_exact(PRODUCTS[name], rand(2, 3, 7, 5), rand(3, 4, seed=1), layout=no_grid(), plain=(1,))


@pytest.mark.parametrize("grid", GRIDS_2D)
def test_einsum_with_weights(grid):
    x = rand(2, 3, 7, 5)
    for equation, weights in [
        ("bchw, dc -> bdhw", (4, 3)),
        ("bchw,dc->hwbd", (4, 3)),
        ("bchw,dc", (4, 3)),
        ("...chw,dc->...dhw", (4, 3)),
        ("b...,db->d...", (4, 2)),
        ("bchw,dc->bd", (4, 3)),
        ("bchw,hw->bc", (7, 5)),
        ("bchw,hw->bchw", (7, 5)),
        ("bchw,ahw->abc", (2, 7, 5)),
        ("bchw,bc->bchw", (2, 3)),
        ("bchw,bc->bchw", (2, 1)),
        ("bchw,chw->bchw", (3, 7, 1)),
    ]:
        assert_exact(
            lambda x, w, e=equation: torch.einsum(e, x, w), x, rand(*weights), grid=grid, plain=(1,)
        )
        assert_exact(
            lambda w, x, e=equation: torch.einsum(e, [x, w]),
            rand(*weights),
            x,
            grid=grid,
            plain=(0,),
        )


@pytest.mark.parametrize("grid", GRIDS_2D)
def test_einsum_of_tiles(grid):
    x, y = rand(2, 3, 7, 5), rand(2, 4, 7, 5, seed=1)
    for equation in ["bchw,bkhw->bck", "bchw,bkhw->bckhw", "bchw,bkhw->hwbkc", "nchw,mkhw->nmck"]:
        assert_exact(lambda x, y, e=equation: torch.einsum(e, x, y), x, y, grid=grid)
    for equation in ["bchw->bc", "bchw->", "bchw->whcb", "bchw->bhw", "...->..."]:
        assert_exact(lambda x, e=equation: torch.einsum(e, x).square(), x, grid=grid)
    assert_exact(lambda x: torch.einsum("bbhw->hwb", x), rand(3, 3, 7, 5), grid=grid)
    assert_exact(lambda x, y: torch.einsum("bchw,bkhw,dk->bcd", x, y, rand(6, 4)), x, y, grid=grid)
    assert_exact(
        lambda x, y: torch.einsum(x, [0, 1, 2, 3], y, [0, 4, 2, 3], [0, 1, 4]), x, y, grid=grid
    )
    assert_exact(
        lambda x, y: torch.einsum("bcl,bkl->bck", x.flatten(2), y.flatten(2)), x, y, grid=grid
    )


def test_tiles_of_another_layout_are_moved():
    def run(x):
        y = x.sin()
        if isinstance(x, mpi4dl.Tile):
            y = y.redistribute(mpi4dl.Layout.from_cuts((7, 5), [(1,), (2,)]))
        a, b = x.flatten(2), y.flatten(2)
        return (
            torch.einsum("bchw,bkhw->bck", x, y),
            torch.einsum("bchw,bkhw->bckhw", y, x),
            a @ b.transpose(1, 2),
            a + b,
            (b * a).view(x.shape) - x,
        )

    assert_exact(run, rand(2, 3, 7, 5), grid=(2, 2))


def test_a_tile_that_lacks_a_split_dimension():
    def program(comm):
        x = mpi4dl.shard(rand(4, 3, 7), (2, 2), dims=(0, 2))
        v = mpi4dl.shard(rand(4, 5, seed=1), (4,), dims=(0,))
        actual = torch.einsum("bcw,bd->bcdw", x, v)
        return actual.full_tensor()

    expected = torch.einsum("bcw,bd->bcdw", rand(4, 3, 7), rand(4, 5, seed=1))
    for actual in run_ranks(4, program):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_one_row_that_others_repeat():
    x = rand(2, 3, 1, 5)
    for grid in [(1, 1), (1, 2), (1, 3)]:
        assert_exact(
            lambda x, w: torch.einsum("bchw,hw->bchw", x, w), x, rand(4, 5), grid=grid, plain=(1,)
        )
        assert_exact(lambda x, w: x @ w, x, rand(2, 1, 5, 4), grid=grid, dims=(0, 2), plain=(1,))
    assert_refused(
        lambda x: torch.einsum("bchw,hw->bchw", x, rand(4, 5)), x, grid=(2, 1), match="one row"
    )


def test_sums_over_all_that_is_split_are_plain_and_others_are_tiles():
    def program(comm):
        x = mpi4dl.shard(rand(2, 3, 7, 5), (2, 2))
        tokens = x.flatten(2)
        assert type(tokens @ tokens.transpose(1, 2)) is torch.Tensor
        assert type(torch.einsum("bchw,bkhw->bck", x, x)) is torch.Tensor
        assert isinstance(torch.einsum("bchw,dc->bdhw", x, rand(4, 3)), mpi4dl.Tile)

    run_ranks(4, program)


class Window(nn.Module):
    """Attention within windows, written as in Swin; with a plain bias for each window."""

    def __init__(self, kind):
        super().__init__()
        self.qkv, self.kind = nn.Linear(4, 12), kind
        self.bias = nn.Parameter(rand(6, 1, 16, 16))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        n, h, w, c = x.shape
        x = x.view(n, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        if self.kind == "multi-head":
            x, weights = self.attention(x, x, x)
            x = x * (1 + weights.mean(dim=(1, 2))[:, None, None])
        else:
            x = self.attend(x, n)
        x = x.view(n, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(n, h, w, c)

    def attend(self, x, n):
        b, t, c = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        if self.kind == "fused":
            bias = self.bias.expand(6, 2, 16, 16).repeat(n, 1, 1, 1)
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            a = (q * 0.7) @ k.transpose(-2, -1)
            a = a.view(n, 6, 2, t, t) + self.bias
            x = a.view(b, 2, t, t).softmax(-1) @ v
        return x.transpose(1, 2).reshape(b, t, c)


@pytest.mark.parametrize("grid", [*GRIDS_2D, (3, 3)])
@pytest.mark.parametrize("kind", ["written out", "fused", "multi-head"])
def test_attention_within_windows(kind, grid):
    assert_exact(Window(kind), rand(2, 8, 12, 4), grid=grid, dims=(1, 2))


class TokenBlock(nn.Module):
    """As in the first Swin: tokens (N, L, C) with a shortcut past the windows."""

    def __init__(self, h, w):
        super().__init__()
        self.h, self.w, self.window, self.norm = h, w, Window("written out"), nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x):
        n, length, c = x.shape
        y = self.window(self.norm(x).view(n, self.h, self.w, c)).view(n, length, c)
        x = x + y
        return x + self.mlp(x)


@pytest.mark.parametrize("grid", [*GRIDS_2D, (4, 1), (1, 5)])
def test_blocks_of_tokens_whose_windows_lie_on_other_ranks(grid):
    block = TokenBlock(8, 12)

    def run(module, x):
        return module(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.block = nn.Conv2d(3, 4, 3, padding=1), block

        def forward(self, x):
            return run(self.block, run(self.block, self.conv(x)))

    assert_exact(Net(), rand(2, 3, 8, 12), grid=grid)


def test_attention_where_only_the_batch_is_split():
    class Block(nn.Module):
        def __init__(self, **options):
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, **options)

        def forward(self, x):
            causal = torch.full((5, 5), float("-inf"), dtype=x.dtype).triu(1)
            hidden = torch.zeros(3, 5, dtype=torch.bool)
            hidden[1, 2:] = True
            y, w = self.attention(x, x, x, attn_mask=causal)
            z, none = self.attention(x, x + 1, x, key_padding_mask=hidden, need_weights=False)
            u, heads = self.attention(x, x, y, average_attn_weights=False)
            assert none is None
            return y, w, z, u, heads

    assert_exact(Block(batch_first=True), rand(3, 5, 6), grid=(2,), dims=(0,))
    assert_exact(Block(), rand(5, 3, 6), grid=(4,), dims=(1,))
    assert_exact(Block(add_bias_kv=True).eval(), rand(5, 3, 6), grid=(3,), dims=(1,))


def test_fused_attention_where_only_the_batch_or_the_heads_are_split():
    def run(q, k):
        mask = k.mean(-1)[:, :, None].expand(3, 4, 5, 5)
        return (
            F.scaled_dot_product_attention(q, k, k, is_causal=True),
            F.scaled_dot_product_attention(q, k, q, attn_mask=mask, scale=0.3),
        )

    for grid, dims in [((2,), (0,)), ((4,), (0,)), ((3,), (1,)), ((2, 2), (0, 1))]:
        assert_exact(run, rand(3, 4, 5, 6), rand(3, 4, 5, 6, seed=1), grid=grid, dims=dims)


def test_dropout_of_attention_differs_from_rank_to_rank():
    attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True).double()

    def program(comm):
        torch.manual_seed(0)
        x = mpi4dl.shard(rand(1, 6, 4).expand(2, 6, 4), (2,), dims=(0,))
        y = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5).full_tensor()
        assert not torch.equal(y[0], y[1])
        z, _ = attention(x, x, x)
        z = z.full_tensor()
        assert not torch.equal(z[0], z[1])

    run_ranks(2, program)


def test_attention_of_pixels_to_a_few_plain_tokens():
    def run(x, t):
        q = x.flatten(2).transpose(1, 2)[:, None]
        mask = torch.linspace(0, 1, 35 * 6, dtype=x.dtype).view(35, 6)
        return F.scaled_dot_product_attention(q, t, t.sin()), F.scaled_dot_product_attention(
            q, t, t, attn_mask=mask
        )

    for grid in [(1, 2), (2, 2), (9, 1)]:
        assert_exact(run, rand(2, 4, 7, 5), rand(2, 1, 6, 4), grid=grid, plain=(1,))


def test_attention_over_all_pixels_is_refused():
    def tokens(x):
        return x.flatten(2).transpose(1, 2)

    attention = nn.MultiheadAttention(4, 2, batch_first=True).double()
    for f in (
        lambda x: tokens(x) @ tokens(x).transpose(1, 2),
        lambda x: torch.einsum("bld,bmd->blm", tokens(x), tokens(x)),
        lambda x: F.scaled_dot_product_attention(tokens(x), tokens(x), tokens(x)),
        lambda x: attention(tokens(x), tokens(x), tokens(x)),
        lambda x: (
            x.flatten(2) @ tokens(x).flatten(1)[:, :35, None] if False else tokens(x) @ x.flatten(2)
        ),
    ):
        assert_refused(f, rand(2, 4, 7, 5), match="attention over all pixels")


def test_what_has_no_rule_is_refused_on_every_rank():
    for f, why in [
        (lambda x: torch.einsum("bchw,bkhw->bckh", x, x), "keeps another one"),
        (lambda x: torch.einsum("bchh->bch", x), "diagonal"),
        (lambda x: F.linear(x, rand(3, 6)), "keeps another one"),
    ]:
        assert_refused(f, rand(2, 3, 6, 6), match=why)
    for f in (
        lambda x: torch.einsum("bchw,hw->bchw", x, rand(3, 6)),
        lambda x: F.linear(x.flatten(1), rand(4, 10)),
    ):
        assert_refused(f, rand(2, 3, 6, 6), error=mpi4dl.LayoutMismatch)
    assert_refused(
        lambda x: F.linear(x.permute(0, 2, 3, 1), rand(4, 2)),
        rand(2, 3, 6, 6),
        grid=(9, 1),
        error=RuntimeError,
        alike=False,  # PyTorch's own, by the sizes of the part
    )
    assert_refused(
        lambda x: torch.einsum("bch->bc", x), rand(2, 3, 6, 6), error=ValueError, match="einsum"
    )
