"""The executor named "cuda": convolutions, and upsamplings by two behind them, on the GPU, one graph launch a segment;
the other steps on the CPU where the configuration allows that.

Has the CPU executor's interface. One arena on the device and one, pinned, on the host, with the same offsets;
residence.py says what is copied between them. Weights are uploaded once, for all batch sizes. The flags of float16
steps whose results do not fit lie together and are copied once, behind the last segment on the device.

The caller writes preprocessed numbers into the pinned arena: frames themselves need no address on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType

import numpy as np

from ..cpu.executor import Plan, ProgramRunner, check_golden
from ..cpu.memory_check import separate as separated
from ..cpu.workspace import Workspace
from ..ir.errors import ProgramError
from ..ir.onnx_names import onnx_name
from ..ir.program import Program
from ..ir.steps import Step, Upsample
from ..ir.validate import programs_of
from ..placement import Placement
from .convolution import Array
from .device import Device, Graph
from .launching import Filled, PreparedProgram, Ready
from .memory import Allocations, DeviceMemory, WeightMemory
from .overflow import OverflowFlags
from .residence import Region, Segment, blocks


class CudaExecutor:
    """One program on one GPU. Its plan must stay open while this lives; executors of a process may share a device."""

    def __init__(self, prepared: PreparedProgram, weights: WeightMemory, work: DeviceMemory,
                 separate: bool = False, workspace: Workspace | None = None) -> None:
        """`separate`, for tests: every buffer is a part of its own of `work` (arena.py). `workspace`: of the steps on
        the CPU, shared with other batch sizes of the plan.

        Raises ProgramError where memory is short; DeviceFault where the GPU fails.
        """
        self.plan, self.device, self.program = prepared.plan, prepared.device, prepared.program
        self.batch = self.program.batch
        self.cpu_steps, self.segments = prepared.cpu_steps, prepared.segments
        self._on_device, self._doubled = prepared.on_device, prepared.doubled
        self._last_on_device = [segment for segment in self.segments if segment.on_device][-1]
        self._places = {step.name: index for index, step in enumerate(self.program.steps)}
        self._walked = False
        self._memory = (weights, work)
        self.overflows: dict[int, str] = {}
        with self.device.opening(f"batch size {self.batch} of this plan"):
            self._open(prepared.fill(weights, work, separate), workspace)

    @classmethod
    def alone(cls, plan: Plan, batch: int = 1, programs: Mapping[int, Program] | None = None, *, device: Device,
              cpu_steps: bool, separate: bool = False) -> CudaExecutor:
        """With allocations of its own, for tests and benchmarks. Raises ProgramError also where the plan has no such
        batch size, or as PreparedProgram."""
        programs = programs_of(plan.metadata, plan.tensors) if programs is None else programs
        if batch not in programs:
            raise ProgramError(f"the plan holds batch sizes {sorted(programs)}, not {batch}: add it to `batch` in the "
                               "spec and build again")
        program = separated(programs[batch]) if separate else programs[batch]
        prepared = PreparedProgram(plan, program, device, cpu_steps)
        return cls(prepared, Allocations(device), Allocations(device), separate)

    def _open(self, filled: Filled, workspace: Workspace | None) -> None:
        """Kernels on the device, and a graph of each segment."""
        self._arena, self._launches = filled.arena, filled.launches
        self._host = self.device.pinned(self.program.arena_bytes)
        self.runner = ProgramRunner(self.program, self.plan.tensors, self._host, workspace, self._on_device)
        self._flags = OverflowFlags(self.device, filled.flags)
        for launch in self._launches.values():
            self.device.function(launch.kernel)
        self._graphs: list[Graph] = []
        self._calls = [self._call(segment) for segment in self.segments]

    @property
    def input(self) -> Array:
        """(N, H, W, C) view into the host's arena, the program's input type; pads stay 0."""
        return self.runner.input

    @property
    def placement(self) -> Placement:
        return Placement(len(self.program.steps), tuple((step.name, onnx_name(step)) for step in self.cpu_steps),
                         len(self._graphs))

    def run(self) -> list[Array]:
        """float32 outputs in ONNX's logical order, first axis N; valid until the next run. Raises DeviceFault."""
        self.runner.binding.overflows.clear()
        with np.errstate(all="ignore"), self.device.watched():
            for call in self._calls:
                call()
            self._note_overflows()
        return self.runner.outputs

    def golden(self) -> None:
        """Runs the golden input: the first time step by step, later as it is served. Raises GoldenMismatch or
        DeviceFault."""
        np.copyto(self.input, self.plan.tensors["golden.input"][: self.batch])
        if self._walked:
            self.run()
            check_golden(self.program, self.plan.tensors, self.batch, (), self.runner)
            return
        with self.device.watched():
            check_golden(self.program, self.plan.tensors, self.batch, self._walk(), self.runner)
        self._walked = True

    def close(self) -> None:
        """Frees what lies on the device, and drops every view of the plan. Raises DeviceFault."""
        with self.device.watched():
            for graph in self._graphs:
                graph.close()
            self._calls.clear()
            for memory in self._memory:
                memory.free()
        self.runner = None  # type: ignore[assignment]

    def _enqueue(self, launch: Ready) -> None:
        kernel, block = launch.kernel, (launch.kernel.tile.threads, 1, 1)
        self.device.function(kernel)(np.frombuffer(bytes(launch.arguments), np.uint8), stream=self.device.stream,
                                     block=block, grid=launch.blocks, shared=kernel.tile.shared_bytes)

    def _move(self, region: Region, up: bool) -> None:
        for block in blocks(region, self.program):
            end = block.offset + (block.height - 1) * block.pitch + block.width
            self.device.copy_2d(self._host[block.offset:end], self._arena.address(block.offset),
                                (block.width, block.height, block.pitch), up)

    def _call(self, segment: Segment) -> Callable[[], None]:
        steps = range(segment.first, segment.end)
        if not segment.on_device:
            return partial(_run_all, [call for i in steps for call in self.runner.steps[i][1]])
        with self.device.captured(self._graphs):
            for region in segment.uploads:
                self._move(region, True)
            for i in steps:
                if launch := self._launches.get(self.program.steps[i].name):  # none: a convolution's kernel does it
                    self._enqueue(launch)
            for region in segment.downloads:
                self._move(region, False)
            if segment is self._last_on_device:
                self._flags.fetch()
        return partial(self._launch, self._graphs[-1])

    def _launch(self, graph: Graph) -> None:
        graph.launch(self.device.stream)
        self.device.stream.synchronize()

    def _walk(self) -> Iterator[Step]:
        """Every step by itself, both arenas alike after each: for the golden check, which names the step."""
        for index, step in enumerate(self.program.steps):
            if launch := self._launches.get(step.name):
                self._move_all(True)
                self._enqueue(launch)
                self._move_all(False)
                self.device.stream.synchronize()
                if doubled := self._doubled.get(step.name):
                    self._halve(doubled)
            else:
                with np.errstate(all="ignore"):
                    for call in self.runner.steps[index][1]:
                        call()
            yield step
        self._flags.fetch()
        self.device.stream.synchronize()
        self._note_overflows()

    def _halve(self, doubled: Upsample) -> None:
        """On the host what the convolution would have written without it, into bytes that nobody else has then."""
        view = self.runner.binding.all_frames
        np.copyto(view(doubled.x), view(doubled.y)[:, ::2, ::2])

    def _move_all(self, up: bool) -> None:
        for part in self._arena.parts:
            host = self._host[part.offset:part.offset + part.size]
            self.device.copy_2d(host, part.address, (part.size, 1, part.size), up)

    def _note_overflows(self) -> None:
        """Frames without an answer: the first float16 step, on either side, whose result does not fit."""
        self.overflows = dict(self.runner.binding.overflows)
        for frame, name in self._flags.take():
            self.overflows[frame] = min(name, self.overflows.get(frame, name), key=self._places.__getitem__)

    def __enter__(self) -> CudaExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def _run_all(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        call()
