"""Will it fit, how fast, which layout: plans judged before anything is trained."""

from .planning import plan

__all__ = ["plan"]
