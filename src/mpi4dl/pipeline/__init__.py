"""Plans of who trains what, and models in stages.

`Plan` says it all before anything runs; `partition` cuts a model as a plan says.
"""

from .plan import Plan
from .settings import StageKind

__all__ = ["Plan", "StageKind"]
