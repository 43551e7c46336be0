"""The CUDA executor, under unmodified PyCUDA on the virtual GPU, beside the CPU's, on shipped models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from driver_calls import REAL

from orind.kernels.build import build_plan
from orind.kernels.cpu.executor import GOLDEN_TOLERANCE_HALF
from orind.kernels.cuda.arena import buffers
from orind.kernels.cuda.residence import Region, blocks, segments
from orind.kernels.ir.program import Program, Tensor
from orind.kernels.ir.steps import Copy, MaxPool, Step, Upsample
from orind.kernels.spec import ModelSpec
from orind.kernels.spec_yaml import read_spec

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "kernels")]

import make_parts  # noqa: E402  from scripts/, which the line above makes importable
import models  # noqa: E402  from tests/kernels

RUNS = 3


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    make_parts.write_parts(8, 1, folder)
    return folder


def checked(plan: Path, python: str, library: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, str(HERE / "executor_checks.py"), str(plan), str(RUNS), *arguments],
        env=os.environ
        | {"LD_LIBRARY_PATH": str(library), "ORIND_CACHE": str(plan.parent), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def compared(plan: Path, python: str, library: Path) -> dict[str, Any]:
    done = checked(plan, python, library)
    assert done.returncode == 0, done.stderr
    if REAL:
        assert done.stderr == "", "a GPU takes its cubins"
    else:
        # it runs PTX only: the first cubin is refused, and no other is tried
        [refusal] = done.stderr.splitlines()
        assert refusal.startswith("virtual GPU: module refused") and "this is a cubin" in refusal
    return dict(json.loads(done.stdout))


def shipped(model: str, precision: str, pictures: Path, folder: Path) -> Path:
    folder_of_models, plan = ROOT / "configs" / "models", folder / "model.plan"
    spec = read_spec(folder_of_models / f"{model}.yaml")
    # minmax: no search for better scales, which these tests have no use for
    build_plan(folder_of_models / f"{model}.onnx", spec, [pictures], plan, precision, method="minmax", accept_loss=True)
    return plan


@pytest.mark.parametrize("model", ["part-inspect", "blazeface-back"])
@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_shipped_models(
    pycuda_python: str, library: Path, pictures: Path, tmp_path: Path, model: str, precision: str
) -> None:
    told = compared(shipped(model, precision, pictures, tmp_path), pycuda_python, library)
    assert REAL or "virtual" in told["device"]
    assert "have no CUDA kernel yet" in told["refused"] and "cpu_steps: allow" in told["refused"]
    sizes = list(read_spec(ROOT / "configs" / "models" / f"{model}.yaml").batch)
    assert list(told["needs"]) == ["weights", *(f"batch {n}" for n in sizes)]
    weights = told["needs"]["weights"]
    assert weights == told["weights_by_batch"][0] if len(sizes) == 1 else weights < 0.7 * sum(told["weights_by_batch"])
    for arena in ("shared", "separate"):
        assert [int(batch) for batch in told[arena]] == sizes
        for figures in told[arena].values():
            if not REAL:
                assert figures["graph_launches"] == figures["runs"] * figures["segments"] > 0
                assert figures["single_launches"] == 0
                # what moves between the sides, and in float16 one copy for the flags of all steps
                assert figures["copies"] == figures["runs"] * (figures["moved"] + (precision == "fp16"))
            assert figures["placed_segments"] == figures["segments"]
            # the detector's one upsampling is done by the convolution before it: the steps around it are one segment
            once = model == "part-inspect"
            assert figures["doubled"] == once
            assert figures["cpu_steps"] == figures["without_kernel"] - once < figures["steps"]
            assert figures["segments"] == figures["segments_of_convolutions"] - once
            if precision == "int8":
                assert figures["same"]
            else:
                assert figures["worst"] < GOLDEN_TOLERANCE_HALF  # every layer rounds, in another order of summing


@pytest.mark.virtual
def test_a_store_outside_its_tensor_is_caught_in_separate_allocations(
    pycuda_python: str, library: Path, pictures: Path, tmp_path: Path
) -> None:
    done = checked(shipped("part-inspect", "int8", pictures, tmp_path), pycuda_python, library, "planted")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    # in one arena the bytes belong to another tensor: only the golden data tell
    assert told["shared"].startswith("GoldenMismatch") and told["step"] in told["shared"]
    assert told["separate"].startswith("DeviceFault: GPU fault") and "illegal" in told["separate"]
    assert "past the end of allocation" in done.stderr and "conv_s8_" in done.stderr and "PTX line" in done.stderr


def test_the_first_step_that_overflows_is_named_for_each_frame_on_whichever_side_it_runs(
    pycuda_python: str, library: Path, tmp_path: Path
) -> None:
    net = models.Net((1, 2, 4, 4))
    big = net.op("Conv", net.input, net.constant(np.full((4, 2, 1, 1), 100, np.float32)), kernel_shape=[1, 1])
    bigger = net.op("Conv", big, net.constant(np.full((4, 1, 3, 3), 30, np.float32)), kernel_shape=[3, 3], group=4)
    net.channels[bigger] = 4
    onnx.save(net.model([(net.conv(bigger, 2, 1), (1, 2, 2, 2))]), tmp_path / "net.onnx")
    plan = tmp_path / "net.plan"
    build_plan(tmp_path / "net.onnx", ModelSpec.for_tensor("net", (1, 3)), [], plan, "fp16")
    done = checked(plan, pycuda_python, library, "overflows")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    # 2 overflows in the second step (depthwise, on the CPU), 400 in the first (on the GPU), 0.5 in none
    found = [[0, "Conv_1"], [1, "Conv_0"]]
    assert told["cuda"] == told["cpu"] == [found, [], found]


def test_a_plan_of_float32_is_refused(pycuda_python: str, library: Path, tmp_path: Path) -> None:
    plan = tmp_path / "model.plan"
    build_plan(ROOT / "configs" / "models" / "part-inspect.onnx", None, (), plan, "fp32")
    code = (
        "import sys; from pathlib import Path; from orind.kernels.cuda.device import Device\n"
        "from orind.kernels.cuda.executor import CudaExecutor; from orind.kernels.plan.file import PlanFile\n"
        "device = Device()\n"
        "try:\n    CudaExecutor.alone(PlanFile.open_path(Path(sys.argv[1])), device=device, cpu_steps=True)\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
        "device.close()\n"
    )
    environment = os.environ | {"LD_LIBRARY_PATH": str(library)}
    done = subprocess.run(
        [pycuda_python, "-c", code, plan], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("ProgramError device cuda: no step of this plan has a CUDA kernel")
    assert "--precision" in done.stdout and done.stderr == ""


# residence, which needs no GPU


def image(name: str, buffer: str, start: int, span: int, segments: tuple[tuple[int, int], ...] = ()) -> Tensor:
    return Tensor(
        name, "int8", "nhwc", (2, 3, span), {"b": 0, "c": 4096}.get(buffer, 8192), 512, pitch=48, start=start,
        span=span, segments=segments or ((0, span),), buffer=buffer,
    )


def pool(name: str, x: str, y: str) -> MaxPool:
    return MaxPool(name, x, y, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1))


def test_parts_of_a_concat_are_copied_from_where_they_were_written() -> None:
    tensors = {
        t.name: t
        for t in (
            image("x", "x", 0, 16), image("left", "b", 0, 16), image("right", "b", 16, 32),
            image("both", "b", 0, 48, ((0, 16), (16, 32))), image("y", "c", 0, 48),
        )
    }
    steps: tuple[Step, ...] = (
        pool("host", "x", "left"), Upsample("gpu", "x", "right", (1, 1)), pool("reader", "both", "y"),
        Upsample("end", "y", "y2", (1, 1)),
    )
    tensors["y2"] = image("y2", "d", 0, 48)
    program = Program(2, 16384, ("x",), ("y2",), tensors, steps)
    cut = segments(program, lambda step: isinstance(step, Upsample))
    assert [(s.on_device, s.first, s.end) for s in cut] == [(False, 0, 1), (True, 1, 2), (False, 2, 3), (True, 3, 4)]
    assert cut[1].uploads == [Region("x", 0, 16)]
    assert cut[1].downloads == [Region("right", 16, 48)]  # the host wrote the left part itself
    assert cut[3].uploads == [Region("y", 0, 48)] and cut[3].downloads == [Region("y2", 0, 48)]
    assert [(b.offset, b.width, b.height, b.pitch) for b in blocks(Region("right", 16, 48), program)] == [
        (16, 32, 6, 48),
        (512 + 16, 32, 6, 48),
    ]


def test_a_copy_writes_the_segments_of_its_runs_only() -> None:
    tensors = {
        t.name: t
        for t in (image("x", "x", 0, 16), image("both", "b", 0, 48, ((0, 16), (16, 32))), image("y", "c", 0, 48))
    }
    steps: tuple[Step, ...] = (
        Upsample("gpu", "x", "both", (1, 1)),
        Copy("host", "x", "both", ((0, 16, 16),)),
        pool("reader", "both", "y"),
    )
    program = Program(1, 16384, ("x",), ("y",), tensors, steps)
    cut = segments(program, lambda step: isinstance(step, Upsample))
    # the device wrote all of it, the host then a part: all comes to the host before that
    assert cut[0].downloads == [Region("both", 0, 48)]
    other = segments(program, lambda step: not isinstance(step, Upsample))
    assert other[1].uploads == [Region("x", 0, 16), Region("both", 0, 48)] and other[1].downloads == [
        Region("y", 0, 48)
    ]


def test_an_allocation_of_its_own_ends_with_the_last_frames_last_pixel() -> None:
    tensors = (
        image("x", "x", 0, 48),
        image("left", "b", 0, 16),
        image("right", "b", 16, 32),
        Tensor("flat", "float32", "flat", (1, 5), 4096, 64, buffer="c"),
    )
    program = Program(3, 16384, ("x",), ("flat",), {t.name: t for t in tensors}, ())
    # three frames 512 bytes apart, 2 x 3 pixels of 48 channels each; 64 apart, 20 bytes each
    assert buffers(program) == {8192: 1024 + 288, 0: 1024 + 288, 4096: 128 + 20}
