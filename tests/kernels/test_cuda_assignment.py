"""Which upsamplings a convolution's kernel does while it stores. Pure: no GPU takes part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orind.kernels.cuda.assignment import assign
from orind.kernels.ir.program import Program, Tensor
from orind.kernels.ir.steps import ConvI8, DepthwiseI8, MaxPool, Step, Upsample

FRAMES = 2
FREE = 1 << 16
"""An offset where nothing else lies."""


def image(name: str, side: int, offset: int, dtype: str = "int8") -> Tensor:
    size = side * side * 32 * (4 if dtype == "float32" else 1)
    return Tensor(name, dtype, "nhwc", (side, side, 32), offset, size, pitch=32, span=32, segments=((0, 32),),
                  buffer=name)


def conv(x: str, y: str, residual: str = "", kind: type[ConvI8] = ConvI8) -> ConvI8:
    return kind("conv", x, y, "w", "b", "m", (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), residual=residual)


TENSORS = {t.name: t for t in (
    image("x", 4, 0), image("other", 4, 1024), image("y", 4, 2048), image("doubled", 8, 4096), image("end", 8, 12288),
)}
UP = Upsample("up", "y", "doubled", (2, 2))
PROGRAM = Program(FRAMES, FREE * 2, ("x",), ("end",), TENSORS, (
    conv("x", "y"), UP, MaxPool("pool", "doubled", "end", (1, 1), (1, 1), (0, 0, 0, 0), (1, 1))))


def with_steps(*steps: Step) -> Program:
    return replace(PROGRAM, steps=(*steps, PROGRAM.steps[-1]))


def with_tensor(name: str, **fields: object) -> Program:
    return replace(PROGRAM, tensors={**TENSORS, name: replace(TENSORS[name], **fields)})  # type: ignore[arg-type]


def test_an_upsampling_by_two_behind_its_convolution_is_the_kernels() -> None:
    given = assign(PROGRAM)
    assert given.doubled == {"conv": UP} and [step.name for step in given.cpu_steps] == ["pool"]
    with_residual = assign(with_steps(conv("x", "y", "other"), UP))
    assert with_residual.doubled == {"conv": UP}


LAST_FRAME_OF_X = 512
"""Its first byte: frames are 512 apart."""
REFUSED = {
    "read by another step": with_steps(conv("x", "y"), UP, Upsample("again", "y", "other", (1, 1))),
    "a step in between": with_steps(conv("x", "y"), Upsample("between", "x", "other", (1, 1)), UP),
    "an output": replace(PROGRAM, outputs=("end", "y")),
    "of a buffer that others have too": replace(
        with_steps(conv("x", "y"), UP, Upsample("again", "view", "other", (1, 1))),
        tensors={**TENSORS, "view": replace(TENSORS["y"], name="view")}),
    "by three": with_steps(conv("x", "y"), replace(UP, factors=(3, 3))),
    "by two in one direction": with_steps(conv("x", "y"), replace(UP, factors=(2, 1))),
    "of another tensor": with_steps(conv("x", "y"), replace(UP, x="other")),
    "a convolution without a kernel": with_steps(conv("x", "y", kind=DepthwiseI8), UP),
    "over what the convolution reads": with_tensor("x", offset=4096 + 4096 - 32),
    "over the last frame of what it reads": with_tensor("doubled", offset=LAST_FRAME_OF_X + 480),
    "channels that lie elsewhere": with_tensor("doubled", segments=((0, 16), (16, 16))),
    "more channels to clear": with_tensor("doubled", span=64, pitch=64),
    "between two units of channels": with_tensor("doubled", start=8, pitch=48),
    "beyond 31 bits": with_tensor("doubled", frame_bytes=1 << 31, offset=FREE),
}


@pytest.mark.parametrize("why", REFUSED)
def test_another_is_left_to_the_cpu(why: str) -> None:
    given = assign(REFUSED[why])
    assert given.doubled == {} and "up" in {step.name for step in given.cpu_steps}


def test_a_residual_is_read_as_x_is() -> None:
    program = with_steps(conv("x", "y", "other"), UP)
    moved = replace(program, tensors={**TENSORS, "other": replace(TENSORS["other"], offset=4096 + 4096 - 32)})
    assert assign(moved).doubled == {}


def test_a_float32_end_is_not_doubled() -> None:
    real = {name: replace(TENSORS[name], dtype="float32") for name in ("y", "doubled")}
    given = assign(replace(PROGRAM, tensors={**TENSORS, **real}))
    assert given.doubled == {} and "conv" in given.convolutions
