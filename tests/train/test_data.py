"""What `--app` names, in batches of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mpi4dl.errors import DataError
from mpi4dl.train.data import source

from .conftest import decided


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


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for name in ("benign", "malignant"):
        (tmp_path / name).mkdir()
        pixels = generator.integers(0, 256, (31, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name / "1.png")
    return tmp_path


def options_of(line: str):
    return decided("layer", "resnet", line).options


def test_synthetic_steps_never_have_the_same_image():
    data = source(options_of("--batch-size 3 --image-size 9 --steps 4 --num-epochs 2"), 3)
    assert data.steps == 10, "the original's, unless --steps says otherwise"
    batches = [data.batch(step) for step in range(9)]
    assert all(images.shape == (3, 3, 9, 9) and len(labels) == 3 for images, labels in batches)
    pixels = torch.cat([images[:].flatten(1) for images, _ in batches])
    assert len(pixels.unique(dim=0)) == 27


def test_epochs_see_every_image_once_in_orders_of_their_own(cifar):
    data = source(options_of(f"--app 2 --datapath {cifar} --batch-size 2"), samples=2)
    assert data.steps == 4
    seen = [torch.cat([data.batch(step)[1] for step in range(e * 4, e * 4 + 4)]) for e in (0, 1)]
    assert seen[0].sort()[0].tolist() == seen[1].sort()[0].tolist() == list(range(8))
    assert not torch.equal(*seen)


def test_fewer_images_than_a_step_takes_are_refused(cifar):
    with pytest.raises(DataError, match=r"has 8 images, and a step takes 32: use a smaller"):
        source(options_of(f"--app 2 --datapath {cifar}"), samples=32)


@pytest.mark.parametrize("workers", [0, 2])
def test_pictures_are_resized(pictures, workers):
    line = f"--app 1 --datapath {pictures} --image-size 20 --num-workers {workers} --batch-size 2"
    data = source(options_of(line), samples=2)
    images, labels = data.batch(0)
    assert images.shape == (2, 3, 20, 20)
    assert sorted(labels.tolist()) == [0, 1]
    here = (slice(0, 2), slice(0, 3), slice(10, 20), slice(3, 9))
    assert torch.equal(images[here], data.batch(0)[0][:][here])


def test_slides_may_be_listed_in_a_table(pictures):
    table = pictures / "slides.csv"
    table.write_text("path,label\nbenign/1.png,0\nmalignant/1.png,1\nbenign/1.png,2\n")
    data = source(options_of(f"--app 1 --datapath {table} --image-size 20"), samples=3)
    assert sorted(data.batch(0)[1].tolist()) == [0, 1, 2]


def test_more_classes_than_the_model_has_are_refused(pictures):
    line = f"--app 1 --datapath {pictures} --num-classes 1"
    with pytest.raises(DataError, match="has 2 classes, and --num-classes is 1: use --num-class"):
        source(options_of(line), samples=1)


def test_what_is_no_picture_is_refused_by_name(pictures):
    (pictures / "benign" / "1.png").write_bytes(b"nothing that Pillow knows")
    with pytest.raises(DataError, match=r"1\.png cannot be read as a picture"):
        source(options_of(f"--app 1 --datapath {pictures}"), samples=1)


@pytest.mark.parametrize("app", [1, 2])
def test_a_path_without_data_is_named_with_its_flag(tmp_path, app):
    with pytest.raises(DataError, match=f"^--datapath {tmp_path} has nothing in it"):
        source(options_of(f"--app {app} --datapath {tmp_path}"), samples=1)
