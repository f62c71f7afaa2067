"""What halos cost, measured: the exchange alone, under a convolution, in a layer, over sizes."""

from .commands import HALO, halo, halo_flags

__all__ = ["HALO", "halo", "halo_flags"]
