"""A run: training as a configuration file says, and everything that is written down about it."""

from .fitting import Result, fit
from .reading import configuration, read
from .sections import Configuration

__all__ = ["Configuration", "Result", "configuration", "fit", "read"]
