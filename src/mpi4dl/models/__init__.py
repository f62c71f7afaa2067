"""Vision models as plain ``nn.Sequential``: any slice of one runs on its own.

``len(model)`` is the number of layers; layers pass one tensor or a tuple of tensors.
"""

from .amoebanet import amoebanet_d
from .catalogue import MODELS, build
from .resnet import resnet_v1, resnet_v2
from .resnet_imagenet import resnet18, resnet50, resnet101
from .unet import unet

__all__ = [
    "MODELS",
    "amoebanet_d",
    "build",
    "resnet18",
    "resnet50",
    "resnet101",
    "resnet_v1",
    "resnet_v2",
    "unet",
]
