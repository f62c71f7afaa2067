"""Regions of files in every format: the right pixels, for no more bytes than they are worth."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from mpi4dl.data import RegionReader, Tally, open_image
from mpi4dl.errors import DataError
from mpi4dl.geometry import Box, Layout

from .formats import BLOCK, FORMATS, SIZE, Format, pixels, pyramid, smaller, tiff

each_format = pytest.mark.parametrize("of", FORMATS.values(), ids=FORMATS)


def opened(of: Format, folder: Path) -> tuple[RegionReader, np.ndarray]:
    image = pixels(of.channels, of.dtype)
    of.write(folder / of.file, image)
    return open_image(folder / of.file, reader=of.reader), image


def part(image: np.ndarray, box: Box) -> np.ndarray:
    return image[(slice(None), *box.slices_in(Box.full(image.shape[1:])))]


@each_format
def test_every_region_of_every_level_is_that_part_of_the_image(of, tmp_path):
    reader, image = opened(of, tmp_path)
    assert reader.channels == of.channels
    assert reader.dtype == np.dtype(of.dtype)
    assert len(reader.levels) == of.levels
    for number, level in enumerate(reader.levels):
        assert level.size == image.shape[1:]
        assert level.downsample == pytest.approx(4**number, rel=0.05)
        whole = reader.read(Box.full(level.size), number)
        if number == 0 or not of.by_library:
            np.testing.assert_array_equal(whole, image)
        for box in Layout.grid(level.size, (2, 3)).boxes:
            region = reader.read(box, number)
            assert region.dtype == np.dtype(of.dtype)
            np.testing.assert_array_equal(region, part(whole, box))
        image = smaller(image)
    empty = Box.of((5, 5), (3, 9))
    assert reader.read(empty).shape == (of.channels, 0, 6)
    reader.close()


@each_format
def test_threads_may_read_at_once(of, tmp_path):
    reader, image = opened(of, tmp_path)
    boxes = Layout.grid(SIZE, (5, 4)).boxes * 3
    with ThreadPoolExecutor(4) as pool:
        for box, region in zip(boxes, pool.map(reader.read, boxes), strict=True):
            np.testing.assert_array_equal(region, part(image, box))
    reader.close()


@each_format
def test_a_quarter_costs_a_quarter_and_the_blocks_at_its_edge(of, tmp_path):
    reader, image = opened(of, tmp_path)
    quarter, tally = Box.of((0, 100), (0, 80)), Tally()
    reader.read(quarter, tally=tally)
    rows, columns = (-(-n // b) * b for n, b in zip(quarter.shape, of.block or (1, 1), strict=True))
    pixel = image[:, 0, 0].nbytes
    assert tally.bytes_decoded == pixel * min(rows, SIZE[0]) * min(columns, SIZE[1])
    file = tmp_path / of.file
    if of.by_library and sys.platform != "linux":
        assert tally.bytes_read == 0
    elif of.block == SIZE:
        assert tally.bytes_read == file.stat().st_size
    else:
        pages = 4096 * 12 if of.by_library else 0  # of which 12 blocks are read
        most = 1.4 * tally.bytes_decoded + pages  # noise grows when it is packed
        assert 0.5 * tally.bytes_decoded < tally.bytes_read < most
    reader.close()


def test_a_picture_is_unpacked_once(tmp_path):
    reader, image = opened(FORMATS["PNG"], tmp_path)
    tally = Tally()
    assert reader.held == 0
    for _ in range(2):
        reader.read(Box.of((0, 5), (0, 5)), tally=tally)
        assert tally.bytes_decoded == reader.held == image.nbytes


# ── what the numbers mean ────────────────────────────────────────────────────────────────────────


def test_jpeg_tiles_are_red_green_and_blue(tmp_path):
    image = np.zeros((3, *SIZE), np.uint8) + np.array([250, 120, 30], np.uint8)[:, None, None]
    pyramid(tmp_path / "a.tif", image, compression="jpeg")
    for reader in ("tiff", "slide"):
        red, green, blue = open_image(tmp_path / "a.tif", reader=reader).read(Box.full(SIZE))
        for found, meant in ((red, 250), (green, 120), (blue, 30)):
            inner = found[:192, :128].astype(int)  # JPEG wavers at the edge of the image
            assert abs(inner - meant).max() <= 6


def test_a_palette_gives_colours_or_for_masks_its_numbers(tmp_path):
    numbers = np.arange(12, dtype=np.uint8).reshape(3, 4) % 3
    palette = np.zeros((3, 256), np.uint16)
    palette[:, :3] = np.array([[10, 20, 30], [40, 50, 60], [70, 80, 90]]) * 257
    tifffile.imwrite(tmp_path / "a.tif", numbers, photometric="palette", colormap=palette)
    picture = Image.fromarray(numbers, mode=None).convert("P")
    picture.putpalette((palette.T // 257).astype(np.uint8).ravel().tolist())
    picture.save(tmp_path / "a.png")
    for name in ("a.tif", "a.png"):
        colours = open_image(tmp_path / name)
        assert colours.channels == 3
        assert colours.read(Box.full((3, 4)))[:, 0, 1].tolist() == [20, 50, 80]
        mask = open_image(tmp_path / name, indices=True)
        assert mask.channels == 1
        np.testing.assert_array_equal(mask.read(Box.full((3, 4)))[0], numbers)


@pytest.mark.parametrize("photometric", ["minisblack", "miniswhite"])
def test_bits_are_black_and_white_or_0_and_1(tmp_path, photometric):
    bits = np.eye(9, 17, dtype=bool)
    tifffile.imwrite(tmp_path / "a.tif", bits, photometric=photometric)
    Image.fromarray(bits).save(tmp_path / "a.png")
    white = bits if photometric == "minisblack" else ~bits
    box = Box.full(bits.shape)
    assert (open_image(tmp_path / "a.tif").read(box)[0] == white * np.uint8(255)).all()
    assert (open_image(tmp_path / "a.tif", indices=True).read(box)[0] == bits).all()
    assert (open_image(tmp_path / "a.png").read(box)[0] == bits * np.uint8(255)).all()
    assert (open_image(tmp_path / "a.png", indices=True).read(box)[0] == bits).all()


def test_colours_that_are_not_red_green_and_blue_are_refused(tmp_path):
    inks = np.zeros((20, 20, 4), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", inks, photometric="separated")
    with pytest.raises(DataError, match=r"a\.tif stores its colours as SEPARATED: save it as RGB"):
        open_image(tmp_path / "a.tif")


def test_several_planes_are_refused(tmp_path):
    tifffile.imwrite(tmp_path / "a.ome.tif", np.zeros((4, 2, 20, 20), "u1"), ome=True,
                     photometric="minisblack", metadata={"axes": "ZCYX"})  # fmt: skip
    with pytest.raises(DataError, match=r"has the axes ZCYX of \(4, 2, 20, 20\)"):
        open_image(tmp_path / "a.ome.tif")
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 4, 5)))
    with pytest.raises(DataError, match=r"a\.npy has the shape \(2, 3, 4, 5\)"):
        open_image(tmp_path / "a.npy")


def test_tiles_that_were_never_written_are_empty(tmp_path):
    file = tmp_path / "a.tif"
    image = pixels(3, "u1")
    tiff(file, image, tile=(BLOCK, BLOCK), compression="zlib")
    with tifffile.TiffFile(file, mode="r+") as opened:
        tag = opened.pages.first.tags["TileByteCounts"]
        tag.overwrite((0, *tag.value[1:]))
    image[:, :BLOCK, :BLOCK] = 0
    np.testing.assert_array_equal(open_image(file).read(Box.full(SIZE)), image)


# ── which reader ─────────────────────────────────────────────────────────────────────────────────


def test_a_file_without_a_suffix_is_known_by_its_beginning(tmp_path):
    for kind in ("PNG", "pyramid", "NumPy, channels first", "GeoTIFF", "Zarr"):
        reader, image = opened(FORMATS[kind], tmp_path)
        reader.close()
        file = (tmp_path / FORMATS[kind].file).rename(tmp_path / kind.replace(" ", ""))
        again = open_image(file)
        assert type(again) is type(reader)
        np.testing.assert_array_equal(again.read(Box.full(SIZE)), image)
        again.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: f / "no.tif", r"no\.tif does not exist"),
        (lambda f: written(f / "a.what", b"something"), r"a\.what is of a kind that is not known"),
        (lambda f: f, "is a folder, and not one of Zarr"),
        (lambda f: written(f / "a.npy", b"\x93NUMPY"), r"a\.npy cannot be mapped to memory"),
        (lambda f: written(f / "a.tif", b"II*\0"), r"a\.tif cannot be read as TIFF"),
        (lambda f: written(f / "a.svs", b"II*\0"), r"a\.svs cannot be read as a slide"),
        (lambda f: written(f / "a.jp2", b"no"), r"a\.jp2 cannot be read by GDAL"),
        (lambda f: written(f / "a.png", b"\x89PNG"), r"a\.png cannot be read as a picture"),
        (lambda f: written(f / "a.zarr", b"no"), r"a\.zarr cannot be read as Zarr"),
    ],
)
def test_what_cannot_be_opened_is_an_error_with_its_name(tmp_path, make, message):
    with pytest.raises(DataError, match=message):
        open_image(make(tmp_path))


def written(file: Path, text: bytes) -> Path:
    file.write_bytes(text)
    return file


def test_a_zarr_group_without_multiscales_names_its_arrays(tmp_path):
    zarr = pytest.importorskip("zarr")
    zarr.open_group(tmp_path / "a.zarr").create_array("inner", shape=(3, 4), dtype="u1")
    with pytest.raises(DataError, match=r"give the path of one of its arrays \(inner\)"):
        open_image(tmp_path / "a.zarr")
    assert open_image(tmp_path / "a.zarr" / "inner").levels[0].size == (3, 4)


def test_a_library_that_is_missing_is_an_error_with_the_command(tmp_path):
    """In a process of its own, where the libraries cannot be imported."""
    program = """
import sys
for name in ("openslide", "rasterio", "zarr", "tifffile", "PIL"):
    sys.modules[name] = None
from mpi4dl.data import open_image
for file in sys.argv[1:]:
    try:
        open_image(file)
    except Exception as error:
        print(error)
"""
    files = [tmp_path / f"a.{suffix}" for suffix in ("svs", "jp2", "zarr", "tif", "png")]
    for file in files:
        file.touch()
    command = [sys.executable, "-c", program, *map(str, files)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    lines = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert lines.stdout.splitlines() == [
        "slides are read with openslide, which is not installed: pip install 'mpi4dl[slides]'",
        "georeferenced images are read with rasterio, which is not installed: "
        "pip install 'mpi4dl[geo]'",
        "Zarr is read with zarr, which is not installed: pip install 'mpi4dl[zarr]'",
        "TIFF files are read with tifffile, which is not installed: pip install 'mpi4dl[data]'",
        "pictures are read with PIL, which is not installed: pip install 'mpi4dl[data]'",
    ]


# ── damage ───────────────────────────────────────────────────────────────────────────────────────


def chunks(path: Path) -> list[Path]:
    return [f for f in path.rglob("*") if f.is_file() and not f.name.startswith((".z", "zarr."))]


@each_format
def test_a_file_that_is_cut_off_is_an_error_with_its_name(of, tmp_path):
    reader, _ = opened(of, tmp_path)
    reader.close()
    path = tmp_path / of.file
    for file in chunks(path) if path.is_dir() else [path]:
        os.truncate(file, file.stat().st_size * 2 // 3)
    with pytest.raises(DataError, match=f"^{path}"):
        open_image(path, reader=of.reader).read(Box.full(SIZE))


@each_format
def test_blocks_that_are_garbage_are_an_error_or_other_pixels(of, tmp_path):
    """No decoder can tell all damage; but none gives anything but pixels or a `DataError`."""
    reader, image = opened(of, tmp_path)
    reader.close()
    path = tmp_path / of.file
    for file in chunks(path) if path.is_dir() else [path]:
        content = bytearray(file.read_bytes())
        start = len(content) // 3
        content[start : start + 600] = b"\xa5" * len(content[start : start + 600])
        file.write_bytes(content)
    found = []
    with contextlib.suppress(DataError):
        found = [open_image(path, reader=of.reader).read(Box.full(SIZE))]
    assert all(region.shape == image.shape for region in found)
