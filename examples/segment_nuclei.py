"""Train a U-Net to find cell nuclei, with every image cut into tiles on different processes.

    torchrun --nproc-per-node 4 examples/segment_nuclei.py

Each process holds one tile of every image, of every activation and of the loss. At the end one
process repeats the last step on whole images and compares the gradients, and a picture of a
prediction is written. The tissue is generated: the point is the training, which is real.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor, nn

import mpi4dl
from mpi4dl.geometry import Layout, square_grid
from mpi4dl.models import unet

Picture = NDArray[np.float32]


def tissue(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """A stained section (3, size, size) in 0..1 and its nuclei (size, size) as 0 and 1."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:size, 0:size].astype(np.float32)
    coarse = torch.from_numpy(rng.random((1, 3, 12, 12), dtype=np.float32))
    cloud = F.interpolate(coarse, (size, size), mode="bicubic")[0].numpy()
    image = np.array([0.86, 0.66, 0.78], np.float32)[:, None, None] + 0.18 * (cloud - 0.5)
    mask = np.zeros((size, size), bool)
    for _ in range(size * size // 700):
        y, x = rng.random(2) * size
        a, b, turn = rng.uniform(6, 13), rng.uniform(5, 9), rng.uniform(0, np.pi)
        u = (columns - x) * np.cos(turn) + (rows - y) * np.sin(turn)
        v = (rows - y) * np.cos(turn) - (columns - x) * np.sin(turn)
        distance = (u / a) ** 2 + (v / b) ** 2
        inside = distance < 1
        colour = np.array([0.42, 0.28, 0.56], np.float32) + rng.normal(0, 0.05, 3)
        depth = (0.55 + 0.35 * distance[inside]) if rng.random() < 0.9 else 0.3
        image[:, inside] = colour[:, None] + (image[:, inside] - colour[:, None]) * depth * 0.6
        mask |= inside
    image += rng.normal(0, 0.06, image.shape)
    return torch.from_numpy(image.clip(0, 1).astype(np.float32)), torch.from_numpy(mask).long()


def batch(size: int, count: int, first_seed: int) -> tuple[Tensor, Tensor]:
    pairs = [tissue(size, first_seed + i) for i in range(count)]
    return torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])


def overlap(logits: Tensor, labels: Tensor) -> float:
    """Intersection over union of the nuclei; on tiles, of the whole image."""
    found = logits.argmax(1) == 1
    real = labels == 1
    return float((found & real).sum() / (found | real).sum())


def compare_with_one_process(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The worst relative error of any parameter's gradient, in float64."""
    comm = mpi4dl.init()
    reference = copy.deepcopy(model).double()
    ours = copy.deepcopy(reference)
    F.cross_entropy(reference(images.double()), labels).backward()
    grid = square_grid(comm.size)
    F.cross_entropy(ours(mpi4dl.shard(images.double(), grid)), labels).backward()
    mpi4dl.sync_gradients(ours)
    pairs = [
        (p.grad, q.grad)
        for p, q in zip(ours.parameters(), reference.parameters(), strict=True)
        if p.grad is not None and q.grad is not None
    ]
    largest = max(q.norm() for _, q in pairs)
    return max(float((p - q).norm() / (q.norm() + 1e-3 * largest)) for p, q in pairs)


def draw(path: Path, image: Tensor, labels: Tensor, found: Tensor, layout: Layout) -> None:
    """Side by side: the image with its tiles, the true nuclei, the predicted ones."""

    def coloured(mask: Tensor) -> Tensor:
        tint = torch.tensor([0.1, 0.75, 0.35])[:, None, None]
        return torch.where(mask.bool(), 0.45 * image + 0.55 * tint, image)

    panels = torch.cat([image, coloured(labels), coloured(found)], 2)
    picture = Image.fromarray((panels.permute(1, 2, 0) * 255).byte().numpy())
    pen = ImageDraw.Draw(picture)
    for panel in range(3):
        for box in layout.boxes:
            (top, bottom), (left, right) = ((i.start, i.stop) for i in box)
            shift = panel * layout.size[1]
            pen.rectangle((left + shift, top, right + shift - 1, bottom - 1), outline="white")
    picture.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--size", type=int, default=311, help="image height and width (any)")
    parser.add_argument("--batch", type=int, default=2, help="images a step")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--picture", type=Path, default=Path("nuclei.png"))
    options = parser.parse_args()

    torch.set_num_threads(1)
    comm = mpi4dl.init()
    grid = square_grid(comm.size)
    first = comm.rank == 0

    def say(text: str) -> None:
        if first:
            print(text, flush=True)

    torch.manual_seed(0)
    model = unet(num_classes=2, base=12, depth=3, norm="group")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    layout = Layout.grid((options.size, options.size), grid)
    say(
        f"{comm.size} processes, images {options.size}×{options.size} in "
        f"{grid[0]}×{grid[1]} tiles of {[b.shape for b in layout.boxes]}"
    )
    started = time.perf_counter()
    for step in range(options.steps):
        images, labels = batch(options.size, options.batch, step * options.batch)
        optimizer.zero_grad()
        logits = model(mpi4dl.shard(images, grid))  # the model knows nothing of tiles
        loss = F.cross_entropy(logits, labels, weight=torch.tensor([1.0, 2.0]))
        loss.backward()
        mpi4dl.sync_gradients(model)
        optimizer.step()
        if step % 5 == 0 or step == options.steps - 1:
            score = overlap(logits.detach(), mpi4dl.shard(labels, grid))
            seconds = time.perf_counter() - started
            say(f"step {step:3d}   loss {loss.item():.3f}   IoU {score:.3f}   {seconds:5.1f} s")

    images, labels = batch(options.size, 1, 10_000)
    model.eval()
    with torch.no_grad():
        logits = model(mpi4dl.shard(images, grid))
    score = overlap(logits, mpi4dl.shard(labels, grid))
    found = logits.argmax(1).full_tensor()
    say(f"an image never seen: IoU {score:.3f}")
    model.train()
    error = compare_with_one_process(model, images, labels)
    say(f"gradients against one process with the whole image (float64): {error:.1e} relative")
    if first:
        draw(options.picture, images[0], labels[0], found[0], layout)
    say(f"picture: {options.picture}")
    if not score > 0.5 or not error < 1e-11:
        raise SystemExit("this should not be: the network did not learn, or its gradients differ")


main()
