"""Batches: the same ones on every rank and in every layout; each rank reads its part, and no rank
waits for one that could not."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mpi4dl
from mpi4dl.data import (
    ColourJitter,
    Loader,
    RandomCrop,
    RandomFlip,
    RandomRotate90,
    Reading,
    Synthetic,
    View,
    image_folder,
    image_masks,
    open_image,
)
from mpi4dl.data.generated import write_slide
from mpi4dl.data.readers.tiff import TiffReader
from mpi4dl.errors import DataError
from mpi4dl.geometry import Box, Layout
from mpi4dl.models import unet
from support.ranks import every_rank_raises, run_ranks

SIZE = (90, 117)
COUNT = 6
AUGMENT = (RandomFlip(), RandomRotate90(), RandomCrop((88, 120)), ColourJitter(0.2, 0.2, 0.2))
VIEW = View(SIZE, "crop", fill=255)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slides of different sizes with masks, under folders of their classes as well."""
    path = tmp_path_factory.mktemp("stored")
    for name in ("images/a", "images/b", "masks/a", "masks/b"):
        (path / name).mkdir(parents=True)
    for seed in range(COUNT):
        name = f"{'ab'[seed % 2]}/{seed}.tif"
        size = (80 + 9 * seed, 130 - 7 * seed)
        write_slide(path / "images" / name, path / "masks" / name, size, seed, tile=64,
                    compression="zlib")  # fmt: skip
    return path


def masked(stored: Path, view: View = VIEW) -> Any:
    return image_masks(stored / "images", stored / "masks", ["tissue", "nucleus"], view)


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(i.start, i.stop) for i in box)


def epoch_of(loader: Loader, box: Box | None = None, epoch: int = 0) -> list[list[torch.Tensor]]:
    """Images and masks of every batch of an epoch, in one region."""
    rows, columns = slices(box or Box.full(loader.dataset.size))
    batches = []
    for images, labels in loader.epoch(epoch):
        all_samples, all_channels = slice(None), slice(None)
        region = images[all_samples, all_channels, rows, columns]
        of_masks = labels if loader.dataset.labels is not None else labels[:, rows, columns]
        batches.append([region, of_masks])
    return batches


def assert_same(ones: Sequence[Sequence[torch.Tensor]], others: Any) -> None:
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# ── one batch on many ranks ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("layout", ["2x2", "3x1", "vertical"])
def test_tiles_of_all_ranks_are_the_augmented_images(stored, layout, workers):
    options: dict[str, Any] = {"batch_size": 2, "seed": 3, "augment": AUGMENT}
    expected = epoch_of(Loader(masked(stored), **options))
    boxes = Layout.sliced(SIZE, 4 if layout == "2x2" else 3, layout).boxes
    data = masked(stored)

    def program(comm):
        loader = Loader(data, **options, workers=workers)
        found = epoch_of(loader, boxes[comm.rank])
        loader.close()
        return found

    for box, found in zip(boxes, run_ranks(len(boxes), program), strict=True):
        rows, columns = slices(box)
        assert_same(found, [[i[..., rows, columns], m[:, rows, columns]] for i, m in expected])


def test_a_training_is_the_same_on_one_rank_and_on_five(stored):
    torch.manual_seed(0)
    model = unet(num_classes=2, base=4, depth=2, norm="group").double()

    def losses(plan: mpi4dl.Plan) -> list[float]:
        data = masked(stored, View((64, 72), "crop"))

        def program(comm):
            loader = Loader(data, 2, seed=1, augment=AUGMENT[:2], workers=2)
            trainer = mpi4dl.Trainer(
                copy.deepcopy(model),
                plan,
                loss=F.cross_entropy,
                optimizer=partial(torch.optim.SGD, lr=0.1),
            )
            found = [float(trainer.step(i, m)) for i, m in loader.epoch(0)]
            loader.close()
            return found

        every = run_ranks(plan.world_size, program)
        assert all(one == every[0] for one in every)
        return every[0]

    torch.set_default_dtype(torch.float64)
    try:
        alone = losses(mpi4dl.Plan())
        cut = losses(mpi4dl.Plan(split_size=2, num_spatial_parts=4, spatial_size=1, parts=2))
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(alone) == 3
    assert cut == pytest.approx(alone, rel=1e-12)


# ── order ────────────────────────────────────────────────────────────────────────────────────────


def labels_of(loader: Loader, epoch: int, first: int = 0) -> list[int]:
    return torch.cat([labels for _, labels in loader.epoch(epoch, first)]).tolist()


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own():
    data = Synthetic(101, (8, 8), classes=10**6)
    loader = Loader(data, 4, seed=5, drop_last=False)
    assert len(loader) == loader.steps == 26
    orders = [labels_of(loader, epoch) for epoch in range(3)]
    assert all(sorted(order) == sorted(data.labels.tolist()) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    again = Loader(data, 4, seed=5, drop_last=False)
    assert labels_of(again, 2) == orders[2]
    other = Loader(data, 4, seed=6, drop_last=False)
    assert labels_of(other, 2) != orders[2]
    assert len(Loader(data, 4)) == 25
    in_order = Loader(data, 100, shuffle=False)
    assert labels_of(in_order, 7) == data.labels[:100].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_goes_on_where_it_was_interrupted(stored, workers):
    options: dict[str, Any] = {"batch_size": 2, "augment": AUGMENT, "workers": workers}
    everything = [b for e in (0, 1) for b in epoch_of(Loader(masked(stored), **options), epoch=e)]
    loader = Loader(masked(stored), **options)
    rest = [(images[:], masks[:]) for images, masks in loader.epoch(1, first=1)]
    assert_same(everything[4:], rest)
    loader.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 7}, "the data set has 6 samples, and a batch takes 7: use a smaller"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"workers": -1}, "workers is -1; it must be at least 0"),
        ({"ahead": 0}, "ahead is 0; it must be at least 1"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"damaged": "ignore"}, "damaged is 'ignore'; it must be 'raise' or 'skip'"),
    ],
)
def test_a_loader_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(DataError, match=message):
        Loader(Synthetic(6, (8, 8)), **{"batch_size": 2, **wrong})


def test_batches_are_read_by_slices():
    ((images, labels),) = Loader(Synthetic(2, (8, 9)), 2).epoch()
    assert images.shape == (2, 3, 8, 9)
    assert len(images) == 2
    assert images[1:].shape == (1, 3, 8, 9)
    assert images[:, 1:2, :, 5:].shape == (2, 1, 8, 4)
    assert images[0:0].shape == (0, 3, 8, 9)
    assert labels.shape == (2,)
    for where, message in ((0, "slices, one for each"), (slice(0, 2, 2), "without steps")):
        with pytest.raises(DataError, match=message):
            images[where]


# ── reading ahead ────────────────────────────────────────────────────────────────────────────────


def test_what_is_asked_of_a_batch_is_read_ahead_of_the_next(stored, monkeypatch):
    loader = Loader(masked(stored), 2, workers=1, shuffle=False)
    read: list[str] = []

    def noted(self: TiffReader, box: Box, level: int = 0, tally: Any = None) -> Any:
        read.append(f"{self.name[-12:]} {box.shape}")
        return plain(self, box, level, tally)

    plain = TiffReader.read
    monkeypatch.setattr(TiffReader, "read", noted)
    batches = loader.epoch()
    images, _ = next(batches)
    assert read == []
    images[:, :, 10:20, 10:20]
    loader._ahead._pool.submit(int).result()  # whatever came before it is done
    first = [name for name in read if "a/0" in name or "a/2" in name]
    ahead = [name for name in read if "a/4" in name or "b/1" in name]
    assert len(first) == len(ahead) == 2
    images, _ = next(batches)
    read.clear()
    images[:, :, 10:20, 10:20]
    assert not [name for name in read if "a/4" in name or "b/1" in name], "they were there already"
    loader.close()


def test_files_are_closed_when_there_are_too_many(stored, monkeypatch):
    monkeypatch.setattr("mpi4dl.data.open_files.MOST", 2)
    data = masked(stored)
    expected = epoch_of(Loader(masked(stored), 2))
    assert_same(epoch_of(Loader(data, 2)), expected)
    assert_same(epoch_of(Loader(data, 2, workers=3)), expected)
    assert len(data._files._slots) <= 2


# ── what it costs ────────────────────────────────────────────────────────────────────────────────


def test_a_rank_reads_about_its_part_of_the_bytes(tmp_path):
    size = (1024, 1024)
    for seed in range(2):
        (tmp_path / "a").mkdir(exist_ok=True)
        write_slide(tmp_path / "a" / f"{seed}.tif", None, size, seed, tile=64, compression="zlib")
    data = image_folder(tmp_path)
    files = sum((tmp_path / "a" / f"{seed}.tif").stat().st_size for seed in range(2))
    boxes = Layout.grid(size, (2, 2)).boxes
    readings: list[Reading] = []
    for box in boxes:
        loader = Loader(data, 1)
        epoch_of(loader, box)
        readings.append(loader.reading())
    assert all(r.bytes_used == 2 * 3 * 512 * 512 for r in readings)
    assert all(r.amplification == 1 for r in readings), "boxes end where blocks do"
    assert sum(r.bytes_read for r in readings) < files
    assert max(r.bytes_read for r in readings) < 0.26 * files
    assert all(r.waited > 0 for r in readings)

    crooked = Loader(data, 1)
    epoch_of(crooked, Box.of((100, 500), (200, 700)))
    block_edges = (64 * 7) * (64 * 8) / (400 * 500)
    assert crooked.reading().amplification == pytest.approx(block_edges)
    assert Loader(data, 1).reading().amplification == 0


def test_every_rank_knows_what_all_have_read(stored):
    def program(comm):
        loader = Loader(masked(stored), 2)
        epoch_of(loader, Layout.horizontal(SIZE, 3).boxes[comm.rank])
        return loader.reading(), loader.readings()

    found = run_ranks(3, program)
    assert all(every == [own for own, _ in found] for _, every in found)


# ── damage ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Eight images, of which one has a block in its last rows that cannot be unpacked."""
    (tmp_path / "a").mkdir()
    for seed in range(8):
        write_slide(tmp_path / "a" / f"{seed}.tif", None, (192, 128), seed, tile=64,
                    compression="zlib")  # fmt: skip
    ruin(tmp_path / "a" / "3.tif")
    return tmp_path


def ruin(file: Path) -> None:
    """Its last block of the finest level."""
    reader = open_image(file)
    assert isinstance(reader, TiffReader)
    plane = reader._levels[0].planes[0]
    with file.open("r+b") as opened:
        opened.seek(int(plane.offsets[5]))
        opened.write(b"\0" * int(plane.counts[5]))
    reader.close()


def batches_of(loader: Loader, rank: int) -> list[torch.Tensor]:
    """As a trainer would: the first two of three ranks have halves, the last one has labels."""
    found = []
    halves = Layout.horizontal(loader.dataset.size, 2).boxes
    for images, labels in loader.epoch():
        if rank < 2:
            rows, columns = slices(halves[rank])
            found.append(images[:, :, rows, columns])
        else:
            found.append(labels)
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first", [False, True], ids=["later", "in the first batch"])
def test_a_damaged_file_is_an_error_on_every_rank_before_any_computes(damaged, workers, first):
    """Also on ranks that would not have read it."""
    if first:
        for seed in range(8):
            ruin(damaged / "a" / f"{seed}.tif")
    data = image_folder(damaged)

    def program(comm):
        loader = Loader(data, 2, shuffle=False, workers=workers)
        try:
            batches_of(loader, comm.rank)
        finally:
            loader.close()

    name = "0" if first else "3"
    every_rank_raises(3, program, DataError, rf"a/{name}\.tif: block 5 cannot be unpacked")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 3])
def test_damaged_files_are_skipped_alike_and_counted(damaged, ranks, workers):
    ruin(damaged / "a" / "4.tif")
    data = image_folder(damaged)

    def program(comm):
        loader = Loader(data, 2, shuffle=False, workers=workers, damaged="skip")
        found = batches_of(loader, comm.rank)
        loader.close()
        return found, loader.reading().skipped

    results = run_ranks(ranks, program)
    assert all(len(batches) == 4 for batches, _ in results)
    skipped = (str(damaged / "a" / "3.tif"), str(damaged / "a" / "4.tif"))
    if ranks == 1:  # whose region does not have the damaged blocks
        assert results[0][1] == ()
        return
    assert all(names == skipped for _, names in results)
    intact = Loader(data, 1, shuffle=False)
    expected = [[0, 1], [2, 5], [5, 5], [6, 7]]
    for box, (batches, _) in zip(Layout.horizontal(data.size, 2).boxes, results, strict=False):
        rows, columns = slices(box)
        for batch, numbers in zip(batches, expected, strict=True):
            each = [intact.batch(0, n)[0][:, :, rows, columns] for n in numbers]
            assert torch.equal(batch, torch.cat(each))


def test_it_does_not_matter_what_was_known_of_damage_before(damaged):
    """A run that goes on from a later batch has the same batches."""
    data = image_folder(damaged)

    def batches(comm, first: int) -> list[torch.Tensor]:
        loader = Loader(data, 2, seed=1, damaged="skip", augment=AUGMENT[:1])
        return [images[:] for images, _ in loader.epoch(1, first)]

    everything = run_ranks(2, partial(batches, first=0))
    rest = run_ranks(2, partial(batches, first=2))
    assert all(
        torch.equal(a, b)
        for one, other in zip(everything, rest, strict=True)
        for a, b in zip(one[2:], other, strict=True)
    )


def test_when_nothing_can_be_read_that_is_an_error(damaged):
    for seed in range(8):
        ruin(damaged / "a" / f"{seed}.tif")
    data = image_folder(damaged)

    def program(comm):
        Loader(data, 2, damaged="skip").batch(0, 0)

    every_rank_raises(2, program, DataError, "none of the 8 samples can be read: ")


def test_what_is_no_damage_is_not_skipped(damaged, monkeypatch):
    def full(*_: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(TiffReader, "read", full)
    data = image_folder(damaged, View((192, 128)))

    def program(comm):
        Loader(data, 2, shuffle=False, damaged="skip").batch(0, 0)

    every_rank_raises(2, program, DataError, r"0\.tif was not read: MemoryError\('no room'\)")


def test_ranks_with_other_files_are_told_so(stored):
    data = [image_folder(stored / "images", VIEW) for _ in range(3)]
    data[2] = data[2].subset([0, 1, 2, 3, 5, 4])

    def program(comm):
        next(Loader(data[comm.rank], 2).epoch())

    message = r"rank 2 has other samples than rank 0 \(numbers of samples: 6, 6, 6\)"
    every_rank_raises(3, program, DataError, message)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (os.remove, r"a/2\.tif does not exist"),
        (lambda file: write_slide(file, None, (200, 128), tile=64), r"2\.tif has 200×128 pixels"),
    ],
)
def test_a_mistake_is_not_skipped_either(damaged, wrong, message):
    data = image_folder(damaged)
    wrong(damaged / "a" / "2.tif")

    def program(comm):
        batches_of(Loader(data, 2, shuffle=False, damaged="skip"), comm.rank)

    every_rank_raises(3, program, DataError, message)
