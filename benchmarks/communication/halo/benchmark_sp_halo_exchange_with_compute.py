#!/usr/bin/env python3
"""The halo exchange while the tile is convolved; --help shows the flags."""

import sys

from mpi4dl.train import halo

sys.exit(halo("compute"))
