"""Plans of who trains what, models in stages, and the training of them.

`Plan` says it all before anything runs; `partition` cuts a model as a plan says; `Trainer` trains.
"""

from .balance import balanced, estimate
from .layers import layers_of
from .partition import partition
from .plan import Plan
from .settings import StageKind
from .trainer import Trainer

__all__ = ["Plan", "StageKind", "Trainer", "balanced", "estimate", "layers_of", "partition"]
