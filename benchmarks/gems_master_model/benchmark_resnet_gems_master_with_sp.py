#!/usr/bin/env python3
"""ResNet-110 in spatial parallelism in two directions, where one document has it; `--help` shows the flags."""

import sys

from mpi4dl.train import bench

sys.exit(bench("gems-spatial", "resnet"))
