"""scripts/bench_failover in small: five faults of each class that a GPU has. It judges the account, no time."""

from __future__ import annotations

from pathlib import Path

import bench_failover
import pytest

CLASSES = ("cuda-address", "cuda-assert", "cuda-lost", "cuda-hang", "cuda-spawn")
FAULTS = "5"


@pytest.mark.virtual
def test_every_trigger_is_answered_once_whatever_befalls_the_gpu(
    pycuda_python: str,
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"LD_LIBRARY_PATH": library, "VIRTUAL_GPU_CONTROL": "", "ORIND_CACHE": tmp_path}.items():
        monkeypatch.setenv(name, str(value))  # which the bench sets for itself: put back afterwards
    code = bench_failover.main(["--faults", FAULTS, "--classes", ",".join(CLASSES)])
    said = capsys.readouterr()
    assert code == 0, said.err
    found = {row[0]: row for line in said.out.splitlines() if (row := line.split()) and row[0] in CLASSES}
    assert set(found) == set(CLASSES)
    assert all(row[1] == FAULTS and row[-2:] == ["0", "0"] for row in found.values()), "none lost, none twice"
