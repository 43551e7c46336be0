"""A plan ready to answer: pictures in, rows out, through preprocessing, executor and decoder, for every batch size.

Opened by the engine process for each plan of its generation. Imports no zmq, yaml, pydantic or onnx. Invariant: a frame
that cannot be served is that frame's FrameFault; the other frames of its batch are answered.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping as ByKey
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .devices import Device
from .ir.program import Program, Tensor
from .ir.validate import programs_of
from .picture import Picture, PictureError
from .placement import Placement
from .plan.file import PlanFile
from .pre.decoder import Decoder, NonFinite, make_decoder
from .pre.geometry import Mapping
from .pre.preprocess import Preprocessor, input_table
from .pre.scratch import Scratch
from .spec import TENSOR_TASKS, ModelSpec

PICTURE_TIMES, PIXEL_BYTES, ROOM_LEAST_BYTES = 3, 128, 1 << 20
"""Room to prepare pictures: lines of one are gathered at most twice; for each pixel of the input kernels/pre keeps two
dozen numbers of up to 8 bytes, of which the largest in use lie four to a pixel; and something for the small ones."""


@dataclass(frozen=True, slots=True)
class FrameFault:
    """Why one frame of a batch has no answer, in words for its outcome `error`."""

    text: str


@dataclass(frozen=True, slots=True)
class Interface:
    """What a plan takes and gives, for those who serve it without opening it on a device.

    input_dtype, input_shape: one frame's input tensor as the ONNX file orders it, without the batch axis.
    rows_max, row_width: float32 rows a frame may have. tensor_shape: of one frame's output (TENSOR_TASKS), else ().
    """

    input_dtype: str
    input_shape: tuple[int, ...]
    rows_max: int
    row_width: int
    tensor_shape: tuple[int, ...]


def interface_of(plan: PlanFile, spec: ModelSpec) -> Interface:
    """Read a plan's interface from its metadata."""
    program = next(iter(programs_of(plan.metadata, plan.tensors).values()))
    return _interface(program, spec, _decoder(program, spec))


def _decoder(program: Program, spec: ModelSpec) -> Decoder | None:
    """None where the outputs are the answer."""
    return None if spec.task in TENSOR_TASKS else make_decoder(spec, _output_shapes(program), _logical_input(program))


def _interface(program: Program, spec: ModelSpec, decoder: Decoder | None) -> Interface:
    entry = program.tensors[program.inputs[0]]
    if decoder is None:
        shapes = _output_shapes(program)
        floats = sum(math.prod(shape) for shape in shapes)
        tensor_shape = shapes[0] if len(shapes) == 1 else (floats,)
        return Interface(entry.dtype, _logical_input(program), floats, 1, tensor_shape)
    return Interface(entry.dtype, _logical_input(program), decoder.rows_max, decoder.row_width, ())


class PreparedModel:
    """A plan that was read and found fit for a device, before it has memory."""

    def __init__(self, plan: PlanFile, device: Device) -> None:
        """Raises PlanError, SpecError, ProgramError (also where the device cannot run a program)."""
        self.plan, self.device = plan, device
        self.spec = ModelSpec.from_json(plan.metadata["spec"])
        programs = programs_of(plan.metadata, plan.tensors)
        self.program = next(iter(programs.values()))
        self.on_device = device.prepare(plan, programs)

    @property
    def pixels(self) -> int:
        """Of the picture that its input is; 0 where it takes none."""
        return math.prod(self.program.tensors[self.program.inputs[0]].shape[:2]) if self.spec.input is not None else 0


def open_models(
    plans: Sequence[PlanFile], device: Device, picture_bytes: int = 0, emergency_bytes: int = 0
) -> list[Model]:
    """All plans of an engine, in one reservation that `device` holds from then on.

    Its size is known before it is made: what the plans need at every batch size, room to prepare pictures of up to
    `picture_bytes`, and `emergency_bytes`. Raises as PreparedModel, and ProgramError where memory is short.
    """
    prepared = [PreparedModel(plan, device) for plan in plans]
    pixels = max((model.pixels for model in prepared), default=0)
    room = (PICTURE_TIMES * picture_bytes + PIXEL_BYTES * pixels + ROOM_LEAST_BYTES) if pixels else 0
    device.reserve([n for model in prepared for n in model.on_device.needs.values()], room, emergency_bytes)
    scratch = Scratch(device.host_memory)
    owners = _told_apart([model.spec.name for model in prepared])
    return [Model(model, owner, scratch) for model, owner in zip(prepared, owners, strict=True)]


def _told_apart(names: Sequence[str]) -> list[str]:
    """Two versions of a model have one name: they are numbered."""
    return [f"{n} ({names[:i].count(n) + 1})" if names.count(n) > 1 else n for i, n in enumerate(names)]


class Model:
    """One plan on one device."""

    def __init__(self, prepared: PreparedModel, owner: str, scratch: Scratch) -> None:
        """Its memory is reserved on the device; `owner` names its blocks. Raises ProgramError, DeviceFault."""
        self._plan, self._device = prepared.plan, prepared.device
        self._scratch = scratch
        self.spec = prepared.spec
        self._executors, self._blocks = self._device.open(prepared.on_device, owner)
        program = prepared.program
        self._decoder = _decoder(program, self.spec)
        self.interface = _interface(program, self.spec, self._decoder)
        self._pre: Preprocessor | None = None
        if self.spec.input is not None:
            entry = program.tensors[program.inputs[0]]
            table = input_table(self.spec.input, entry.dtype, entry.scale)
            self._pre = Preprocessor(self.spec.input, entry.shape, table, scratch)
        self.preprocessed_ns = 0
        self.executed_ns = 0

    @property
    def placement(self) -> Placement | None:
        """Of the batch size that leaves most steps to the CPU; None where all run there."""
        found = [executor.placement for executor in self._executors.values()]
        return max((p for p in found if p is not None), key=lambda p: len(p.on_cpu), default=None)

    def run(self, pictures: Sequence[Picture], targets: Sequence[NDArray[np.float32]]) -> list[int | FrameFault]:
        """Answer a batch: rows written to each frame's target, float32 (rows_max, row_width); their count returned.

        The smallest batch size of the plan that holds the frames runs; rows of frames that are not there are not read.
        """
        executor = self._executors[min(n for n in self._executors if n >= len(pictures))]
        mappings = [self._prepare(picture, executor.input[i]) for i, picture in enumerate(pictures)]
        self.preprocessed_ns = time.monotonic_ns()
        outputs = executor.run()
        self.executed_ns = time.monotonic_ns()
        mappings = [_overflowed(executor.overflows, i) or mapping for i, mapping in enumerate(mappings)]
        return [
            mapping
            if isinstance(mapping, FrameFault)
            else self._finish([o[i] for o in outputs], mapping, picture, target)
            for i, (mapping, picture, target) in enumerate(zip(mappings, pictures, targets, strict=True))
        ]

    def golden(self) -> None:
        """Run the plan's golden input at every batch size. Raises GoldenMismatch naming the step."""
        for executor in self._executors.values():
            executor.golden()

    def close(self) -> None:
        """Gives its memory back."""
        for executor in self._executors.values():
            executor.close()
        self._plan.close()
        self._scratch.close()
        for block in self._blocks:
            assert self._device.memory is not None
            self._device.memory.give_back(block)
        self._blocks.clear()

    def _prepare(self, picture: Picture, into: NDArray[np.generic]) -> Mapping | FrameFault | None:
        try:
            if self._pre is not None:
                return self._pre.run(picture, into)
            _copy_tensor(picture, into)
        except PictureError as error:
            return FrameFault(str(error))
        return None

    def _finish(
        self, outputs: list[NDArray[np.float32]], mapping: Mapping | None, picture: Picture, target: NDArray[np.float32]
    ) -> int | FrameFault:
        if self._decoder is None or mapping is None:
            return _flatten(outputs, target)
        try:
            return self._decoder.decode(outputs, mapping, picture.width, picture.height, target)
        except NonFinite as error:
            return FrameFault(str(error))


def _overflowed(overflows: ByKey[int, str], frame: int) -> FrameFault | None:
    step = overflows.get(frame)
    return None if step is None else FrameFault(f"step '{step}' overflowed float16 on this input: build with fp32")


def _copy_tensor(picture: Picture, into: NDArray[np.generic]) -> None:
    """The payload is the input tensor itself, in the executor's own channel order; pads stay 0."""
    values = np.frombuffer(picture.data, dtype=picture.dtype).reshape(picture.shape)
    if values.dtype != into.dtype:
        raise PictureError(f"tensor of {values.dtype} given, the plan takes {into.dtype}")
    into[..., : values.shape[-1]] = values


def _flatten(outputs: list[NDArray[np.float32]], target: NDArray[np.float32]) -> int | FrameFault:
    at = 0
    for output in outputs:
        if not np.isfinite(output).all():
            return FrameFault("an output is not finite: the model overflowed on this input")
        target[at : at + output.size, 0] = output.reshape(-1)
        at += output.size
    return at


def _output_shapes(program: Program) -> list[tuple[int, ...]]:
    """Shapes of one frame's outputs, in the order of the ONNX file's, without the batch axis."""
    return [_one_frame(program.tensors[name]) for name in program.outputs]


def _logical_input(program: Program) -> tuple[int, ...]:
    """(H, W, C) of a picture's input; a flat input's shape as the ONNX file has it, without the batch axis."""
    return _one_frame(program.tensors[program.inputs[0]])


def _one_frame(tensor: Tensor) -> tuple[int, ...]:
    """A flat tensor's shape still has ONNX's batch axis of 1."""
    return tensor.shape[1:] if tensor.layout == "flat" and tensor.shape[:1] == (1,) else tensor.shape
