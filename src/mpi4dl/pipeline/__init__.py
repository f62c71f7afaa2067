"""Plans of who trains what, and models in stages.

`Plan` says it all before anything runs; `partition` cuts a model as a plan says.
"""

from .balance import balanced, estimate
from .layers import layers_of
from .partition import partition
from .plan import Plan
from .settings import StageKind

__all__ = ["Plan", "StageKind", "balanced", "estimate", "layers_of", "partition"]
