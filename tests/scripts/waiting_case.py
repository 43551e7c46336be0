"""A test that waits beside a process with a session of its own, as a daemon has: test_environment interrupts it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def service() -> Iterator[int]:
    with subprocess.Popen(["sleep", "100"], start_new_session=True) as process:
        yield process.pid
        process.kill()


def test_waits(service: int) -> None:
    part = Path(os.environ["WAITING"]).with_suffix(".part")
    part.write_text(f"{os.getpid()} {service}")
    part.rename(os.environ["WAITING"])
    time.sleep(100)
