"""The networks here import torchvision, or are in it."""

from __future__ import annotations

from support.torchvision_operators import declare_missing_operators

declare_missing_operators()
