"""Resized tiles are tiles of the resized image, in every mode and at every ratio."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mpi4dl
from support.exactness import assert_exact, assert_refused, on_tiles, rand, relative, single_process
from support.layouts import NOT_A_GRID

GRIDS_2D = [(1, 2), (3, 1), (2, 3)]
NEAREST = ["nearest", "nearest-exact"]
SMOOTH_2D = [
    {"mode": "bilinear"},
    {"mode": "bilinear", "align_corners": True},
    {"mode": "bicubic"},
    {"mode": "bicubic", "align_corners": True},
]
ANTIALIASED = [{"mode": m, "antialias": True} for m in ("bilinear", "bicubic")]
ASKED = [
    {"scale_factor": 2},
    {"scale_factor": 3},
    {"scale_factor": 0.5},
    {"scale_factor": 1.5},
    {"scale_factor": 0.37},
    {"scale_factor": (2.5, 0.75)},
    {"scale_factor": 1.07},
    {"scale_factor": 1.6, "recompute_scale_factor": True},
    {"size": (31, 9)},
    {"size": (13, 34)},
    {"size": (1, 40)},
]


def resize(**options):
    return partial(F.interpolate, **options)


@pytest.mark.parametrize("grid", [(1, 2), (2, 2)])
@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("how", [{"mode": m} for m in NEAREST] + SMOOTH_2D, ids=str)
def test_images(how, asked, grid):
    assert_exact(resize(**how, **asked), rand(2, 2, 13, 17), grid=grid)


@pytest.mark.parametrize("grid", [(3, 1), (2, 2)])
@pytest.mark.parametrize("size", [(26, 34), (7, 5), (6, 51), (13, 20), (3, 3)], ids=str)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("how", ANTIALIASED, ids=str)
def test_antialiased(how, corners, size, grid):
    options = {**how, "align_corners": corners}
    assert_exact(resize(size=size, **options), rand(1, 2, 13, 17), grid=grid)


@pytest.mark.parametrize("asked", [{"scale_factor": 0.25}, {"scale_factor": (0.3, 1.4)}], ids=str)
def test_antialiased_by_a_factor(asked):
    for how in ANTIALIASED:
        assert_exact(resize(**asked, **how), rand(1, 1, 24, 20), grid=(2, 2))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "area"])
@pytest.mark.parametrize("grid", [(2,), (3,), (5,)])
@pytest.mark.parametrize("asked", [{"scale_factor": 2}, {"scale_factor": 0.6}, {"size": 23}])
def test_sequences(mode, asked, grid):
    assert_exact(resize(mode=mode, **asked), rand(2, 3, 11), grid=grid)
    if mode == "linear":
        assert_exact(resize(mode=mode, align_corners=True, **asked), rand(2, 3, 11), grid=grid)


@pytest.mark.parametrize("grid", [(2, 2, 2), (1, 2, 3), (3, 1, 1)])
@pytest.mark.parametrize("asked", [{"scale_factor": 2}, {"scale_factor": 0.7}, {"size": (9, 3, 7)}])
def test_volumes(asked, grid):
    for mode in ("nearest", "nearest-exact", "trilinear"):
        assert_exact(resize(mode=mode, **asked), rand(1, 2, 5, 6, 7), grid=grid)
    corners = resize(mode="trilinear", align_corners=True, **asked)
    assert_exact(corners, rand(1, 2, 5, 6, 7), grid=grid)


def test_volumes_cut_over_any_two_dimensions():
    for asked in ({"scale_factor": 2}, {"scale_factor": (1.3, 0.6, 2.2)}):
        for mode in ("nearest", "trilinear"):
            fn = resize(mode=mode, **asked)
            assert_exact(fn, rand(1, 2, 5, 6, 7), grid=(2, 2), dims=(2, 4))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("asked", [{"scale_factor": 2}, {"scale_factor": 5 / 3}, {"size": 5}])
@pytest.mark.parametrize("how", [{"mode": "nearest"}, *SMOOTH_2D], ids=str)
def test_more_ranks_than_rows(how, asked, size):
    assert_exact(resize(**how, **asked), rand(1, 2, size, size), grid=(3, 2))


@pytest.mark.parametrize(
    "how", [*({"mode": m} for m in NEAREST), *SMOOTH_2D, *ANTIALIASED], ids=str
)
def test_ranks_that_end_without_output_take_part(how):
    assert_exact(resize(size=(1, 2), **how), rand(1, 2, 8, 12), grid=(3, 2))
    assert_exact(resize(scale_factor=0.25, **how), rand(1, 2, 8, 12), grid=(4, 2))
    assert_exact(resize(size=(2, 3), **how), rand(1, 2, 9, 11), grid=(2, 3))
    assert_exact(resize(size=(1, 2), **how), rand(1, 2, 9, 21), grid=(2, 3))


@pytest.mark.parametrize("how", [{"mode": "nearest"}, *SMOOTH_2D], ids=str)
@pytest.mark.parametrize("cuts", [[(1,), (2, 12)], [(12,), (1, 2)], [(0,), (0, 17)], [(7,), ()]])
def test_any_cuts(how, cuts):
    layout = mpi4dl.Layout.from_cuts((13, 17), cuts)
    for asked in ({"scale_factor": 2}, {"size": (18, 11)}):
        assert_exact(resize(**how, **asked), rand(1, 2, 13, 17), layout=layout)


def test_boxes_that_are_no_grid():
    for how in ({"mode": "nearest"}, *SMOOTH_2D):
        for asked in ({"scale_factor": 2}, {"scale_factor": 1 / 3}, {"size": (7, 20)}):
            assert_exact(resize(**how, **asked), rand(1, 2, 9, 12), layout=NOT_A_GRID)


def test_batch_and_channels_may_be_cut_too():
    x = rand(3, 4, 7, 8)
    for how in ({"mode": "nearest"}, *SMOOTH_2D):
        for dims, grid in [((0,), (4,)), ((1, 3), (2, 2)), ((0, 1, 2), (2, 1, 2))]:
            assert_exact(resize(size=(9, 5), **how), x, grid=grid, dims=dims)
            assert_exact(resize(scale_factor=2, **how), x, grid=grid, dims=dims)


@pytest.mark.parametrize("grid", [(1, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("asked", [{"size": (6, 5)}, {"size": 4}, {"scale_factor": 0.5}], ids=str)
def test_area(asked, grid):
    assert_exact(resize(mode="area", **asked), rand(1, 2, 12, 16), grid=grid)


@pytest.mark.parametrize("mode", NEAREST)
@pytest.mark.parametrize("factor", [41, 20.5, 27, 7, 5, 10.25])
def test_nearest_neighbours_where_rounding_decides(mode, factor):
    """Products such as 41 · float(1/41) fall below the integer: the one before is the nearest."""
    x = torch.arange(4.0 * 6).view(1, 1, 4, 6)
    for dtype in (torch.float32, torch.float64):
        expected = F.interpolate(x.to(dtype), scale_factor=factor, mode=mode)
        out = on_tiles(resize(scale_factor=factor, mode=mode), [x.to(dtype)], (2, 2)).outputs[0]
        assert torch.equal(out, expected)


@pytest.mark.parametrize("mode", NEAREST)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float16])
def test_masks_of_other_types_keep_their_type(mode, dtype):
    mask = (torch.arange(300) % 251).view(1, 1, 15, 20).to(dtype)
    for asked in ({"scale_factor": 2}, {"size": (22, 31)}, {"scale_factor": 0.5}):
        expected = F.interpolate(mask, mode=mode, **asked)
        out = on_tiles(resize(mode=mode, **asked), [mask], (2, 2)).outputs[0]
        assert out.dtype == dtype
        assert torch.equal(out, expected)


@pytest.mark.parametrize("asked", [{"scale_factor": 2}, {"size": (71, 40)}], ids=str)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)]
)
def test_lower_precision(dtype, bound, asked):
    x = rand(1, 3, 50, 53).to(dtype)
    for how in SMOOTH_2D:
        fn = resize(**how, **asked)
        expected, actual = single_process(fn, [x]), on_tiles(fn, [x], (2, 2))
        assert actual.outputs[0].dtype == dtype
        assert relative(actual.outputs[0], expected.outputs[0]) < bound
        assert relative(actual.input_grads[0], expected.input_grads[0]) < bound


@pytest.mark.parametrize("factor", [2, 3, 1.37, 0.25, 0.3])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_far_from_the_origin_float32_is_rounded_as_in_one_process(mode, factor):
    x = rand(1, 2, 20011, dtype=torch.float32)
    fn = resize(scale_factor=factor, mode=mode)
    expected, actual = single_process(fn, [x]), on_tiles(fn, [x], (3,))
    assert relative(actual.outputs[0], expected.outputs[0]) < 1e-6
    assert relative(actual.input_grads[0], expected.input_grads[0]) < 1e-6


@pytest.mark.parametrize("how", [{"mode": "nearest"}, *SMOOTH_2D], ids=str)
@pytest.mark.parametrize("asked", [{"scale_factor": 2}, {"size": (17, 20)}], ids=str)
def test_channels_last_stays_channels_last(how, asked):
    x = rand(2, 5, 12, 13).contiguous(memory_format=torch.channels_last)
    found = []

    def fn(x):
        x = x.contiguous(memory_format=torch.channels_last)
        y = F.interpolate(x, **how, **asked)
        local = y.to_local() if isinstance(y, mpi4dl.Tile) else y
        strides = local.stride()
        found.append(strides[1] == 1 and strides[3] == 5)
        return y

    assert_exact(fn, x, grid=(2, 2))
    assert all(found)


@pytest.mark.parametrize("grid", [(2, 1), (2, 2)])
@pytest.mark.parametrize(
    "module",
    [
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        nn.Upsample(size=(30, 20), mode="bicubic"),
        nn.UpsamplingBilinear2d(scale_factor=2),
        nn.UpsamplingNearest2d(scale_factor=3),
    ],
    ids=str,
)
def test_modules(module, grid):
    assert_exact(module, rand(1, 2, 9, 11), grid=grid)


@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_the_old_names_end_in_the_same_rule():
    x = rand(1, 2, 9, 11)
    assert_exact(partial(F.upsample, scale_factor=2, mode="bilinear"), x, grid=(2, 2))
    assert_exact(partial(F.upsample_nearest, size=(13, 20)), x, grid=(2, 2))
    assert_exact(partial(F.upsample_bilinear, scale_factor=2), x, grid=(2, 2))


@pytest.mark.parametrize("grid", GRIDS_2D)
@pytest.mark.parametrize("how", [{"mode": "nearest"}, *SMOOTH_2D], ids=str)
def test_a_decoder_that_resizes_to_its_skip_connection(how, grid):
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Conv2d(2, 3, 3, stride=2, padding=1)
            self.fuse = nn.Conv2d(3, 2, 3, padding=1)

        def forward(self, skip):
            deep = self.down(self.fuse(self.down(skip)))
            deep = F.interpolate(deep, size=skip.shape[2:], **how)
            return self.fuse(deep) + skip

    assert_exact(Decoder(), rand(1, 2, 21, 27), grid=grid)


def test_weights_measured_in_inference_mode_serve_training():
    fn = resize(size=(19, 37), mode="bicubic")

    def looked_at_first(x):
        with torch.inference_mode():
            fn(x)
        return fn(x)

    assert_exact(looked_at_first, rand(1, 1, 10, 14), grid=(2, 1))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scale_factor": 2, "align_corners": True}, ValueError, "align_corners option"),
        ({}, ValueError, "either size or scale_factor"),
        ({"size": (3, 4, 5)}, ValueError, "same number of spatial dimensions"),
        ({"size": 4, "scale_factor": 2}, ValueError, "only one of size"),
        ({"scale_factor": 2, "mode": "linear"}, NotImplementedError, "needs 3D input"),
        ({"scale_factor": 0.01, "mode": "bilinear"}, RuntimeError, "greater than zero|should be"),
    ],
    ids=str,
)
def test_errors_are_those_of_one_process(options, error, message):
    with pytest.raises(error, match=message):
        F.interpolate(rand(1, 2, 6, 7), **options)
    assert_refused(resize(**options), rand(1, 2, 6, 7), grid=(2, 1), error=error, match=message)


def test_smooth_modes_refuse_integers():
    image = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    assert_refused(
        resize(scale_factor=2, mode="bilinear"),
        image,
        grid=(2, 1),
        match=r"Convert the image with \.float",
    )
    assert_refused(
        resize(scale_factor=2),
        image.long(),
        grid=(2, 1),
        error=RuntimeError,
        match="not implemented for 'Long'",
    )


def test_flattened_images_are_refused():
    def fn(x):
        return F.interpolate(x.flatten(2), scale_factor=2)

    assert_refused(fn, rand(1, 2, 6, 7), grid=(1, 2), match="flattened into one")
