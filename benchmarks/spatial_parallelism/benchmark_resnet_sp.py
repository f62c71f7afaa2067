#!/usr/bin/env python3
"""ResNet-110 in spatial parallelism, then layers or a pipeline; --help shows the flags."""

import sys

from mpi4dl.train import bench

sys.exit(bench("spatial", "resnet"))
