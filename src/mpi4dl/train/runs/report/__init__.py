"""`mpi4dl report`: a run as one page that needs nothing else, neither files nor a network."""

from .page import page, report

__all__ = ["page", "report"]
