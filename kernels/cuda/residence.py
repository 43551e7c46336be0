"""Which parts of the arena are on the host, which on the device, and what is copied between steps. Pure.

Called by `executor.py`. A program is cut into segments, on the device or on the host; what a segment reads
and the other side wrote is copied before it. Bytes are followed by buffer and channel range: parts of a Concat may be
written on different sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..ir.program import Program, Tensor
from ..ir.steps import Copy, Step


@dataclass(frozen=True, slots=True)
class Region:
    """Channels [first, end) of every pixel of a buffer, for all frames; of a flat tensor all bytes."""

    tensor: str
    first: int
    end: int

    def meets(self, other: Region) -> bool:
        return self.first < other.end and other.first < self.end

    def holds(self, other: Region) -> bool:
        return self.first <= other.first and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Block:
    """One strided copy: `height` rows of `width` bytes, `pitch` apart, from byte `offset` of the arena on."""

    offset: int
    width: int
    height: int
    pitch: int


@dataclass(slots=True)
class Segment:
    """Steps [first, end); `uploads` come before a device segment's steps, `downloads` after them."""

    on_device: bool
    first: int
    end: int
    uploads: list[Region] = field(default_factory=list)
    downloads: list[Region] = field(default_factory=list)


@dataclass(slots=True)
class _Held:
    region: Region
    host: bool
    device: bool


def blocks(region: Region, program: Program) -> list[Block]:
    """The copies that move a region, one a frame."""
    tensor = program.tensors[region.tensor]
    size = np.dtype(tensor.dtype).itemsize
    frames = [tensor.offset + n * tensor.frame_bytes for n in range(program.batch)]
    if tensor.layout == "flat":
        nbytes = math.prod(tensor.shape) * size
        return [Block(offset, nbytes, 1, nbytes) for offset in frames]
    height, width, _ = tensor.shape
    row = (region.end - region.first) * size
    pitch = tensor.pitch * size
    if row == pitch:
        return [Block(offset, row * height * width, 1, row * height * width) for offset in frames]
    return [Block(offset + region.first * size, row, height * width, pitch) for offset in frames]


def whole(name: str, tensor: Tensor) -> Region:
    return Region(name, tensor.start, tensor.start + tensor.span) if tensor.layout == "nhwc" else Region(name, 0, 1)


def written(step: Step, name: str, tensor: Tensor) -> list[Region]:
    """What a step writes of a tensor: a Copy only the segments that its runs touch."""
    if not isinstance(step, Copy) or step.clear or tensor.layout == "flat":
        return [whole(name, tensor)]
    edges = [*(start for start, _ in tensor.segments), tensor.span]
    return [Region(name, tensor.start + start, tensor.start + edges[i + 1])
            for i, (start, count) in enumerate(tensor.segments)
            if any(start <= to < start + count for _, to, _ in step.runs)]


def buffer_of(tensor: Tensor) -> str:
    return tensor.buffer or tensor.name


def segments(program: Program, on_device: Callable[[Step], bool]) -> list[Segment]:
    """The program in segments, copies included; inputs begin on the host, outputs end there."""
    held: dict[str, list[_Held]] = {}
    found: list[Segment] = []
    last_device: Segment | None = None
    for name in program.inputs:
        tensor = program.tensors[name]
        held.setdefault(buffer_of(tensor), []).append(_Held(whole(name, tensor), True, False))

    def copy(part: _Held, to_device: bool) -> None:
        if part.device if to_device else part.host:
            return
        assert last_device is not None  # only a device segment leaves a part on the device
        (last_device.uploads if to_device else last_device.downloads).append(part.region)
        part.host = part.device = True

    def fetch(name: str, to_device: bool) -> None:
        wanted = whole(name, program.tensors[name])
        for part in held.get(buffer_of(program.tensors[name]), ()):
            if part.region.meets(wanted):
                copy(part, to_device)

    for index, step in enumerate(program.steps):
        device = on_device(step)
        if not found or found[-1].on_device != device:
            found.append(Segment(device, index, index))
        found[-1].end = index + 1
        if device:
            last_device = found[-1]
        for name in step.reads():
            fetch(name, device)
        for name in step.writes():
            tensor = program.tensors[name]
            kept = held.setdefault(buffer_of(tensor), [])
            for region in written(step, name, tensor):
                kept[:] = [part for part in kept if not region.holds(part.region)]
                for part in kept:
                    if part.region.meets(region):  # a part of it is written anew: this side gets all, the other is old
                        copy(part, device)
                        part.host, part.device = not device, device
                kept.append(_Held(region, not device, device))
    for name in program.outputs:
        fetch(name, False)
    return found
