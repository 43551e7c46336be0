"""A program on the GPU before it has memory: its launches, and the one order in which their parts are taken.

Used by `prepared.py`, which counts the parts, and by `executor.py`, which fills them: by the same calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..cpu.executor import Plan
from ..ir.errors import ProgramError
from ..ir.onnx_names import onnx_name
from ..ir.program import Program
from .arena import Arena
from .assignment import assign
from .convolution import Arguments, Kernel
from .device import Device
from .launches import Launch, launch_of
from .memory import DeviceMemory, WeightMemory
from .overflow import FlagRows, flag_bytes
from .residence import segments


@dataclass(frozen=True, slots=True)
class Ready:
    """A launch whose weights lie on the device, with the addresses of everything."""

    kernel: Kernel
    blocks: tuple[int, int, int]
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Filled:
    """A program in memory: the arena, the flags of float16 steps, and every launch by the name of its step."""

    arena: Arena
    flags: FlagRows
    launches: dict[str, Ready]


class PreparedProgram:
    """`launches`: of the convolutions on the GPU, by name; `doubled`: as Assignment. `cpu_steps`: what is left to the
    CPU; all others are `on_device`, by name. Holds the packed weights: nobody keeps it longer than `fill`."""

    def __init__(self, plan: Plan, program: Program, device: Device, cpu_steps: bool) -> None:
        """Raises ProgramError where it computes in float32, or has steps that no kernel here computes and `cpu_steps`
        is not given."""
        self.plan, self.program, self.device = plan, program, device
        given = assign(program)
        self.cpu_steps, self.doubled = given.cpu_steps, given.doubled
        self._refuse(cpu_steps)
        self.launches = {
            name: launch_of(step, given.doubled.get(name), program, plan.tensors, device.sms)
            for name, step in given.convolutions.items()
        }
        self.on_device = {step.name for step in program.steps} - {step.name for step in given.cpu_steps}
        self.segments = segments(program, lambda step: step.name in self.on_device)

    def fill(self, weights: WeightMemory, work: DeviceMemory, separate: bool) -> Filled:
        """Takes every part from `weights` and `work`, and puts the weights there. `separate`: see Arena."""
        arena = Arena(work, self.program, separate)
        halves = [name for name, launch in self.launches.items() if launch.kernel.ending == "half"]
        flags = FlagRows(halves, self.program.batch, work.zeros(flag_bytes(len(halves), self.program.batch)))
        return Filled(arena, flags, {
            name: Ready(launch.kernel, launch.blocks, self._arguments(launch, arena, flags, weights, work))
            for name, launch in self.launches.items()})

    def _arguments(self, launch: Launch, arena: Arena, flags: FlagRows, weights: WeightMemory,
                   work: DeviceMemory) -> Arguments:
        made = Arguments.from_buffer_copy(launch.arguments)
        made.x, made.y = arena.address(made.x), arena.address(made.y)
        packed = launch.packed
        made.weight, made.gather, made.bias, made.multiplier = (
            weights.upload(a) for a in (packed.weight, packed.gather, *packed.vectors))
        if launch.arguments.residual_pitch:
            made.residual = arena.address(made.residual)
        if launch.table is not None:
            made.table = weights.upload(launch.table)
        if launch.kernel.split:
            made.partial = work.zeros(launch.partial_bytes)
            made.arrived = work.zeros(launch.blocks[0] * launch.blocks[1] * 4)
        made.overflow = flags.address(launch.step.name)
        return made

    def _refuse(self, cpu_steps: bool) -> None:
        kinds = sorted({onnx_name(step) for step in self.cpu_steps})
        if len(self.cpu_steps) == len(self.program.steps):
            raise ProgramError(f"device cuda: no step of this plan has a CUDA kernel ({', '.join(kinds)}): build it "
                               "with --precision mixed, int8 or fp16, or serve it on the CPU")
        if self.cpu_steps and not cpu_steps:
            raise ProgramError(f"device cuda: {len(self.cpu_steps)} of {len(self.program.steps)} steps have no CUDA "
                               f"kernel yet ({', '.join(kinds)}): `cpu_steps: allow` runs these on the CPU")
