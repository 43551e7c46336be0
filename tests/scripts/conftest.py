"""Lets the tests of this folder import scripts and helpers by name; puts back the signal handlers of scripts/hil."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "scripts")]

import hil  # noqa: E402  from scripts/, which the line above makes importable


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """hil sets handlers of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *hil.ENDS)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
