"""The models of this benchmark, by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from mpi4dl.models import amoebanet_d, resnet18, resnet50, resnet_v2

MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: resnet18(num_classes=10),
    "resnet50": lambda: resnet50(num_classes=10),
    "resnet29": lambda: resnet_v2(29),
    "amoebanet": lambda: amoebanet_d(3, 48, num_classes=10),
}
