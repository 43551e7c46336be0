"""A plan on the CUDA executor and on the CPU's, side by side: `executor_checks.py PLAN FRAMES`. Prints a JSON object.

Started by test_executor.py with LD_LIBRARY_PATH set, in a process of its own: which libcuda.so.1 a process has is
decided once. A figure is the largest difference of an output in parts of its largest magnitude.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import numpy as np
from driver_calls import REAL

from orind.kernels.cpu.executor import CpuExecutor
from orind.kernels.cuda.device import Device
from orind.kernels.cuda.executor import CudaExecutor
from orind.kernels.ir.errors import ProgramError
from orind.kernels.ir.validate import programs_of
from orind.kernels.plan.file import PlanFile


def launches() -> dict[str, int]:
    """Counted by the virtual GPU; all 0 on another."""
    library = ctypes.CDLL("libcuda.so.1")
    if REAL:
        return {"graph_launches": 0, "single_launches": 0}
    library.virtual_gpu_counters.restype = ctypes.c_char_p
    counters = json.loads(library.virtual_gpu_counters())
    return {name: counters[name] for name in ("graph_launches", "single_launches")}


def compare(path: Path, frames: int) -> dict[str, object]:
    device = Device()
    told: dict[str, object] = {"device": device.name, "batches": {}}
    try:
        with PlanFile.open_path(path) as plan:
            for batch in sorted(programs_of(plan.metadata, plan.tensors)):
                try:
                    CudaExecutor(plan, batch, device=device, cpu_steps=False).close()
                    told["refused"] = ""
                except ProgramError as error:
                    told["refused"] = str(error)
                with (
                    CpuExecutor(plan, batch) as right,
                    CudaExecutor(plan, batch, device=device, cpu_steps=True) as cuda,
                ):
                    cuda.golden()
                    warm = launches()
                    channels = cuda.program.tensors[cuda.program.inputs[0]].channels()
                    same, worst = True, 0.0
                    draw = np.random.default_rng(batch)
                    for _ in range(frames):
                        values = np.zeros_like(right.input)  # pads stay 0
                        shape = (*values.shape[:3], len(channels))
                        codes = values.dtype != np.float32 and values.dtype != np.float16
                        values[..., channels] = draw.integers(0, 128, shape) if codes else draw.random(shape)
                        np.copyto(right.input, values)
                        np.copyto(cuda.input, values)
                        for want, got in zip(right.run(), cuda.run(), strict=True):
                            same = same and bool(np.array_equal(want, got))
                            worst = max(worst, float(np.abs(want - got).max() / np.abs(want).max()))
                        assert dict(right.overflows) == dict(cuda.overflows)
                    cuda.golden()
                    done = launches()
                    told["batches"][batch] = {  # type: ignore[index]
                        "steps": len(cuda.program.steps),
                        "cpu_steps": len(cuda.cpu_steps),
                        "segments": sum(segment.on_device for segment in cuda.segments),
                        "graph_launches": done["graph_launches"] - warm["graph_launches"],
                        "single_launches": done["single_launches"] - warm["single_launches"],
                        "runs": frames + 1,
                        "same": same,
                        "worst": worst,
                    }
    finally:
        device.close()
    return told


if __name__ == "__main__":
    print(json.dumps(compare(Path(sys.argv[1]), int(sys.argv[2]))))
