"""The kernel's table of memory, and one that does not say what is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from orind.ipc import meminfo
from orind.ipc.errors import IpcError


def test_this_machine_and_a_written_table(tmp_path: Path) -> None:
    now = meminfo.read()
    assert 0 < now.available <= now.total and 0 <= now.used_percent < 100
    (tmp_path / "meminfo").write_text("MemTotal:       4000 kB\nMemFree: 5 kB\nMemAvailable:   1000 kB\nHugePages: 0\n")
    assert meminfo.read(tmp_path / "meminfo") == (4_096_000, 1_024_000)
    assert meminfo.read(tmp_path / "meminfo").used_percent == 75.0


def test_a_kernel_that_does_not_say_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       4000 kB\n")
    with pytest.raises(IpcError, match=r"3\.14"):
        meminfo.read(tmp_path / "meminfo")
