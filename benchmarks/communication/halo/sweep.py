#!/usr/bin/env python3
"""The halo exchange over image sizes, halo lengths and slice methods; --help shows the flags."""

import sys

from mpi4dl.train import halo

sys.exit(halo("sweep"))
