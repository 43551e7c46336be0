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


def group(folder: Path, limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\nactive_file 7\n")


def test_a_limit_of_the_unit_or_of_a_slice_above_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, groups = tmp_path / "self", tmp_path / "cgroup"
    own.write_text("1:name=systemd:/x\n0::/orind.slice/orind.service\n")
    unit, above = groups / "orind.slice" / "orind.service", groups / "orind.slice"
    monkeypatch.setattr(meminfo, "OWN_GROUP", own)
    monkeypatch.setattr(meminfo, "GROUPS", groups)
    monkeypatch.setattr(meminfo, "read", lambda: meminfo.Memory(1 << 40, 1 << 39))
    assert meminfo.room() == 1 << 39, "there is no memory controller"
    group(unit, "max", 10, 0)
    group(above, "max", 10, 0)
    assert meminfo.room() == 1 << 39, "MemoryMax=infinity"
    group(unit, "3000", 2000, 300)
    assert meminfo.room() == 1300, "files that nobody uses can be taken back"
    group(above, "4000", 3500, 0)
    assert meminfo.room() == 500
    group(above, "400", 3500, 0)
    assert meminfo.room() == 0, "a limit that was lowered below what is held"
    own.write_text("4:memory:/system.slice\n")
    assert meminfo.room() == 1 << 39, "cgroup v1: nothing is known"
