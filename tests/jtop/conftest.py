"""Where jtop's real service cannot be shown a simulated board is decided here, and the summary says why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from service import why_not

REASON = why_not()
PARTS = ["test_jtop.py", "test_source.py"]
collect_ignore = PARTS if REASON else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REASON:
        terminalreporter.write_line(f"left out: tests/jtop/{', '.join(PARTS)}: {REASON}")
