"""`python -m mpi4dl`: the command `mpi4dl`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
