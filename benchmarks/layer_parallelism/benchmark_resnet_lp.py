#!/usr/bin/env python3
"""ResNet-110 in layer or pipeline parallelism; --help shows the flags."""

import sys

from mpi4dl.train import bench

sys.exit(bench("layer", "resnet"))
