"""Data sets on disk: which samples they have, and what is said about those that have none."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from mpi4dl.data import (
    Dataset,
    FileDataset,
    Item,
    RandomFlip,
    Synthetic,
    Tally,
    View,
    cifar,
    image_folder,
    image_masks,
    slide_table,
    split,
)
from mpi4dl.data.augment import drawn
from mpi4dl.data.dataset import image_region, mask_region
from mpi4dl.data.generated import Tissue, write_slide
from mpi4dl.errors import DataError
from mpi4dl.geometry import Box, Layout


def image(dataset: Dataset, index: int, box: Box | None = None) -> torch.Tensor:
    box = box or Box.full(dataset.size)
    return image_region(dataset, index, box, None, Tally()).pixels


def mask(dataset: Dataset, index: int, box: Box | None = None) -> torch.Tensor:
    box = box or Box.full(dataset.size)
    return mask_region(dataset, index, box, None, Tally()).pixels


def picture(file: Path, size: tuple[int, int], seed: int = 0, mode: str = "RGB") -> np.ndarray:
    file.parent.mkdir(parents=True, exist_ok=True)
    shape = (*size, len(mode)) if len(mode) > 1 else size
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return pixels


# ── folders ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    picture(tmp_path / "benign" / "0.png", (20, 20))
    picture(tmp_path / "benign" / "1.png", (20, 20), 1)
    picture(tmp_path / "malignant" / "inner" / "0.PNG", (31, 24))
    (tmp_path / "benign" / "notes.txt").write_text("not a picture")
    return tmp_path


def test_a_class_for_each_folder(folder):
    data = image_folder(folder, View(size=(20, 20), fit="resize"))
    assert data.labels.tolist() == [0, 0, 1]
    assert data.classes == ("benign", "malignant")
    assert data.name(2).endswith("0.PNG")
    with Image.open(folder / "benign" / "1.png") as stored:
        expected = torch.from_numpy(np.array(stored)).permute(2, 0, 1).float() / 127.5 - 1
    torch.testing.assert_close(image(data, 1), expected)
    here = Box.of((10, 20), (3, 9))
    assert torch.equal(image(data, 2, here), image(data, 2)[:, 10:20, 3:9])


def test_images_of_another_size_are_refused_unless_a_view_says_how_they_fit(folder):
    data = image_folder(folder)
    assert data.size == (20, 20)
    with pytest.raises(DataError, match=r"0\.PNG has 31×24 pixels, and samples have 20×20"):
        image(data, 2)
    cropped = image_folder(folder, View(size=(25, 22), fit="crop", fill=255))
    assert (image(cropped, 0)[:, :2] == 1).all(), "white above"
    assert (image(cropped, 2) < 1).any()


def test_what_a_view_says_of_pixels(tmp_path):
    stored = picture(tmp_path / "a" / "0.png", (8, 9), mode="RGBA")
    grey = picture(tmp_path / "a" / "1.png", (8, 9), mode="L")
    data = image_folder(tmp_path, View(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)))
    mean, std = np.array([[0.5, 0.4, 0.3], [0.2, 0.3, 0.4]])
    expected = ((stored[..., :3] / 255 - mean) / std).transpose(2, 0, 1)
    np.testing.assert_allclose(image(data, 0).numpy(), expected, atol=1e-5)
    assert image(data, 1).shape == (3, 8, 9)
    one = image_folder(tmp_path, View(channels=1, mean=(0,), std=(1,)))
    np.testing.assert_allclose(image(one, 1)[0].numpy(), grey / 255, atol=1e-6)
    every = FileDataset([Item(tmp_path / "a" / "0.png", 0)], ["a"], View(channels=None))
    assert every.channels == 4


def test_floating_point_images_stay_as_they_are(tmp_path):
    pixels = np.random.default_rng(0).normal(5, 9, (3, 7, 8)).astype(np.float32)
    np.save(tmp_path / "a.npy", pixels)
    data = FileDataset([Item(tmp_path / "a.npy", 0)], ["a"])
    assert torch.equal(image(data, 0), torch.from_numpy(pixels))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path, "has nothing in it"),
        (lambda path: path / "missing", "does not exist"),
        (lambda path: file_in(path), "is a file, not a folder"),
        (lambda path: file_in(path).parent, "has neither pictures nor records in it"),
    ],
)
@pytest.mark.parametrize(
    "read", [cifar, image_folder, lambda path: image_masks(path, path, ["a", "b"])]
)
def test_a_path_without_data_is_refused(tmp_path, make, message, read):
    with pytest.raises(DataError, match=message):
        read(make(tmp_path))


def file_in(path: Path) -> Path:
    (path / "readme").write_text("x")
    return path / "readme"


def test_a_class_without_pictures_is_refused(folder):
    (folder / "unsure").mkdir()
    with pytest.raises(DataError, match=r"the class 'unsure' .* has no pictures"):
        image_folder(folder)


# ── slides: levels, masks ────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two slides of 300 × 410 with masks, and pyramids."""
    path = tmp_path_factory.mktemp("slides")
    for name in ("images", "masks"):
        (path / name).mkdir()
    for seed in range(2):
        files = (path / "images" / f"{seed}.tif", path / "masks" / f"{seed}.tif")
        write_slide(*files, (300, 410), seed, tile=64, compression="zlib")
    return path


def masked(slides: Path, view: View | None = None, **options: object) -> FileDataset:
    return image_masks(slides / "images", slides / "masks", ["tissue", "nucleus"], view, **options)


def test_a_mask_for_each_image(slides):
    data = masked(slides)
    assert len(data) == 2
    assert data.labels is None
    assert data.size == (300, 410)
    everything = Tissue((300, 410), 1).mask(Box.full((300, 410)))[0]
    np.testing.assert_array_equal(mask(data, 1).numpy(), everything)
    assert mask(data, 1).dtype == torch.int64
    here = Box.of((100, 210), (33, 44))
    np.testing.assert_array_equal(mask(data, 1, here).numpy(), everything[100:210, 33:44])


@pytest.mark.parametrize(
    ("view", "size"),
    [
        (View(level=1), (75, 103)),
        (View(size=(70, 70), level="fit", fit="resize"), (70, 70)),
        (View(downsample=4), (75, 102)),
        (View(downsample=6), (50, 68)),
        (View(downsample=2.5), (120, 164)),
    ],
)
def test_a_level_or_a_downsample_is_chosen_for_image_and_mask(slides, view, size):
    data = masked(slides, view)
    assert data.size == size
    tally = Tally()
    found = image_region(data, 0, Box.full(size), None, tally)
    assert found.pixels.shape == (3, *size)
    coarse = view.downsample != 2.5  # for which only the finest level is fine enough
    assert (tally.bytes_decoded < 3 * 300 * 410 / 4) == coarse
    small, large = mask(data, 0), mask(masked(slides), 0)
    assert small.shape == size
    assert abs(small.double().mean() - large.double().mean()) < 0.03
    for box in Layout.grid(size, (2, 3)).boxes:
        rows, columns = (slice(i.start, i.stop) for i in box)
        assert torch.equal(image(data, 0, box), image(data, 0)[:, rows, columns])
        assert torch.equal(mask(data, 0, box), small[rows, columns])


def test_a_level_that_is_not_there_is_refused(slides):
    with pytest.raises(DataError, match=r"0\.tif has no level 7; its levels are 0: 300×410, 1: 75"):
        masked(slides, View(level=7))


def test_a_mask_may_be_coarser_than_its_image(tmp_path, slides):
    with tifffile.TiffFile(slides / "masks" / "0.tif") as file:
        coarse = file.series[0].levels[1].asarray()
    tifffile.imwrite(tmp_path / "0.tif", coarse)
    items = [Item(slides / "images" / "0.tif", mask=tmp_path / "0.tif")]
    data = FileDataset(items, ["tissue", "nucleus"])
    found = mask(data, 0)
    assert found.shape == (300, 410)
    assert (found == mask(masked(slides), 0)).double().mean() > 0.9


def test_padded_masks_have_the_class_that_is_said(slides):
    data = masked(slides, View(size=(310, 420), fit="pad", fill=255, mask_fill=-100))
    assert (mask(data, 0)[:5] == -100).all()
    assert (mask(data, 0)[5:-5, 5:-5] >= 0).all()
    assert (image(data, 0)[:, :5] == 1).all()


def test_a_mask_is_changed_as_its_image(slides):
    data = masked(slides)
    change = drawn([RandomFlip(1.0, 1.0)], 0, 0, 0)
    box = Box.full(data.size)
    changed = mask_region(data, 0, box, change, Tally()).pixels
    assert torch.equal(changed, mask(data, 0).flip(0, 1))
    assert torch.equal(
        image_region(data, 0, box, change, Tally()).pixels, image(data, 0).flip(1, 2)
    )


def test_masks_may_have_values_of_their_own(tmp_path):
    picture(tmp_path / "i" / "0.png", (4, 5))
    (tmp_path / "m").mkdir()
    stored = np.array([0, 255, 255, 0, 0] * 4, np.uint8).reshape(4, 5)
    Image.fromarray(stored).save(tmp_path / "m" / "0.png")
    folders = (tmp_path / "i", tmp_path / "m")
    data = image_masks(*folders, ["no", "yes"], mask_values=(0, 255))
    np.testing.assert_array_equal(mask(data, 0).numpy(), stored // 255)
    data = image_masks(*folders, ["no"], mask_ignore=255)
    np.testing.assert_array_equal(mask(data, 0).numpy(), np.where(stored == 255, -100, 0))
    with pytest.raises(
        DataError, match=r"m/0\.png has the value 255 in it, and those .* are 0, 1:"
    ):
        mask(image_masks(*folders, ["no", "yes"]), 0)
    with pytest.raises(DataError, match=r"m/0\.png has the value 0 in it, and those"):
        mask(image_masks(*folders, ["no", "yes"], mask_values=(1, 255)), 0)


def test_an_image_without_a_mask_is_refused(tmp_path):
    picture(tmp_path / "i" / "0.png", (4, 5))
    picture(tmp_path / "m" / "1.png", (4, 5))
    with pytest.raises(DataError, match=r"i/0\.png has no mask: .*/m must have a file of the same"):
        image_masks(tmp_path / "i", tmp_path / "m", ["a", "b"])


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def table(folder: Path, text: str) -> Path:
    (folder / "slides.csv").write_text(text)
    return folder / "slides.csv"


def test_a_table_of_labels(folder):
    text = "path,label,split,group\nbenign/0.png,10,train,x\nbenign/1.png,9,train,y\n"
    data = slide_table(table(folder, f"{text}malignant/inner/0.PNG,10,test,z\n"), View((20, 20)))
    assert data.classes == ("9", "10")
    assert data.labels.tolist() == [1, 0, 1]
    assert [item.group for item in data.items] == ["x", "y", "z"]
    assert len(data.where("train")) == 2
    assert data.where("test").name(0).endswith("0.PNG")
    with pytest.raises(DataError, match="no sample belongs to 'val'; there are 'test', 'train'"):
        data.where("val")


def test_a_table_of_masks(slides):
    file = table(slides, "image,truth\nimages/0.tif,masks/0.tif\n")
    data = slide_table(file, image="image", mask="truth", classes=["tissue", "nucleus"])
    assert torch.equal(mask(data, 0), mask(masked(slides), 0))


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, r"slides\.csv has no lines after its first"),
        ("a,b\n1,2\n", {}, "has the columns a, b, and there must be 'path' and 'label' or 'mask'"),
        ("path,label\nx.png,a\n", {"classes": ["b"]}, r"the label 'a' of .*x\.png, which is none"),
        ("path,mask\nx.png,y.png\n", {}, "has masks: say which classes they have"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(tmp_path, text, options, message):
    with pytest.raises(DataError, match=message):
        slide_table(table(tmp_path, text), View((8, 8)), **options)


def test_a_table_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no\.csv is no file; a table of images is a CSV file"):
        slide_table(tmp_path / "no.csv")


# ── splits ───────────────────────────────────────────────────────────────────────────────────────


def patients(counts: list[int]) -> FileDataset:
    """So many samples of each; every other patient is ill."""
    items = [
        Item(Path(f"{p}/{n}.png"), label=p % 2, group=f"patient {p}")
        for p, count in enumerate(counts)
        for n in range(count)
    ]
    return FileDataset(items, ["well", "ill"], View((8, 8)))


def test_patients_are_never_on_both_sides():
    data = patients([3, 1, 4, 1, 5, 9, 2, 6, 5, 3] * 3)
    for seed in range(5):
        training, validation = split(data, 0.25, seed)
        sides = [{item.group for item in side.items} for side in (training, validation)]
        assert not sides[0] & sides[1]
        assert len(training) + len(validation) == len(data)
        for label in (0, 1):
            share = (validation.labels == label).sum() / (data.labels == label).sum()
            assert 0.15 < share < 0.35
    assert split(data, 0.25, 0)[1].items == split(data, 0.25, 0)[1].items
    assert split(data, 0.25, 0)[1].items != split(data, 0.25, 1)[1].items


@pytest.mark.parametrize("share", [0, 1, -0.5])
def test_a_split_that_cannot_be_is_refused(share):
    with pytest.raises(DataError, match="it must be between 0 and 1"):
        split(patients([1, 1]), share)
    with pytest.raises(DataError, match=r"2 samples in 2 groups cannot be split with 0\.01"):
        split(patients([1, 1]), 0.01)


# ── CIFAR ────────────────────────────────────────────────────────────────────────────────────────

NUMBERS = np.random.default_rng(0).integers(0, 256, (8, 3072), dtype=np.uint8)


def binary(path: Path, classes: int) -> Path:
    """Two files with 5 and 3 records; 100 classes have them in one."""
    folder = path / ("cifar-10-batches-bin" if classes == 10 else "cifar-100-binary")
    folder.mkdir()
    labels = np.arange(8, dtype=np.uint8)[:, None]
    if classes == 10:
        records = np.hstack([labels, NUMBERS])
        records[:5].tofile(folder / "data_batch_1.bin")
        records[5:].tofile(folder / "data_batch_2.bin")
        records[:2].tofile(folder / "test_batch.bin")
        (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    else:
        np.hstack([labels // 5, labels, NUMBERS]).tofile(folder / "train.bin")
    return path


def for_python(path: Path, classes: int) -> Path:
    """As those who made them did: with Python 2, whose strings are bytes here."""
    folder = path / ("cifar-10-batches-py" if classes == 10 else "cifar-100-python")
    folder.mkdir()
    key = "labels" if classes == 10 else "fine_labels"
    for name, rows in (
        (("1", slice(0, 5)), ("2", slice(5, 8))) if classes == 10 else (("", slice(0, 8)),)
    ):
        found = {"data": NUMBERS[rows], key: list(range(8))[rows]}
        file = folder / (f"data_batch_{name}" if classes == 10 else "train")
        file.write_bytes(pickle.dumps(found, protocol=2))
    return path


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("make", [binary, for_python])
def test_cifar(tmp_path, make, classes):
    data = cifar(make(tmp_path, classes), classes)
    assert data.labels.tolist() == list(range(8))
    assert len(data.classes) == classes
    assert data.size == (32, 32)
    expected = torch.from_numpy(NUMBERS[6].reshape(3, 32, 32)).float() / 127.5 - 1
    torch.testing.assert_close(image(data, 6), expected)
    here = Box.of((2, 9), (30, 32))
    torch.testing.assert_close(image(data, 6, here), expected[:, 2:9, 30:32])


def test_cifar_has_names_and_a_part_for_tests(tmp_path):
    binary(tmp_path, 10)
    assert cifar(tmp_path).classes == tuple("abcdefghij")
    assert len(cifar(tmp_path, train=False)) == 2
    assert len(cifar(tmp_path / "cifar-10-batches-bin")) == 8, "or the folder itself"


def test_an_incomplete_file_is_refused(tmp_path):
    file = binary(tmp_path, 10) / "cifar-10-batches-bin" / "data_batch_1.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="which is no number of CIFAR-10 records of 3073 bytes"):
        cifar(tmp_path)


def test_a_pickle_that_would_call_something_is_refused(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "called",))

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(pickle.dumps({"data": Harmful()}))
    with pytest.raises(DataError, match=r"data_batch_1 cannot be read .*: it would call"):
        cifar(tmp_path)
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("content", [b"", b"\x80", pickle.dumps({"data": 1}), pickle.dumps([])])
def test_a_pickle_of_something_else_is_refused(tmp_path, content):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(content)
    with pytest.raises(DataError, match="data_batch_1 cannot be read as a part of CIFAR-10"):
        cifar(tmp_path)


# ── synthetic ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["square", "vertical", "horizontal", "2x3"])
@pytest.mark.parametrize("masks", [False, True])
def test_tiles_of_synthetic_images_are_parts_of_one_image(method, masks):
    data = Synthetic(3, (37, 29), seed=1, masks=masks)
    read = mask if masks else image
    for index in range(3):
        whole = read(data, index)
        for box in Layout.sliced((37, 29), 6, method).boxes:
            rows, columns = (slice(i.start, i.stop) for i in box)
            assert torch.equal(read(data, index, box), whole[..., rows, columns])


def test_synthetic_pixels_look_like_noise():
    data = Synthetic(2, (64, 64))
    pixels = torch.stack([image(data, 0), image(data, 1)])
    assert -1 <= pixels.min() < -0.99
    assert 0.99 < pixels.max() < 1
    assert abs(pixels.mean()) < 0.01
    assert pixels.std() == pytest.approx(3**-0.5, abs=0.01)
    for shifted in (pixels.roll(1, 3), pixels.roll(1, 2), pixels.roll(1, 1), pixels.roll(1, 0)):
        assert abs((pixels * shifted).mean()) < 0.02, "neighbours know nothing of each other"
    other = image(Synthetic(2, (64, 64), seed=1), 0)
    assert abs((pixels[0] * other).mean()) < 0.02


def test_synthetic_labels_are_all_classes():
    assert Synthetic(1000, (8, 8)).labels.bincount(minlength=10).min() > 60


def test_synthetic_masks_can_be_learned_from_the_image():
    data = Synthetic(1, (16, 16), masks=True)
    assert torch.equal(mask(data, 0), (image(data, 0)[0] > 0).long())


# ── generated slides ─────────────────────────────────────────────────────────────────────────────


def test_any_region_of_a_generated_slide_is_that_part_of_it():
    tissue = Tissue((203, 311), seed=5)
    image, nuclei = (read(Box.full(tissue.size)) for read in (tissue.read, tissue.mask))
    assert 0.05 < nuclei.mean() < 0.3
    assert image[:, nuclei[0] == 1].mean() < image[:, nuclei[0] == 0].mean() - 40
    for box in Layout.grid(tissue.size, (3, 4)).boxes:
        where = (slice(None), *box.slices_in(Box.full(tissue.size)))
        np.testing.assert_array_equal(tissue.read(box), image[where])
        np.testing.assert_array_equal(tissue.mask(box), nuclei[where])


def test_a_written_slide_is_a_pyramid_of_what_was_generated(slides):
    with tifffile.TiffFile(slides / "images" / "1.tif") as file:
        levels = [level.asarray() for level in file.series[0].levels]
        assert all(page.is_tiled for page in file.pages)
    assert [level.shape for level in levels] == [(300, 410, 3), (75, 103, 3), (19, 26, 3)]
    whole = Tissue((300, 410), 1).read(Box.full((300, 410))).transpose(1, 2, 0)
    np.testing.assert_array_equal(levels[0], whole)
    means = whole[:, :408].reshape(75, 4, 102, 4, 3).mean((1, 3))
    assert abs(levels[1][:, :102] - means).max() <= 0.51


def test_a_tile_that_halves_badly_is_refused(tmp_path):
    with pytest.raises(DataError, match="tile is 100; it must be a multiple of 64"):
        write_slide(tmp_path / "a.tif", None, (200, 200), tile=100)
