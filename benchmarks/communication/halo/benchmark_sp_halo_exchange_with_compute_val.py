"""The same as benchmark_sp_halo_exchange_with_compute.py, once the results are found to be right.

    python benchmarks/communication/halo/benchmark_sp_halo_exchange_with_compute_val.py

Every rank compares the pixels that it received with those of the image, bit for bit; rank 0
convolves the whole image alone, in float64, and compares what all ranks computed. If anything
differs, the exit code is 1 and nothing is measured.
"""

from halo_benchmark import main
from halo_options import benchmark_parser
from halo_validation import validate
from halo_work import compute

main(benchmark_parser(__doc__), compute, validate)
