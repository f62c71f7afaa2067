"""The halo exchange alone.

    python benchmarks/communication/halo/benchmark_sp_halo_exchange.py --image-size 1024

Every tile fetches its neighbours' pixels, and nothing is computed.
"""

from halo_benchmark import main
from halo_options import benchmark_parser
from halo_work import exchange

parser = benchmark_parser(__doc__)
parser.add_argument(
    "--backward", action="store_true", help="also the halo's gradients, on their way home"
)
parser.add_argument(
    "--with-tile",
    action="store_true",
    help="also the halo into one tensor with the tile, as FusedHalo holds it: a copy of the tile",
)
main(parser, exchange)
