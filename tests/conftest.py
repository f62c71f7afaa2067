from __future__ import annotations

import pytest
import torch
from support.exactness import TALLY

torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLY.cases:
        terminalreporter.write_line(
            f"exactness: {TALLY.cases} cases against one process in float64, largest relative "
            f"error {TALLY.worst:.1e} ({TALLY.where})"
        )
