"""Images of any size, of which each rank reads only its own box.

    view = View(size=(4096, 4096), fit="pad", fill=255)
    dataset = image_folder("slides", view)
    loader = Loader(dataset, batch_size=2, workers=2, augment=[RandomFlip()])
    for images, labels in loader.epoch(0):
        trainer.step(images, labels)

file → RegionReader → Picture (a level, resized, cropped, turned …) → Selection (a batch) → Loader
"""

from .augment import Augmentation, ColourJitter, RandomCrop, RandomFlip, RandomRotate90
from .cifar import cifar
from .dataset import Dataset
from .files import FileDataset, Item
from .listings import image_folder, image_masks, slide_table
from .loader import Loader
from .opening import open_image
from .reader import Level, RegionReader, Tally
from .reading import Reading
from .selection import LazyArray
from .split import split
from .synthetic import Synthetic
from .view import View

__all__ = [
    "Augmentation",
    "ColourJitter",
    "Dataset",
    "FileDataset",
    "Item",
    "LazyArray",
    "Level",
    "Loader",
    "RandomCrop",
    "RandomFlip",
    "RandomRotate90",
    "Reading",
    "RegionReader",
    "Synthetic",
    "Tally",
    "View",
    "cifar",
    "image_folder",
    "image_masks",
    "open_image",
    "slide_table",
    "split",
]
