#!/usr/bin/env python3
"""AmoebaNet-D in spatial parallelism, then layers or a pipeline; --help shows the flags."""

import sys

from mpi4dl.train import bench

sys.exit(bench("spatial", "amoebanet"))
