"""Pictures made of pictures: a tile of one is exactly that part of the whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mpi4dl.data import ColourJitter, RandomCrop, RandomFlip, RandomRotate90, View
from mpi4dl.data.augment import drawn
from mpi4dl.data.colour import Coloured, Colours
from mpi4dl.data.picture import Picture, Placed, Turned
from mpi4dl.data.resampling import Resized
from mpi4dl.errors import DataError
from mpi4dl.geometry import Box, Layout


@dataclass(frozen=True, eq=False)
class Held:
    """In memory; it refuses what lies outside, as a file would."""

    pixels: np.ndarray

    @property
    def size(self) -> tuple[int, int]:
        return self.pixels.shape[1], self.pixels.shape[2]

    def read(self, box: Box) -> np.ndarray:
        assert box.empty or Box.full(self.size).contains(box), f"{box} of {self.size}"
        return self.pixels[(slice(None), *box.slices_in(Box.full(self.size)))]


def noise(size: tuple[int, int], dtype: str = "u1", channels: int = 3) -> Held:
    random = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return Held(random.random((channels, *size)).astype(dtype))
    return Held(random.integers(0, np.iinfo(dtype).max, (channels, *size), dtype, endpoint=True))


def whole(picture: Picture) -> np.ndarray:
    return picture.read(Box.full(picture.size))


def assert_tiles_are_parts(picture: Picture, grid: tuple[int, int] = (3, 2)) -> None:
    everything = whole(picture)
    assert everything.shape[1:] == picture.size
    for box in Layout.grid(picture.size, grid).boxes:
        part = everything[(slice(None), *box.slices_in(Box.full(picture.size)))]
        tile = picture.read(box)
        assert tile.dtype == everything.dtype
        np.testing.assert_array_equal(tile, part)


lengths = st.integers(1, 40)
sizes = st.tuples(lengths, lengths)


# ── one at a time, against what NumPy and Pillow make of the whole ───────────────────────────────


@given(sizes, st.integers(0, 3), st.booleans())
def test_turned(size, quarters, mirrored):
    below = noise(size)
    picture = Turned(below, quarters, mirrored)
    expected = np.rot90(below.pixels, quarters, (1, 2))
    np.testing.assert_array_equal(whole(picture), expected[:, :, ::-1] if mirrored else expected)
    assert_tiles_are_parts(picture)


@given(sizes, sizes, st.integers(-50, 50), st.integers(-50, 50))
def test_placed(size, frame, top, left):
    below = noise(size)
    picture = Placed(below, frame, top, left, fill=7)
    around = [(0, 0), (100, 100), (100, 100)]
    expected = np.pad(below.pixels, around, constant_values=7)[:, 100 + top :, 100 + left :]
    np.testing.assert_array_equal(whole(picture), expected[:, : frame[0], : frame[1]])
    assert_tiles_are_parts(picture)


@given(sizes, sizes, st.sampled_from(["u1", "u2", "f4"]))
def test_resized(size, to, dtype):
    assert_tiles_are_parts(Resized(noise(size, dtype), to))


@pytest.mark.parametrize("to", [(80, 61), (20, 37), (3, 5), (41, 53), (200, 7)])
def test_resized_as_pillow_does(to):
    below = noise((41, 53))
    picture = Image.fromarray(np.ascontiguousarray(below.pixels.transpose(1, 2, 0)))
    expected = np.asarray(picture.resize(to[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    difference = whole(Resized(below, to)).astype(int) - expected
    assert abs(difference).max() <= 1, "Pillow rounds between rows and columns"
    assert (difference != 0).mean() < 0.25


@given(sizes, sizes)
def test_resized_to_the_nearest(size, to):
    below = noise(size)
    picture = Resized(below, to, smooth=False)
    rows, columns = (
        [int((i + 0.5) * n / m) for i in range(m)] for n, m in zip(size, to, strict=True)
    )
    np.testing.assert_array_equal(whole(picture), below.pixels[:, rows][:, :, columns])
    assert_tiles_are_parts(picture)


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_coloured(channels):
    picture = Coloured(noise((23, 31), channels=channels), (Colours(1.2, 0.7, 1.4),), 255.0)
    assert_tiles_are_parts(picture)
    everything = whole(picture)
    assert everything.min() >= 0
    assert everything.max() <= 255
    np.testing.assert_array_equal(
        whole(Coloured(picture.below, (Colours(),), 255.0)), whole(picture.below)
    )


def test_colours_are_those_of_the_formula():
    pixel = np.array([100, 50, 200], np.float32).reshape(3, 1, 1)
    assert Colours(brightness=0.5)(pixel, 255.0).ravel().tolist() == [50, 25, 100]
    assert Colours(contrast=0.5)(pixel, 255.0).ravel().tolist() == [113.75, 88.75, 163.75]
    grey = 0.299 * 100 + 0.587 * 50 + 0.114 * 200
    np.testing.assert_allclose(Colours(saturation=0)(pixel, 255.0).ravel(), grey, rtol=1e-6)
    np.testing.assert_array_equal(Colours(brightness=9)(pixel, 255.0).ravel(), 255)


def test_a_small_region_needs_a_small_region():
    class Noted(Held):
        asked: list[Box] = []  # noqa: RUF012

        def read(self, box: Box) -> np.ndarray:
            self.asked.append(box)
            return super().read(box)

    below = Noted(noise((1000, 1000)).pixels)
    Resized(Turned(Placed(below, (900, 900), 50, 50), 1), (450, 450)).read(Box.of((0, 9), (0, 9)))
    assert [box.shape for box in below.asked] == [(20, 20)]


# ── together ─────────────────────────────────────────────────────────────────────────────────────

EVERYTHING = (
    RandomCrop((37, 29), padding=4),
    RandomFlip(),
    RandomRotate90(),
    ColourJitter(0.3, 0.3, 0.3),
)


@given(sizes, st.integers(0, 10_000), st.sampled_from(["crop", "resize"]), sizes, sizes)
def test_tiles_of_an_augmented_image_are_parts_of_it(size, sample, fit, fitted, grid):
    change = drawn(EVERYTHING, seed=1, epoch=2, sample=sample)
    picture = change.image(noise(size), fill=255, scale=255.0)
    grid = (min(grid[0], 5), min(grid[1], 5))
    assert_tiles_are_parts(View(fit=fit).fitted(picture, fitted, 255, True, "it"), grid)


@given(st.integers(0, 10_000))
def test_a_mask_changes_as_its_image(sample):
    image = noise((33, 41))
    change = drawn(EVERYTHING[:3], seed=1, epoch=2, sample=sample)
    changed = whole(change.image(image, fill=0, scale=255.0))
    mask = whole(change.mask(Held(image.pixels[:1] > 99), fill=0))
    np.testing.assert_array_equal(mask, changed[:1] > 99)


def test_what_is_drawn_follows_from_seed_epoch_and_sample():
    def image(*key: int) -> bytes:
        changed = drawn(EVERYTHING, *key).image(noise((40, 40)), fill=0, scale=255.0)
        return whole(changed).tobytes()

    assert image(0, 1, 2) == image(0, 1, 2)
    keys = [(seed, epoch, sample) for seed in range(3) for epoch in range(3) for sample in range(3)]
    assert len({image(*key) for key in keys}) == len(keys)


def test_all_turns_and_flips_come_as_often():
    square = Held(np.arange(9).reshape(1, 3, 3))
    augment = (RandomFlip(), RandomRotate90())
    seen: dict[bytes, int] = {}
    for sample in range(800):
        found = whole(drawn(augment, 0, 0, sample).mask(square, 0)).tobytes()
        seen[found] = seen.get(found, 0) + 1
    assert len(seen) == 8
    assert min(seen.values()) > 60


def test_crops_reach_everything():
    line = Held(np.arange(10).reshape(1, 1, 10))
    crops = [
        whole(drawn((RandomCrop((1, 7), padding=0),), 0, 0, sample).mask(line, 0)).ravel()
        for sample in range(100)
    ]
    assert {int(crop[0]) for crop in crops} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("fit", "size", "message"),
    [
        ("exact", (9, 10), r"it has 10×10 pixels, and samples have 9×10: use fit=crop or resize"),
        ("exact", (11, 10), r"use fit=pad, crop or resize"),
        ("pad", (11, 9), r"use fit=crop or resize"),
    ],
)
def test_an_image_that_does_not_fit_is_refused(fit, size, message):
    with pytest.raises(DataError, match=message):
        View(fit=fit).fitted(noise((10, 10)), size, 0, True, "it")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fit": "stretch"}, "fit is 'stretch'; it must be one of exact, crop, pad, resize"),
        ({"level": 1, "downsample": 2}, "either a level or a downsample"),
        ({"level": "fit"}, "level='fit' is for a size, and none is given"),
        ({"mean": (1, 2)}, "mean has 2 numbers, and samples have 3 channels"),
        ({"std": (1, 0, 1)}, r"std is \(1, 0, 1\); all of it must be above 0"),
        ({"downsample": 0.5}, "downsample is 0.5; it must be at least 1"),
    ],
)
def test_a_view_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(DataError, match=message):
        View(**wrong)
