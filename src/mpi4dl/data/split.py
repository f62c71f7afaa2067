"""Training and validation samples."""

from __future__ import annotations

import numpy as np

from ..errors import DataError
from .files import FileDataset


def split(
    dataset: FileDataset, validation: float = 0.2, seed: int = 0
) -> tuple[FileDataset, FileDataset]:
    """Training and validation samples, by chance from a seed.

    Of every class the same share, as far as groups allow that: samples of one group, such as a
    patient's, are never on both sides. Masks count as one class.
    """
    if not 0 < validation < 1:
        raise DataError(f"validation is {validation}; it must be between 0 and 1")
    groups: dict[str, list[int]] = {}
    for index, item in enumerate(dataset.items):
        groups.setdefault(item.group or f"sample {index}", []).append(index)
    strata: dict[int | None, list[list[int]]] = {}
    for members in groups.values():
        strata.setdefault(dataset.items[members[0]].label, []).append(members)
    random = np.random.default_rng(seed)
    held_out: set[int] = set()
    for stratum in strata.values():
        wanted = validation * sum(map(len, stratum))
        taken = 0
        for place in random.permutation(len(stratum)):
            if taken + len(stratum[place]) / 2 > wanted:
                break
            held_out.update(stratum[place])
            taken += len(stratum[place])
    rest = [i for i in range(len(dataset)) if i not in held_out]
    if not held_out or not rest:
        raise DataError(
            f"{len(dataset)} samples in {len(groups)} groups cannot be split with {validation} of "
            "them for validation: use more samples, or another share"
        )
    return dataset.subset(rest), dataset.subset(sorted(held_out))
