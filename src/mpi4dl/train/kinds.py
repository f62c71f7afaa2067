"""The four kinds of training that have a command, and the models that they train."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ..models import amoebanet_d, resnet_v2


@dataclass(frozen=True)
class Kind:
    name: str
    title: str
    spatial: bool
    """Whether the first stages cut their images."""
    schedule: str
    """If nothing is said."""


KINDS = {
    kind.name: kind
    for kind in (
        Kind("layer", "layer and pipeline parallelism", False, "gpipe"),
        Kind("spatial", "spatial parallelism, then layers or a pipeline", True, "gpipe"),
        Kind("gems", "two directions through the same ranks (GEMS-MASTER)", False, "gems"),
        Kind("gems-spatial", "spatial parallelism in two directions (GEMS + SP)", True, "gems"),
    )
}

RESNET_DEPTH = 110

MODELS: dict[str, Callable[[Namespace], nn.Sequential]] = {
    "amoebanet": lambda options: amoebanet_d(
        options.num_layers, options.num_filters, options.num_classes
    ),
    "resnet": lambda options: resnet_v2(RESNET_DEPTH, options.num_classes),
}

TITLES = {"amoebanet": "AmoebaNet-D", "resnet": f"ResNet-{RESNET_DEPTH} v2"}
