#!/usr/bin/env python3
"""The exchange and the convolution, found to be right and then measured; --help shows the flags."""

import sys

from mpi4dl.train import halo

sys.exit(halo("validate"))
