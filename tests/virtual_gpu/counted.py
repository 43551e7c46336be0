"""Convolutions to compare the counters of the virtual GPU with those of NVIDIA's profiler: `counted.py LIBRARY CACHE`.

Launches each of CASES once and prints a JSON list, an object a case: its name and, on the virtual GPU, what it counted.
scripts/measure_gpu starts it on the virtual GPU, then under `ncu` on the real one; METRICS says which is which.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import convolution_cases as cases
from convolution_cases import Bench, Shape
from driver_calls import Cuda

from orind.kernels.cuda.convolution import TILES, Kernel

METRICS: dict[str, tuple[str, Callable[[dict[str, int]], int]]] = {
    "sectors read from global memory": (
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        lambda c: c["global_load_sectors"] + c["async_copy_sectors"],  # the profiler counts cp.async among the loads
    ),
    "sectors written": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", lambda c: c["global_store_sectors"]),
    "wavefronts of shared loads": (
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
        lambda c: c["shared_load_wavefronts"],
    ),
    "of these bank conflicts": (
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
        lambda c: c["shared_load_wavefronts"] - c["shared_load_least"],
    ),
}
"""What is counted: the metric of ncu, and how the virtual GPU's counters give it."""

CASES = [
    (Kernel(TILES[0]), Shape(1, 32, 32, 64, 128)),
    (Kernel(TILES[2]), Shape(1, 28, 28, 64, 64)),
    (Kernel(TILES[2], ending="table_residual"), Shape(1, 28, 28, 64, 64)),
    (Kernel(TILES[4]), Shape(1, 40, 40, 32, 32)),
    (Kernel(TILES[6], windowed=False), Shape(1, 20, 20, 256, 64, (1, 1), pads=cases.NONE)),
    (Kernel(TILES[2], split=True), Shape(1, 14, 14, 128, 64)),
    (Kernel(TILES[1], "f16", "half"), Shape(1, 28, 28, 64, 64)),
    (Kernel(TILES[7], "f16", "half"), Shape(1, 28, 28, 128, 128, x_slack=32, y_slack=32)),
]


def main(library: str, cache: str) -> None:
    os.environ["VIRTUAL_GPU_COUNT"] = "1"
    cuda = Cuda(Path(library)).initialise()
    cuda.create_context()
    bench = Bench(cuda, Path(cache))
    told = []
    before: dict[str, int] = {}
    for number, (kernel, shape) in enumerate(CASES):
        given = cases.numbers(shape, kernel, number)
        found = bench.run(shape, kernel, given, cases.splits_of(shape, kernel))
        assert kernel.type == "f16" or (found == cases.answer(shape, kernel, given)).all()
        counted = {}
        if cuda.virtual:
            counters = cuda.counters()["counters"]
            new = {key: value - before.get(key, 0) for key, value in counters.items() if isinstance(value, int)}
            counted = {name: count(new) for name, (_, count) in METRICS.items()}
            before = counters
        told.append({"kernel": kernel.name, "shape": str(shape), **counted})
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
