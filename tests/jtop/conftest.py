"""Where jtop's real service cannot be shown a simulated board is decided here, and the summary says why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from service import why_not

REASON = why_not()
collect_ignore = ["test_jtop.py"] if REASON else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REASON:
        terminalreporter.write_line(f"left out: tests/jtop/test_jtop.py: {REASON}")
