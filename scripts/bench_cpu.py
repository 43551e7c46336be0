"""What a frame costs, against floors measured in the same run, turn by turn (scripts/bench_cpu).

1. The executor (and all of Model.run from an rgb8 picture) against ONNX Runtime FP32 with one thread, wall time.
2. CPU time of main and the active engine for a frame that only passes through (identity plan, encoding tensor), against
   a bare ROUTER loop that parses the same header, copies the pixels once, touches every page and sends the same reply.

Invariant: the figures are printed with their aims, never judged; it ends with 1 only if a frame was not answered `ok`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from built_plans import MODELS, ROOT, face_plan, part_pictures, part_plan
from figures import machine, spread
from numpy.typing import NDArray
from wire_cost import measure_wire

from orind.daemon.terminal import table
from orind.kernels.devices import CpuDevice
from orind.kernels.ir.program import programs_from_text
from orind.kernels.model import open_models
from orind.kernels.picture import Picture
from orind.kernels.plan.file import PlanFile
from orind.kernels.pre.preprocess import Preprocessor, input_table

# As in an engine process; set before NumPy is loaded, so by starting anew
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
EXECUTOR_AIM = 3.0
WARM_UP = 3
Array = NDArray[Any]


def main() -> int:
    options = _options()
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    print(machine(), flush=True)
    if options.only != "wire":
        print("\n".join(["", *measure_executors(options.repetitions), ""]), flush=True)
    if options.only == "executor":
        return 0
    with tempfile.TemporaryDirectory(prefix="orind-") as folder:
        lines, faults = measure_wire(Path(folder), options.rounds, options.frames)
    print("\n".join([*lines, ""]))
    for fault in faults:
        print(f"FAILED: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: scripts/bench_cpu --rounds 40",
    )
    parser.add_argument("--repetitions", type=int, default=60, help="turns of each executor (default 60)")
    parser.add_argument(
        "--rounds", type=int, default=40, help="turns of daemon and bare loop for each size (default 40)"
    )
    parser.add_argument(
        "--frames", type=int, default=60, help="frames in a turn (default 60: short, since the machine changes)"
    )
    parser.add_argument("--only", choices=("executor", "wire"), help="one of the two parts")
    options = parser.parse_args()
    if min(options.repetitions, options.rounds, options.frames) < 1:
        parser.error("--repetitions, --rounds and --frames must be at least 1")
    return options


# -- 1. executors ------------------------------------------------------------------------------------------------


@dataclass
class Contender:
    """One of our plans, or the floor (`run` returns ns of the executor and of the whole)."""

    name: str
    floor: str
    run: Callable[[], tuple[int, int]]
    executor_ns: list[int] = field(default_factory=list)
    whole_ns: list[int] = field(default_factory=list)

    def take_turn(self) -> None:
        executor_ns, whole_ns = self.run()
        self.executor_ns.append(executor_ns)
        self.whole_ns.append(whole_ns)


def measure_executors(repetitions: int) -> list[str]:
    """Every contender in turn, `repetitions` times."""
    part = part_pictures(1)[0]
    face = _photograph(ROOT / "configs" / "frames" / "astronaut.jpg")
    contenders = [
        _reference("part-inspect", part, part_plan("fp32")),
        _ours("part-inspect INT8", "part-inspect", part, part_plan("int8")),
        _ours("part-inspect FP32", "part-inspect", part, part_plan("fp32")),
        _reference("blazeface-back", face, face_plan("fp32")),
        _ours("blazeface-back FP32", "blazeface-back", face, face_plan("fp32")),
    ]
    for turn in range(repetitions + WARM_UP):
        for contender in contenders:
            contender.take_turn()
            if turn < WARM_UP:
                contender.executor_ns.clear()
                contender.whole_ns.clear()
    floors = {c.name: c for c in contenders if not c.floor}
    rows: list[list[str]] = []
    for contender in contenders:
        floor = floors[contender.floor or contender.name]
        executor = [a / b for a, b in zip(contender.executor_ns, floor.executor_ns, strict=True)]
        whole = [a / b for a, b in zip(contender.whole_ns, floor.executor_ns, strict=True)]
        name = contender.name if contender.floor else f"  ONNX Runtime FP32, 1 thread: {contender.name}"
        ratios = [spread(executor), spread(whole)] if contender.floor else ["1", ""]
        times = [f"{statistics.median(contender.executor_ns) / 1e6:.2f}"]
        times.append(f"{statistics.median(contender.whole_ns) / 1e6:.2f}" if contender.floor else "")
        rows.append([name, *times, *ratios])
    head = ["per frame, 1 thread", "executor ms", "whole ms", f"executor / ORT (aim {EXECUTOR_AIM:g})", "whole / ORT"]
    told = f"median (10th-90th percentile) of {repetitions} turns; whole: from an rgb8 picture to rows"
    return [*table(head, rows), told]


def _ours(name: str, floor: str, pixels: Array, plan: Path) -> Contender:
    (model,) = open_models([PlanFile.open_path(plan)], CpuDevice(), pixels.nbytes)
    rows = np.empty((model.interface.rows_max, model.interface.row_width), np.float32)
    picture = _picture(pixels)

    def run() -> tuple[int, int]:
        start_ns = time.monotonic_ns()
        (count,) = model.run([picture], [rows])
        end_ns = time.monotonic_ns()
        if not isinstance(count, int):
            raise SystemExit(f"{name}: {count.text}")
        return model.executed_ns - model.preprocessed_ns, end_ns - start_ns

    return Contender(name, floor, run)


def _reference(name: str, pixels: Array, plan: Path) -> Contender:
    """ONNX Runtime on the tensor that our FP32 plan's preprocessing makes of the same picture."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # what its optimiser thinks of the file is of no interest here
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(MODELS / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
    entry = session.get_inputs()[0]
    tensor = _preprocessed(plan, pixels)
    if list(entry.shape) != [1, *tensor.shape]:
        tensor = tensor.transpose(2, 0, 1)
    feed = {entry.name: np.ascontiguousarray(tensor[None])}

    def run() -> tuple[int, int]:
        start_ns = time.monotonic_ns()
        session.run(None, feed)
        took_ns = time.monotonic_ns() - start_ns
        return took_ns, took_ns

    return Contender(name, "", run)


def _preprocessed(plan: Path, pixels: Array) -> Array:
    """float32 (H, W, 3), as an FP32 plan's executor gets it."""
    with PlanFile.open_path(plan) as file:
        (model,) = open_models([file], CpuDevice(), pixels.nbytes)
        program = programs_from_text(file.metadata["program"])[1]
        entry = program.tensors[program.inputs[0]]
        assert model.spec.input is not None
        out = np.zeros(entry.shape[-3:], np.float32)
        Preprocessor(model.spec.input, entry.shape, input_table(model.spec.input, "float32")).run(_picture(pixels), out)
    return out[..., :3].copy()


def _picture(pixels: Array) -> Picture:
    height, width = pixels.shape[:2]
    return Picture("rgb8", width, height, 3 * width, pixels.reshape(-1))


def _photograph(path: Path) -> Array:
    from PIL import Image

    with Image.open(path) as image:
        return np.ascontiguousarray(image.convert("RGB"), np.uint8)


if __name__ == "__main__":
    sys.exit(main())
