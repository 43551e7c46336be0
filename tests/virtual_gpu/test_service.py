"""The daemon with `engine.device: cuda` on the virtual GPU: real processes, real PyCUDA, frames over ZeroMQ.

Which libcuda.so.1 the engines have is decided by LD_LIBRARY_PATH, as on a board by the system's configuration.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driver_calls import REAL

from orind.kernels.build import build_plan
from orind.kernels.spec import DecoderSpec, ModelSpec
from orind.kernels.spec_yaml import read_spec

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import built_plans  # noqa: E402  from scripts/, which the line above makes importable
import harness  # noqa: E402  from scripts/, which the line above makes importable

FRAMES = 12
ENGINE = {"device": "cuda", "cpu_steps": "allow", "batch_watchdog_ms": 25_000, "golden_timeout_ms": 60_000}
SLOW = {"deadline_ms": 60_000}
PHOTOGRAPHS = sorted((ROOT / "configs" / "frames").glob("*.jpg"))


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
    """Daemons started from here on find the virtual GPU, with files of this test's own for control and counters."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("ORIND_CACHE", str(tmp_path / "cache"))
    (tmp_path / "control").touch()
    monkeypatch.setenv("VIRTUAL_GPU_CONTROL", str(tmp_path / "control"))
    monkeypatch.setenv("VIRTUAL_GPU_COUNTERS", str(tmp_path / "counters.%p"))
    return monkeypatch


def service(
    folder: Path, plans: Mapping[str, Path] | None = None, standby: Mapping[str, str] | None = None, **engine: object
) -> harness.Service:
    """A daemon with a camera for each plan, of the plan's name; the part detector's camera is `line1`."""
    plans = plans or {"line1": built_plans.part_plan()}
    return harness.Service(
        folder,
        {
            "models": {name: {"plan": str(plan)} for name, plan in plans.items()},
            "cameras": {name: {"model": name, **SLOW} for name in plans},
            "engine": engine,
            "standby": dict(standby or {}),
            "decode": {"workers": 1},
            "stop": {"drain_timeout_s": 30},
        },
    )


def answers(
    daemon: harness.Service, frames: Sequence[Any], encoding: str = "rgb8", camera: str = "line1"
) -> list[tuple[object, ...]]:
    """Outcome, objects and the bits of the tensor of each frame, one after the other."""
    found: list[tuple[object, ...]] = []
    with daemon.client(camera) as client:
        for frame in frames:
            client.send(frame, encoding)
            [answer] = client.wait_all(60)
            bits = None if answer.tensor is None else answer.tensor.tobytes()
            found.append((answer.outcome, answer.raw.get("objects"), bits))
    return found


class Counters:
    """The launches of one engine, from the file that the virtual GPU writes for each process."""

    def __init__(self, folder: Path, pid: int) -> None:
        self._folder, self._pid, self._asked = folder, pid, 0
        self.begin = self._read()

    def since(self, name: str) -> int:
        """How many more there are now."""
        return int(self._read()[name]) - int(self.begin[name])

    def _read(self) -> dict[str, Any]:
        self._asked += 1
        path = self._folder / f"counters.{self._pid}"
        path.unlink(missing_ok=True)
        (self._folder / "new").write_text(f"write_counters id={self._asked} pid={self._pid}\n")
        (self._folder / "new").replace(self._folder / "control")
        end = time.monotonic() + 20
        while not path.exists():
            assert time.monotonic() < end, "the engine's virtual GPU writes no counters"
            time.sleep(0.005)
        return dict(json.loads(path.read_text()))


def check_launches(counters: Counters, frames: int, segments: int, capsys: pytest.CaptureFixture[str]) -> None:
    """`segments` graph launches a frame, and nothing launched by itself since the engine was warm."""
    graphs, single = counters.since("graph_launches"), counters.since("single_launches")
    with capsys.disabled():
        print(f"\ngraph launches {graphs} = {frames} frames x {segments} GPU segments; single launches {single}")
    assert graphs == frames * segments > 0 and single == 0


def placement_of(daemon: harness.Service, model: str) -> dict[str, Any]:
    """What the status says of a model's steps, which is checked for itself."""
    told: dict[str, Any] = daemon.status()["models"][model]["placement"]
    assert 0 < told["cpu_steps"] < told["steps"]
    assert sum(entry["count"] for entry in told["on_cpu"].values()) == told["cpu_steps"]
    assert all(entry["count"] == len(entry["names"]) for entry in told["on_cpu"].values()), "all have room"
    said = f"model {model}: {told['cpu_steps']} of {told['steps']} steps run on the CPU"
    assert daemon.log().count(said) == 2, "once an engine"
    return told


def test_detections_are_those_of_the_cpu_engine(
    folder: Path, tmp_path: Path, on_virtual_gpu: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = built_plans.part_pictures(FRAMES)
    with service(folder / "cpu", device="cpu") as daemon:
        assert daemon.status()["models"]["line1"]["placement"] is None
        expected = answers(daemon, pictures)
    assert all(outcome == "ok" for outcome, *_ in expected) and any(objects for _, objects, _ in expected)
    with service(folder / "gpu", **ENGINE) as daemon:
        assert {engine["device"] for engine in daemon.status()["engines"]} == {"cuda"}
        names = {engine["device_name"] for engine in daemon.status()["engines"]}
        assert len(names) == 1 and (REAL or names == {"Orin (virtual GPU)"})
        memory = daemon.status()["engines"][0]["memory"]
        assert memory["what"] == "one allocation on the GPU" and memory["emergencies"] == 0 < memory["device_free"]
        assert memory["free"] == 0, "it was made for what lies in it"
        assert {owner.partition(": ")[2] for _, _, owner, _ in memory["blocks"]} >= {"weights", "batch 1"}
        segments = placement_of(daemon, "line1")["gpu_segments"]
        counters = None if REAL else Counters(tmp_path, daemon.active_pid())
        assert answers(daemon, pictures) == expected
        if counters is not None:
            check_launches(counters, FRAMES, segments, capsys)
        assert daemon.stop() == 0
    assert "PyCUDA WARNING" not in daemon.log()
    taken = "INFO device cuda: Orin (virtual GPU) takes no cubins: its driver compiles the kernels' PTX"
    assert REAL or daemon.log().splitlines().count(taken) == 2, "once an engine"


def face_plan(spec: ModelSpec, out: Path) -> Path:
    """BlazeFace in INT8, calibrated on the photographs. Its loss is known (README) and not what is tested."""
    onnx_path = ROOT / "configs" / "models" / "blazeface-back.onnx"
    build_plan(onnx_path, spec, PHOTOGRAPHS, out, "int8", method="minmax", accept_loss=True)
    return out


def test_heads_and_detections_of_photographs_are_those_of_the_cpu_engine(
    folder: Path, tmp_path: Path, on_virtual_gpu: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = read_spec(ROOT / "configs" / "models" / "blazeface-back.yaml")
    outputs = replace(spec, task="regress", labels=(), decoder=DecoderSpec())
    plans = {"faces": face_plan(spec, tmp_path / "faces.plan"), "heads": face_plan(outputs, tmp_path / "heads.plan")}
    photographs = [path.read_bytes() for path in PHOTOGRAPHS]

    def both(daemon: harness.Service) -> list[list[tuple[object, ...]]]:
        return [answers(daemon, photographs, "jpeg", model) for model in plans]

    with service(folder / "cpu", plans, device="cpu") as daemon:
        expected = both(daemon)
    faces, heads = expected
    assert all(outcome == "ok" for outcome, *_ in (*faces, *heads))
    assert sum(len(objects) for _, objects, _ in faces) >= 3, "the astronaut, once alone and once as a pair"  # type: ignore[arg-type]
    assert all(len(bits) == 4 * 896 * 17 for _, _, bits in heads)  # type: ignore[arg-type]
    with service(folder / "gpu", plans, **ENGINE) as daemon:
        segments = {placement_of(daemon, model)["gpu_segments"] for model in plans}
        assert len(segments) == 1, "one network"
        counters = None if REAL else Counters(tmp_path, daemon.active_pid())
        assert both(daemon) == expected
        if counters is not None:
            check_launches(counters, 2 * len(photographs), segments.pop(), capsys)
        assert daemon.stop() == 0


@pytest.mark.virtual
def test_a_poisoned_context_fails_over(folder: Path, tmp_path: Path, on_virtual_gpu: pytest.MonkeyPatch) -> None:
    with service(folder, **ENGINE) as daemon:
        daemon.wait_for(lambda s: s["state"] == "serving", "a ready standby")
        before = answers(daemon, built_plans.part_pictures(2))
        (tmp_path / "new").write_text(f"illegal_address graph=+1 pid={daemon.active_pid()} once\n")
        (tmp_path / "new").replace(tmp_path / "control")
        assert answers(daemon, built_plans.part_pictures(2)) == before, "the standby answers what the broken engine had"
        status = daemon.status()
        assert status["failovers"] == 1
        assert "GPU fault" in status["failover"]["reason"] and "illegal" in status["failover"]["reason"]
        daemon.wait_for(lambda s: s["state"] == "serving", "a new standby")
        assert "PyCUDA ERROR" not in daemon.log(), "an engine that ends by itself pops its context"


def test_steps_without_a_kernel_are_refused_unless_allowed(folder: Path, on_virtual_gpu: pytest.MonkeyPatch) -> None:
    refusing = service(folder, **{**ENGINE, "cpu_steps": "refuse"})
    ended = refusing.orind("serve", str(refusing.config_path))
    assert ended.returncode == 78, "before an engine is started for it"
    assert "no CUDA kernel yet" in ended.stderr and "engine.cpu_steps: allow" in ended.stderr


@pytest.mark.virtual
def test_the_cpu_is_the_last_resort_where_it_was_asked_for_and_says_so(
    folder: Path, tmp_path: Path, on_virtual_gpu: pytest.MonkeyPatch
) -> None:
    wanted = {**ENGINE, "restart_budget": 5}  # with fewer, the frame that both engines died with costs its camera
    with service(folder, standby={"last_resort": "cpu"}, **wanted) as daemon:
        daemon.wait_for(lambda s: s["state"] == "serving", "a ready standby")
        pictures = built_plans.part_pictures(2)
        before = answers(daemon, pictures)
        (tmp_path / "new").write_text("device_lost\n")
        (tmp_path / "new").replace(tmp_path / "control")
        degraded = [("degraded", *what) for _, *what in before]
        assert answers(daemon, pictures) == degraded, "bit for bit what the GPU said, and marked"
        status = daemon.wait_for(lambda s: any("no standby any more" in r for r in s["health"]["reasons"]), "the end")
        assert status["health"]["ok"] and status["state"] == "degraded"
        assert any("the CPU serves as last resort" in reason for reason in status["health"]["reasons"])
        assert [(e["device"], e["role"]) for e in status["engines"]] == [("cpu", "active")]
        assert answers(daemon, pictures) == degraded
        assert daemon.stop() == 0


def test_a_gpu_that_is_not_there_is_an_error_that_counts_those_that_are(
    folder: Path, on_virtual_gpu: pytest.MonkeyPatch
) -> None:
    daemon = service(folder, standby={"device": "cuda:7"}, **ENGINE, restart_budget=0)
    daemon.start(state="degraded")
    try:
        status = daemon.wait_for(lambda s: bool(s["losses"]), "the loss of the second engine")
        assert status["losses"] == {"reported": 1} and status["state"] == "degraded"
        assert "cannot start: device cuda:7: there " in daemon.log() and ", from 0" in daemon.log()
        assert {outcome for outcome, *_ in answers(daemon, built_plans.part_pictures(1))} == {"ok"}
    finally:
        daemon.stop()
