"""Completion of the command in a shell, by shtab, which writes a script for it."""

from __future__ import annotations

import argparse

from ..errors import UsageError

SHELLS = ("bash", "zsh", "tcsh")


def completion(parser: argparse.ArgumentParser, shell: str) -> int:
    """Print it: `eval "$(mpi4dl completion bash)"`."""
    try:
        import shtab
    except ImportError:
        raise UsageError(
            "completion is written by shtab, which is not installed: pip install 'mpi4dl[commands]'"
        ) from None
    print(shtab.complete(parser, shell))
    return 0
