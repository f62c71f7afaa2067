"""How the ResNets start."""

from torch import nn


def initialize_convolutions(model: nn.Module) -> None:
    """Draw convolution weights from He's normal distribution and set their biases to zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
