"""The daemon with `engine.device: cuda` on the virtual GPU: real processes, real PyCUDA, frames over ZeroMQ.

Which libcuda.so.1 the engines have is decided by LD_LIBRARY_PATH, as on a board by the system's configuration.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import harness  # noqa: E402  from scripts/, which the line above makes importable

FRAMES = 12
ENGINE = {"device": "cuda", "cpu_steps": "allow", "batch_watchdog_ms": 25_000, "golden_timeout_ms": 60_000}
SLOW = {"deadline_ms": 60_000}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: Unix sockets below it have at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="orind-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def on_virtual_gpu(
    pycuda_python: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> pytest.MonkeyPatch:
    """Daemons started from here on find the virtual GPU, with a control file of this test's own."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("ORIND_CACHE", str(tmp_path / "cache"))
    (tmp_path / "control").touch()
    monkeypatch.setenv("VIRTUAL_GPU_CONTROL", str(tmp_path / "control"))
    return monkeypatch


def service(folder: Path, **engine: object) -> harness.Service:
    return harness.Service(
        folder,
        {
            "models": {"m": {"plan": str(harness.part_plan())}},
            "cameras": {"line1": {"model": "m", **SLOW}},
            "engine": engine,
            "stop": {"drain_timeout_s": 30},
        },
    )


def answers(daemon: harness.Service, count: int) -> list[tuple[str, object]]:
    """Outcome and objects of each frame, one after the other."""
    found = []
    with daemon.client() as camera:
        for picture in harness.part_pictures(count):
            camera.send(picture, "rgb8")
            [answer] = camera.wait_all(60)
            found.append((answer.outcome, answer.raw.get("objects")))
    return found


def test_detections_are_those_of_the_cpu_engine(folder: Path, on_virtual_gpu: pytest.MonkeyPatch) -> None:
    with service(folder / "cpu", device="cpu") as daemon:
        expected = answers(daemon, FRAMES)
    assert all(outcome == "ok" for outcome, _ in expected) and any(objects for _, objects in expected)
    with service(folder / "gpu", **ENGINE) as daemon:
        assert {engine["device"] for engine in daemon.status()["engines"]} == {"cuda"}
        assert answers(daemon, FRAMES) == expected
        assert daemon.stop() == 0
    assert "PyCUDA WARNING" not in daemon.log()


@pytest.mark.virtual
def test_a_poisoned_context_fails_over(folder: Path, tmp_path: Path, on_virtual_gpu: pytest.MonkeyPatch) -> None:
    with service(folder, **ENGINE) as daemon:
        daemon.wait_for(lambda s: s["state"] == "serving", "a ready standby")
        before = answers(daemon, 2)
        (tmp_path / "new").write_text(f"illegal_address graph=+1 pid={daemon.active_pid()} once\n")
        (tmp_path / "new").replace(tmp_path / "control")
        assert answers(daemon, 2) == before, "the standby answers what the broken engine had"
        status = daemon.status()
        assert status["failovers"] == 1
        assert "GPU fault" in status["failover"]["reason"] and "illegal" in status["failover"]["reason"]
        daemon.wait_for(lambda s: s["state"] == "serving", "a new standby")


def test_steps_without_a_kernel_are_refused_unless_allowed(folder: Path, on_virtual_gpu: pytest.MonkeyPatch) -> None:
    refusing = service(folder, **{**ENGINE, "cpu_steps": "refuse"}, restart_budget=1)
    refusing.start(state="failed")
    assert "no CUDA kernel yet" in refusing.log() and "cpu_steps: allow" in refusing.log()
    refusing.kill()
