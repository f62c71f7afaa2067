#!/usr/bin/env python3
"""ResNet-110 with tiles, in two directions (GEMS-MASTER + SP); --help shows the flags."""

import sys

from mpi4dl.train import bench

sys.exit(bench("gems-spatial", "resnet"))
