"""Images: the same ones whatever the tiles; files read as they are, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4dl.train.files import Cifar, PictureFolder, Selection
from mpi4dl.train.synthetic import SyntheticImages, synthetic_labels
from PIL import Image

from mpi4dl.errors import DataError
from mpi4dl.geometry import Layout
from mpi4dl.train.data import source

from .conftest import decided

ALL = (slice(None),) * 4

# ── synthetic ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["square", "vertical", "horizontal", "2x3"])
def test_tiles_of_synthetic_images_are_parts_of_one_image(method):
    images = SyntheticImages(3, 37, first=5, seed=1)
    whole = torch.full(images.shape, torch.nan)
    for box in Layout.sliced((3, 37, 37), 6, method).boxes:
        batch, rows, columns = (slice(i.start, i.stop) for i in box.intervals)
        here = (batch, slice(0, 3), rows, columns)
        whole[here] = images[here]
    assert torch.equal(whole, images[ALL])


def test_a_batch_begins_where_the_one_before_it_ended():
    together = SyntheticImages(4, 9, first=0, seed=0)[ALL]
    assert torch.equal(together[2:], SyntheticImages(2, 9, first=2, seed=0)[ALL])


def test_synthetic_pixels_look_like_noise():
    pixels = SyntheticImages(2, 64, first=0, seed=0)[ALL]
    assert -1 <= pixels.min() < -0.99
    assert 0.99 < pixels.max() < 1
    assert abs(pixels.mean()) < 0.01
    assert pixels.std() == pytest.approx(3**-0.5, abs=0.01)
    for shifted in (pixels.roll(1, 3), pixels.roll(1, 2), pixels.roll(1, 1), pixels.roll(1, 0)):
        assert abs((pixels * shifted).mean()) < 0.02, "neighbours know nothing of each other"
    other = SyntheticImages(2, 64, first=0, seed=1)[ALL]
    assert abs((pixels * other).mean()) < 0.02


def test_synthetic_labels_are_all_classes():
    labels = synthetic_labels(1000, 10, first=3, seed=0)
    assert labels.bincount(minlength=10).min() > 60
    assert torch.equal(labels[10:], synthetic_labels(990, 10, first=13, seed=0))


# ── CIFAR-10 ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Two files with 5 and 3 records, as the binary version has them."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    numbers = np.random.default_rng(0).integers(0, 256, (8, 3073), dtype=np.uint8)
    numbers[:, 0] = range(8)
    numbers[:5].tofile(folder / "data_batch_1.bin")
    numbers[5:].tofile(folder / "data_batch_2.bin")
    return tmp_path


def test_cifar_is_read_record_by_record(cifar):
    data = Cifar(cifar)
    assert data.labels.tolist() == list(range(8))
    whole = np.fromfile(cifar / "cifar-10-batches-bin" / "data_batch_2.bin", np.uint8)
    expected = torch.from_numpy(whole.reshape(3, 3073)[1, 1:].reshape(3, 32, 32)).float()
    part = data.read(6, slice(2, 9), slice(30, 32))
    torch.testing.assert_close(part, expected[:, 2:9, 30:32] / 127.5 - 1)


def test_a_selection_gives_the_same_pixels_in_any_tile(cifar):
    images = Selection(Cifar(cifar), torch.tensor([7, 0, 5]), 32, workers=0)
    whole = images[ALL]
    here = (slice(1, 3), slice(0, 3), slice(5, 20), slice(0, 11))
    assert images.shape == tuple(whole.shape) == (3, 3, 32, 32)
    assert torch.equal(images[here], whole[here])
    nothing = (slice(0, 0), slice(0, 3), slice(5, 20), slice(0, 11))
    assert images[nothing].shape == (0, 3, 15, 11)


def test_epochs_see_every_image_once_in_orders_of_their_own(cifar):
    options = decided("layer", "resnet", f"--app 2 --datapath {cifar} --batch-size 2").options
    data = source(options, samples=2)
    assert data.steps == 4
    seen = [torch.cat([data.batch(step)[1] for step in range(e * 4, e * 4 + 4)]) for e in (0, 1)]
    assert seen[0].sort()[0].tolist() == seen[1].sort()[0].tolist() == list(range(8))
    assert not torch.equal(*seen)


def test_an_incomplete_file_is_refused(cifar):
    file = cifar / "cifar-10-batches-bin" / "data_batch_1.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="which is no number of CIFAR-10 records of 3073 bytes"):
        Cifar(cifar)


def test_fewer_images_than_a_step_takes_are_refused(cifar):
    options = decided("layer", "resnet", f"--app 2 --datapath {cifar}").options
    with pytest.raises(DataError, match=r"has 8 images, and a step takes 32: use a smaller"):
        source(options, samples=32)


# ── folders of pictures ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for name, sizes in {"benign": [(20, 20), (20, 20)], "malignant": [(31, 24)]}.items():
        (tmp_path / name).mkdir()
        for number, (height, width) in enumerate(sizes):
            pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
        (tmp_path / name / "notes.txt").write_text("not a picture")
    return tmp_path


@pytest.mark.parametrize("workers", [0, 2])
def test_a_class_for_each_folder(pictures, workers):
    data = PictureFolder(pictures, size=20, classes=2)
    assert data.labels.tolist() == [0, 0, 1]
    images = Selection(data, torch.tensor([2, 1]), 20, workers)
    whole = images[ALL]
    here = (slice(0, 2), slice(0, 3), slice(10, 20), slice(3, 9))
    assert torch.equal(images[here], whole[here]), "also of a picture that had to be resized"
    with Image.open(pictures / "benign" / "1.png") as picture:
        expected = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 127.5 - 1
    torch.testing.assert_close(whole[1], expected)


def test_more_classes_than_the_model_has_are_refused(pictures):
    with pytest.raises(DataError, match="has 2 classes, and --num-classes is 1: use --num-class"):
        PictureFolder(pictures, size=20, classes=1)


def test_a_class_without_pictures_is_refused(pictures):
    (pictures / "unsure").mkdir()
    with pytest.raises(DataError, match=r"the class 'unsure' .* has no pictures"):
        PictureFolder(pictures, size=20, classes=10)


def test_what_is_no_picture_is_refused_by_name(pictures):
    (pictures / "benign" / "0.png").write_bytes(b"nothing that Pillow knows")
    with pytest.raises(DataError, match=r"0\.png cannot be read as a picture"):
        PictureFolder(pictures, size=20, classes=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path, "has nothing in it"),
        (lambda path: path / "missing", "does not exist"),
        (lambda path: file_in(path), "is a file, not a folder"),
        (lambda path: file_in(path).parent, "has neither pictures nor records in it"),
    ],
)
@pytest.mark.parametrize("read", [Cifar, lambda path: PictureFolder(path, 20, 10)])
def test_a_path_without_data_is_refused(tmp_path, make, message, read):
    with pytest.raises(DataError, match=message):
        read(make(tmp_path))


def file_in(path: Path) -> Path:
    (path / "readme").write_text("x")
    return path / "readme"
