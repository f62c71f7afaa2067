"""U-Net: a label for every pixel (or voxel)."""

from collections import OrderedDict
from typing import get_args

from torch import nn

from .unet_layers import CONV, Bottleneck, Decoder, Encoder, Norm, Upsampling


def unet(
    in_channels: int = 3,
    num_classes: int = 2,
    base: int = 32,
    depth: int = 4,
    dims: int = 2,
    norm: Norm = "batch",
    upsampling: Upsampling = "transposed",
) -> nn.Sequential:
    """U-Net: images ``(N, in_channels, [D,] H, W)`` to logits ``(N, num_classes, [D,] H, W)``.

    The ``2 * depth + 2`` layers are ``depth`` encoders, the bottleneck, ``depth`` decoders and
    the head. Between them travels the current tensor, followed by the skips not yet used, oldest
    first. The first level is ``base`` wide; each level below is twice as wide and half the size.
    Any image with at least ``2 ** depth`` pixels along each dimension will do; odd sizes are
    padded where encoder and decoder meet. (Instance normalization needs two pixels or more at the
    bottleneck.)

    ``dims`` is 2 or 3. ``norm`` is "batch", "instance", "group" or "none". ``upsampling`` is
    "transposed" (a convolution) or "interpolate" (linear, after a 1x1 convolution).
    """
    _check_choice("dims", dims, tuple(CONV))
    _check_choice("norm", norm, get_args(Norm))
    _check_choice("upsampling", upsampling, get_args(Upsampling))
    if depth < 1:
        raise ValueError(f"unet needs depth >= 1, not {depth}")

    widths = [base * 2**level for level in range(depth + 1)]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for level in range(depth):
        inputs = widths[level - 1] if level else in_channels
        layers[f"encoder{level + 1}"] = Encoder(dims, inputs, widths[level], norm)
    layers["bottleneck"] = Bottleneck(dims, widths[-2], widths[-1], norm)
    for level in reversed(range(depth)):
        layers[f"decoder{level + 1}"] = Decoder(
            dims, widths[level + 1], widths[level], norm, upsampling
        )
    layers["head"] = CONV[dims](base, num_classes, 1)
    return nn.Sequential(layers)


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"unet knows no {name}={value!r}; use one of {listed}")
