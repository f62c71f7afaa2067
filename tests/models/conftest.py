from collections.abc import Callable

import pytest
import torch
from torch import nn


@pytest.fixture
def count() -> Callable[..., int]:
    """Parameters of a model, made on the meta device so that large ones cost nothing."""

    def parameters(make: Callable[..., nn.Module], **options: object) -> int:
        with torch.device("meta"):
            model = make(**options)
        return sum(parameter.numel() for parameter in model.parameters())

    return parameters
