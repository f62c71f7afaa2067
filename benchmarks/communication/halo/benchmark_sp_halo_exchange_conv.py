#!/usr/bin/env python3
"""A convolution layer on tiles, as training calls it; --help shows the flags."""

import sys

from mpi4dl.train import halo

sys.exit(halo("conv"))
