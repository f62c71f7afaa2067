"""Make a slide, and measure how ranks read their regions of it.

    python benchmarks/data/run.py --size 32768 --ranks 4

The slide is a pyramidal tiled TIFF with a mask, generated tile by tile: neither it nor the image is
ever in memory as a whole. Then so many ranks read their tiles of it, in processes of their own and
one after the other, so that none profits from what another has read, or takes its time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

from mpi4dl.data import Loader, image_masks
from mpi4dl.data.generated import write_slide
from mpi4dl.geometry import Layout

CLASSES = ["tissue", "nucleus"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--size", type=int, default=32768, help="height and width of the slide")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--slice-method", default="square", help="square, vertical, 2x3, ...")
    parser.add_argument("--tile", type=int, default=512, help="of the file, pixels")
    parser.add_argument("--compression", default="jpeg", help="of the file: jpeg, zlib, zstd, ...")
    parser.add_argument("--folder", type=Path, default=Path("slides"), help="kept for later runs")
    parser.add_argument("--workers", type=int, default=0, help="threads that read")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def made(options: argparse.Namespace) -> tuple[Path, Path]:
    name = f"{options.size}-{options.tile}-{options.compression}.tif"
    files = options.folder / "images" / name, options.folder / "masks" / name
    if not all(file.exists() for file in files):
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        size = (options.size, options.size)
        write_slide(*files, size, tile=options.tile, compression=options.compression)
        took = time.perf_counter() - started
        print(f"made in {took:.0f} s, with at most {peak_mib():,.0f} MiB of memory", flush=True)
    return files


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def read(options: argparse.Namespace) -> None:
    """As one rank of a trainer does: the image of its tile, then the mask."""
    before = peak_mib()
    dataset = image_masks(options.folder / "images", options.folder / "masks", CLASSES)
    layout = Layout.sliced(dataset.size, options.ranks, options.slice_method)
    rows, columns = (slice(i.start, i.stop) for i in layout.boxes[options.rank])
    loader = Loader(dataset, 1, workers=options.workers)
    (images, masks), *_ = loader.epoch()
    started = time.perf_counter()
    tensors = images[:, :, rows, columns], masks[:, rows, columns]
    took = time.perf_counter() - started
    r = loader.reading()
    loader.close()
    held = sum(tensor.nbytes for tensor in tensors) / 2**20
    print(
        f"{options.rank:4}  {rows.stop - rows.start:6}×{columns.stop - columns.start:<6}"
        f"{r.bytes_read / 2**20:10.1f}{r.bytes_used / 2**20:10.1f}{r.amplification:8.3f}"
        f"{took:8.1f}{held:10.0f}{peak_mib() - before:10.0f}",
        flush=True,
    )


def main() -> None:
    options = arguments()
    if options.rank is not None:
        read(options)
        return
    files = made(options)
    sizes = [file.stat().st_size / 2**20 for file in files]
    print(f"{files[0]}: {sizes[0]:,.0f} MiB, and its mask {sizes[1]:,.0f} MiB\n")
    print("rank  pixels          read MiB  used MiB  amplif.  seconds  tensors  peak MiB")
    for rank in range(options.ranks):
        command = [sys.executable, __file__, *sys.argv[1:], "--rank", str(rank)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
