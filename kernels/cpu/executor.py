"""Runs a plan's program with NumPy. The contract itself: every other executor is compared with this one.

Callers: the engine (through kernels/model.py), build and verify. Chosen by name. All views and scratch are made in the
constructor; `run` makes calls only. BLAS should have one thread (OPENBLAS_NUM_THREADS=1, set by the engine's parent).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from ..ir.errors import GoldenMismatch, ProgramError
from ..ir.program import Program, Tensor
from ..ir.steps import STEPS, Copy, Step
from ..ir.validate import programs_of
from . import convolution, depthwise, flat, flat_products, half, images, resampling
from .binding import Array, Binding, Call
from .workspace import Bytes, Workspace

GOLDEN_TOLERANCE = 1e-4
"""Toleranced outputs (floating-point sums) may differ by this part of the output's largest magnitude."""
GOLDEN_TOLERANCE_HALF = 2e-2
"""The same where sums are stored as float16 or int8: another order of summing flips last bits and codes behind."""


class Plan(Protocol):
    """What the executor needs of kernels/plan/file.py's PlanFile."""

    @property
    def tensors(self) -> Mapping[str, Array]: ...
    @property
    def metadata(self) -> Mapping[str, str]: ...


def snake(name: str) -> str:
    """ConvI8 -> conv_i8, MaxPool -> max_pool: the function of a step."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def function_of(kind: str) -> Callable[[Any, Binding, int], list[Call]]:
    for module in (convolution, depthwise, images, resampling, half, flat, flat_products):
        found = getattr(module, snake(kind), None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    raise ProgramError(f"the CPU executor has no function for the step {kind}: rebuild the plan")


FUNCTIONS = {kind: function_of(kind) for kind in STEPS}


def written_parts(step: Step, tensor: Tensor, view: Array, bytewise: bool = False) -> list[Array]:
    """What a step writes of its tensor's `view`: all of it, but of a Concat that is copied together only the segments
    that this step fills. `bytewise`: the last axis of `view` counts bytes, not numbers."""
    if not isinstance(step, Copy) or step.clear:
        return [view]
    item = np.dtype(tensor.dtype).itemsize if bytewise else 1
    edges = [*(start for start, _ in tensor.segments), tensor.span]
    return [view[..., start * item:edges[i + 1] * item] for i, (start, count) in enumerate(tensor.segments)
            if any(start <= to < start + count for _, to, _ in step.runs)]


class ProgramRunner:
    """A bound program. `input` (N, H, W, C) or (N, ...) is written by the caller before each run."""

    def __init__(self, program: Program, constants: Mapping[str, Array],
                 arena: Bytes | None = None, workspace: Workspace | None = None,
                 elsewhere: Container[str] = ()) -> None:
        """`arena`, `workspace`: see Binding. Steps named in `elsewhere` are not run here: they get no calls."""
        self.program = program
        self.binding = Binding(program, constants, arena, workspace)
        self.input: Array = self.binding.all_frames(program.inputs[0])
        self.outputs: list[Array] = [self.binding.all_frames(name) for name in program.outputs]
        self.steps: list[tuple[Step, list[Call]]] = []
        for step in program.steps:
            bind = FUNCTIONS[type(step).__name__]
            calls: list[Call] = []
            for frame in range(program.batch if step.name not in elsewhere else 0):
                calls += bind(step, self.binding, frame)
            self.steps.append((step, calls))
        self._calls = [call for _, calls in self.steps for call in calls]

    @property
    def overflows(self) -> Mapping[int, str]:
        """Frames of the last run without an answer: the first step whose result float16 does not hold."""
        return self.binding.overflows

    def run(self) -> list[Array]:
        self.binding.overflows.clear()
        with np.errstate(all="ignore"):
            for call in self._calls:
                call()
        return self.outputs

    def walk(self, first: int = 0) -> Iterator[Step]:
        """Runs step by step from step `first` on and yields each step when it has run: calibration, checksums and
        timing look then."""
        self.binding.overflows.clear()
        for step, calls in self.steps[first:]:
            with np.errstate(all="ignore"):
                for call in calls:
                    call()
            yield step

    def logical(self, name: str, frame: int) -> Array:
        """A copy of a tensor in logical order: image (H, W, C), flat in its shape. Valid right after its step."""
        view, tensor = self.binding.view(name, frame), self.program.tensors[name]
        if tensor.layout == "flat":
            return view.copy()
        return np.concatenate([view[..., start:start + count] for start, count in tensor.segments], axis=-1)

    def checksum(self, step: Step) -> int:
        """`sum_of` the step; 0 where it is not exact."""
        return self.sum_of(step) if all(self.program.tensors[name].exact for name in step.writes()) else 0

    def sum_of(self, step: Step) -> int:
        """CRC-32 of what the step wrote, all frames, pads included."""
        crc = 0
        for name in step.writes():
            for frame in range(self.program.batch):
                for part in written_parts(step, self.program.tensors[name], self.binding.view(name, frame)):
                    crc = zlib.crc32(np.ascontiguousarray(part).tobytes(), crc)
        return crc


def check_golden(program: Program, stored: Mapping[str, Array], batch: int, walk: Iterable[Step],
                 runner: ProgramRunner) -> None:
    """Compares every step that `walk` runs, as it stands in the runner's arena, and then the outputs with the plan's
    golden data. Raises GoldenMismatch naming the first that differs."""
    sums = stored[f"golden.crc.b{batch}"]
    for index, step in enumerate(walk):
        if runner.checksum(step) != int(sums[index]):
            raise GoldenMismatch(step.name, f"golden check: step '{step.name}' ({type(step).__name__}) gives other "
                                 "bits than at build time: this executor or machine must not serve")
    rounded = any(t.dtype in ("float16", "int8") and not t.exact for t in program.tensors.values())
    tolerance = GOLDEN_TOLERANCE_HALF if rounded else GOLDEN_TOLERANCE
    for index, (name, got) in enumerate(zip(program.outputs, runner.outputs, strict=True)):
        want = stored[f"golden.output.{index}"][:batch]
        if program.tensors[name].exact:
            same = bool(np.array_equal(got, want))
        else:
            with np.errstate(all="ignore"):            # infinities and NaN are not the same as anything
                same = bool(np.abs(got - want).max() <= tolerance * max(float(np.abs(want).max()), 1e-30))
        if not same:
            raise GoldenMismatch(name, f"golden check: output '{name}' differs from the one at build time")


class CpuExecutor:
    """The executor named "cpu". `plan` must stay open while this lives."""

    placement = None

    def __init__(self, plan: Plan, batch: int = 1, programs: Mapping[int, Program] | None = None,
                 arena: Bytes | None = None, workspace: Workspace | None = None) -> None:
        """`programs` are those of `programs_of`, where the caller has them; `arena`, `workspace`: see Binding. Raises
        ProgramError if none is of this batch size or it cannot be run."""
        programs = programs_of(plan.metadata, plan.tensors) if programs is None else programs
        if batch not in programs:
            raise ProgramError(f"the plan holds batch sizes {sorted(programs)}, not {batch}: add it to `batch` in the "
                               "spec and build again")
        self.batch = batch
        self.plan = plan
        self.runner = ProgramRunner(programs[batch], plan.tensors, arena, workspace)
        self.program = self.runner.program

    @property
    def input(self) -> Array:
        """(N, H, W, C) view into the arena, the program's input type; pads stay 0."""
        return self.runner.input

    def run(self) -> list[Array]:
        """float32 outputs in ONNX's logical order, first axis N; valid until the next run."""
        return self.runner.run()

    @property
    def overflows(self) -> Mapping[int, str]:
        return self.runner.overflows

    def golden(self) -> None:
        """Runs the golden input. Raises GoldenMismatch naming the first step whose result differs."""
        np.copyto(self.input, self.plan.tensors["golden.input"][:self.batch])
        check_golden(self.program, self.plan.tensors, self.batch, self.runner.walk(), self.runner)

    def close(self) -> None:
        """Drops every view of the plan, so that its mapping can be closed."""
        self.runner = None  # type: ignore[assignment]

    def __enter__(self) -> CpuExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
