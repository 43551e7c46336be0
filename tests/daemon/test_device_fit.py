"""`engine.device: cuda` in the checker: what no engine could run is refused before one is started, without a GPU."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import models
import onnx
import pytest

from orind.daemon import cli
from orind.daemon.checker import check
from orind.kernels.build import build_plan
from orind.kernels.cuda import nvrtc
from orind.kernels.cuda.device import Device
from orind.kernels.ir.errors import ProgramError

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def half_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float16 convolution between a step that converts and one that flattens: 1 of 3 has a CUDA kernel."""
    folder = tmp_path_factory.mktemp("half")
    net = models.Net((1, 16, 8, 8), seed=1)
    onnx.save(net.model([(net.conv("images", 16), (1, 16, 8, 8))]), str(folder / "half.onnx"))
    return build_plan(folder / "half.onnx", None, [], folder / "half.plan", "fp16").path


@pytest.fixture
def pycuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyCUDA can be imported; nothing of it is called."""
    monkeypatch.setitem(sys.modules, "pycuda.driver", ModuleType("pycuda.driver"))


def write(folder: Path, plan: Path, engine: str) -> Path:
    path = folder / "orind.yaml"
    path.write_text(
        f"models: {{m: {{plan: '{plan}'}}}}\ncameras: {{cam: {{model: m, deadline_ms: 100}}}}\n"
        f"sources: [{{name: in, endpoint: 'ipc:///run/orind/in'}}]\nengine: {{{engine}}}\n"
    )
    return path


@pytest.mark.usefixtures("pycuda")
def test_steps_without_a_kernel_are_refused_unless_the_cpu_may_run_them(tmp_path: Path, half_plan: Path) -> None:
    path = write(tmp_path, half_plan, "device: cuda")
    assert check(path).problems == [
        f"{path}:1: models.m.plan: {half_plan}: 2 of 3 steps have no CUDA kernel yet (Cast, Transpose to NCHW): "
        "engine.cpu_steps: allow runs these on the CPU"
    ]
    for engine in ("device: cuda, cpu_steps: allow", "device: cpu"):
        checked = check(write(tmp_path, half_plan, engine))
        assert checked.problems == []
        checked.close()


@pytest.mark.usefixtures("pycuda")
def test_a_plan_without_any_kernel_is_refused_whatever_the_cpu_may(
    tmp_path: Path, identity_plan: Path, no_fd_leak: None
) -> None:
    for engine in ("device: cuda", "device: cuda, cpu_steps: allow"):
        [said] = check(write(tmp_path, identity_plan, engine)).problems
        assert f"models.m.plan: {identity_plan}: no step of this plan has a CUDA kernel (" in said
        assert said.endswith("build it with --precision mixed, int8 or fp16, or set engine.device to cpu")


def test_pycuda_that_cannot_be_imported_is_said_with_the_remedy(
    tmp_path: Path, half_plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    path = write(tmp_path, half_plan, "device: cuda")
    assert cli.main(["check", str(path)]) == 78
    said = capsys.readouterr()
    assert said.out == "" and "fit to serve" not in said.err
    plan, library = said.err.splitlines()
    assert "2 of 3 steps" in plan, "both are told at once"
    assert library.startswith(f"{path}:4: engine.device: PyCUDA cannot be imported (")
    assert "scripts/build_pycuda installs it, a driver brings libcuda.so.1; or set it to cpu" in library
    assert cli.main(["check", str(write(tmp_path, half_plan, "device: cpu"))]) == 0, "nobody asked for it"


def test_a_pycuda_that_breaks_while_it_is_imported_is_said_in_one_line(
    tmp_path: Path, half_plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was built for another NumPy does."""
    (tmp_path / "pycuda").mkdir()
    (tmp_path / "pycuda" / "__init__.py").touch()
    (tmp_path / "pycuda" / "driver.py").write_text("raise RuntimeError('compiled against API 0x10,\\nthis is 0xf')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("pycuda", "pycuda.driver"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    [said] = check(write(tmp_path, half_plan, "device: cuda, cpu_steps: allow")).problems
    why = "PyCUDA cannot be imported (RuntimeError: compiled against API 0x10, this is 0xf); scripts/build_pycuda"
    assert f"engine.device: {why}" in said
    with pytest.raises(ProgramError, match=re.escape(f"device cuda: {why}")):
        Device()
    sys.modules.pop("pycuda")


@pytest.mark.usefixtures("pycuda")
def test_without_nvrtc_no_configuration_of_a_gpu_is_fit(
    tmp_path: Path, half_plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "candidates", lambda: [Path("/nowhere/libnvrtc.so.12")])
    nvrtc.load.cache_clear()
    path = write(tmp_path, half_plan, "device: cuda, cpu_steps: allow")
    [said] = check(path).problems
    assert said.startswith(f"{path}:4: engine.device: NVRTC is not installed: pip install 'orind[cuda]' (")
    assert said.endswith("looked in /nowhere; or set it to cpu")
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    assert len(check(path).problems) == 2, "both are told at once"
    checked = check(write(tmp_path, half_plan, "device: cpu"))
    assert checked.problems == []
    checked.close()
