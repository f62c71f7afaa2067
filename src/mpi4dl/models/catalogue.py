"""The models by name, for command lines and configuration files."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from torch import nn

from .amoebanet import amoebanet_d
from .resnet import resnet_v1, resnet_v2
from .resnet_imagenet import resnet18, resnet50, resnet101
from .unet import unet

MODELS: dict[str, Callable[..., nn.Sequential]] = {
    "amoebanet_d": amoebanet_d,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "resnet_v1": resnet_v1,
    "resnet_v2": resnet_v2,
    "unet": unet,
}


def build(name: str, **options: Any) -> nn.Sequential:
    """The model called ``name`` (a key of ``MODELS``), made with ``options``."""
    if name not in MODELS:
        close = get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"no model is called {name!r}; {hint}known: {', '.join(MODELS)}")
    return MODELS[name](**options)
