"""The halo exchange while the tile is convolved, beside the exchange and the convolution alone.

    python benchmarks/communication/halo/benchmark_sp_halo_exchange_with_compute.py --image-size 512

The convolution is that of nn.Conv2d on a tile: the halo is sent, the tile alone is convolved, and
what the halo adds is added when it is there.
"""

from halo_benchmark import main
from halo_options import benchmark_parser
from halo_work import compute

main(benchmark_parser(__doc__), compute)
