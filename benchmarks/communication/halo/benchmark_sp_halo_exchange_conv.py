"""A convolution layer on tiles, as training calls it.

    python benchmarks/communication/halo/benchmark_sp_halo_exchange_conv.py --image-size 512

nn.Conv2d forward and backward, halos included, and sync_gradients.
"""

from halo_benchmark import main
from halo_options import FP16_GRADIENTS, benchmark_parser
from halo_work import layer

main(benchmark_parser(__doc__, FP16_GRADIENTS), layer)
