#!/usr/bin/env python3
"""ResNet-110 in two directions (GEMS-MASTER); --help shows the flags."""

import sys

from mpi4dl.train import bench

sys.exit(bench("gems", "resnet"))
