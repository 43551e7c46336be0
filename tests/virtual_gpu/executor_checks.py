"""A plan on the CUDA executor and on the CPU's, side by side, as an engine opens it and in separate allocations:
`executor_checks.py PLAN FRAMES [planted|overflows]`. Prints a JSON object.

Started by test_executor.py with LD_LIBRARY_PATH set, in a process of its own: which libcuda.so.1 a process has is
decided once. A figure is the largest difference of an output in parts of its largest magnitude. `planted`: the first
step that has a buffer of its own stores one unit of channels too far. `overflows`: what the executors say of frames
that are filled with OVERFLOWING, and, afterwards, of good ones.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from driver_calls import REAL

from orind.kernels.cpu.executor import CpuExecutor
from orind.kernels.cuda import launching as under_test
from orind.kernels.cuda.assignment import Convolution, assign
from orind.kernels.cuda.convolution import Arguments, Array, Packed
from orind.kernels.cuda.device import Device
from orind.kernels.cuda.executor import CudaExecutor
from orind.kernels.cuda.launches import Launch, launch_of
from orind.kernels.cuda.memory import DeviceReservation
from orind.kernels.cuda.prepared import WEIGHTS, PreparedPlan
from orind.kernels.cuda.residence import blocks, segments
from orind.kernels.ir.errors import DeviceFault, GoldenMismatch, ProgramError
from orind.kernels.ir.program import UNIT, Program
from orind.kernels.ir.steps import Upsample
from orind.kernels.ir.validate import programs_of
from orind.kernels.memory.pool import size_for
from orind.kernels.plan.file import PlanFile

OVERFLOWING = (2.0, 400.0, 0.5)
COUNTED = ("graph_launches", "single_launches", "copies")


def counters() -> dict[str, int]:
    """Of the virtual GPU; all 0 on another."""
    if REAL:
        return dict.fromkeys(COUNTED, 0)
    library = ctypes.CDLL("libcuda.so.1")
    library.virtual_gpu_counters.restype = ctypes.c_char_p
    found = json.loads(library.virtual_gpu_counters())
    return {name: found[name] for name in COUNTED}


def compare(path: Path, frames: int) -> dict[str, object]:
    device = Device()
    told: dict[str, Any] = {"device": device.name}
    try:
        with PlanFile.open_path(path) as plan:
            batches = sorted(programs_of(plan.metadata, plan.tensors))
            told["refused"] = refusal(plan, batches[0], device)
            with as_engine(plan, device) as (executors, told["needs"], told["weights_by_batch"]):
                told["shared"] = {batch: figures(plan, executors[batch], frames) for batch in batches}
            told["separate"] = {}
            for batch in batches:
                cuda = CudaExecutor.alone(plan, batch, device=device, cpu_steps=True, separate=True)
                told["separate"][batch] = figures(plan, cuda, frames)
                cuda.close()
    finally:
        device.close()
    return told


@contextmanager
def as_engine(plan: PlanFile, device: Device) -> Iterator[tuple[dict[int, CudaExecutor], dict[str, int], list[int]]]:
    """The executors of all batch sizes in one reservation, what they need, and the bytes of each one's weights."""
    programs = programs_of(plan.metadata, plan.tensors)
    prepared = PreparedPlan(plan, programs, device, True)
    memory = DeviceReservation(device, size_for(list(prepared.needs.values())), 0)
    executors, _ = prepared.open(memory, "plan")
    needs = prepared.needs
    del prepared
    gc.collect()
    assert not any(isinstance(held, Packed) for held in gc.get_objects()), "weights are on the device only"
    by_itself = [PreparedPlan(plan, {n: programs[n]}, device, True).needs[WEIGHTS] for n in sorted(programs)]
    yield executors, needs, by_itself
    for cuda in executors.values():
        cuda.close()
    memory.close()


def refusal(plan: PlanFile, batch: int, device: Device) -> str:
    try:
        CudaExecutor.alone(plan, batch, device=device, cpu_steps=False).close()
    except ProgramError as error:
        return str(error)
    return ""


def figures(plan: PlanFile, cuda: CudaExecutor, frames: int) -> dict[str, object]:
    """What the executors differ by in `frames` runs on drawn numbers, and what those cost in launches and copies."""
    same, worst = True, 0.0
    draw = np.random.default_rng(cuda.batch)
    with CpuExecutor(plan, cuda.batch) as right:
        cuda.golden()
        warm = counters()
        channels = cuda.program.tensors[cuda.program.inputs[0]].channels()
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
        done = counters()
        moved = [region for segment in cuda.segments for region in (*segment.uploads, *segment.downloads)]
        return {
            "steps": cuda.placement.steps,
            "cpu_steps": len(cuda.placement.on_cpu),
            "doubled": len(assign(cuda.program).doubled),
            "segments": sum(segment.on_device for segment in cuda.segments),
            "without_kernel": len(cuda.program.steps) - len(assign(cuda.program).convolutions),
            "segments_of_convolutions": of_convolutions(cuda.program),
            "placed_segments": cuda.placement.segments,
            "moved": sum(len(blocks(region, cuda.program)) for region in moved),
            **{name: done[name] - warm[name] for name in COUNTED},
            "runs": frames + 1,
            "same": same,
            "worst": worst,
        }


def of_convolutions(program: Program) -> int:
    """GPU segments that there would be if each upsampling were the CPU's."""
    given = assign(program).convolutions
    return sum(segment.on_device for segment in segments(program, lambda step: step.name in given))


def shifted(step: Convolution, doubled: Upsample | None, program: Program, constants: Mapping[str, Array],
            sms: int) -> Launch:
    """`launch_of`, but the first step whose output has a buffer of its own stores a unit of channels too far."""
    launch = launch_of(step, doubled, program, constants, sms)
    if step.name != planted_step(program):
        return launch
    arguments = Arguments.from_buffer_copy(launch.arguments)
    arguments.y += UNIT * np.dtype(program.tensors[step.writes()[0]].dtype).itemsize
    return replace(launch, arguments=arguments)


def planted_step(program: Program) -> str:
    given = assign(program)
    for name, step in given.convolutions.items():
        y = program.tensors[step.y]
        if y.span == y.pitch and name not in given.doubled:
            return name
    raise AssertionError("no such step")


def planted(path: Path) -> None:
    """Prints what each arena makes of the planted store: the kind of error and its text."""
    under_test.launch_of = shifted
    device = Device()
    with PlanFile.open_path(path) as plan:
        program = next(iter(programs_of(plan.metadata, plan.tensors).values()))
        told = {"step": planted_step(program)}
        for arena in ("shared", "separate"):
            cuda = CudaExecutor.alone(plan, program.batch, device=device, cpu_steps=True, separate=arena == "separate")
            try:
                cuda.golden()
            except (DeviceFault, GoldenMismatch) as error:
                told[arena] = f"{type(error).__name__}: {error}"
        print(json.dumps(told), flush=True)
        os._exit(0)  # the GPU has failed for this process: nothing can be freed, and PyCUDA would abort


def overflows(path: Path) -> dict[str, list[list[object]]]:
    """Of each executor, run by run, which frame overflows in which step."""
    device, told = Device(), {}
    try:
        with PlanFile.open_path(path) as plan:
            batch = len(OVERFLOWING)
            for name, executor in (
                ("cpu", CpuExecutor(plan, batch)),
                ("cuda", CudaExecutor.alone(plan, batch, device=device, cpu_steps=True)),
            ):
                told[name] = []
                for values in (OVERFLOWING, (OVERFLOWING[-1],) * batch, OVERFLOWING):
                    for frame, value in enumerate(values):
                        executor.input[frame] = value
                    executor.run()
                    told[name].append(sorted(executor.overflows.items()))
                executor.close()
    finally:
        device.close()
    return told


if __name__ == "__main__":
    if sys.argv[3:] == ["planted"]:
        planted(Path(sys.argv[1]))
    elif sys.argv[3:] == ["overflows"]:
        print(json.dumps(overflows(Path(sys.argv[1]))))
    else:
        print(json.dumps(compare(Path(sys.argv[1]), int(sys.argv[2]))))
