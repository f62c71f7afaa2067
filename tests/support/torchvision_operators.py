"""Lets torchvision be imported beside a CPU build of torch that its compiled operators lack.

Only their registration is missing; the networks in it (and in timm and segmentation-models, which
import it) are plain Python. A matter of these tests; the library needs none of these packages.
"""

from __future__ import annotations

import torch


def declare_missing_operators() -> None:
    schemas = {
        "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    }
    missing = [name for name in schemas if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "DEF")
        for name in missing:
            library.define(schemas[name])
        globals()["_library"] = library  # the registration lives as long as this object
