"""Which code a faulty kernel leaves, and that it is every later answer of its process, on any GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import build
import pytest
from fault_codes import BODIES

ILLEGAL_ADDRESS, ASSERT, MISALIGNED, LAUNCH_FAILED = 700, 710, 716, 719
CODES = {
    "store to an address that nobody has": ILLEGAL_ADDRESS,
    "load from an address that nobody has": ILLEGAL_ADDRESS,
    "misaligned load": MISALIGNED,
    "misaligned store": MISALIGNED,
    "store far outside of shared memory": ILLEGAL_ADDRESS,
    "trap": LAUNCH_FAILED,
    "assert": ASSERT,
}


@pytest.mark.parametrize("name", BODIES)
def test_a_fault_is_every_later_answer(library: Path, name: str) -> None:
    script = Path(__file__).with_name("fault_codes.py")
    command = [sys.executable, str(script), str(library / build.LIBRARY), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [int(code) for code in done.stdout.split()] == [CODES[name]] * 4
