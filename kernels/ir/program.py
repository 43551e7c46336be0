"""What an executor runs: linear steps over tensors at fixed offsets of one arena. Lowering makes it, a plan has it.

Nothing here knows of ONNX. A tensor is one frame's; a program of batch N holds N frames of every tensor, `frame_bytes`
apart. Channel map: the logical channels of an NHWC tensor are segments, each starting at a physical channel that is a
multiple of 16; what lies between is always 0. JSON round trip without any library.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ProgramError
from .fields import made_of
from .steps import STEPS, Step

ALIGN = 256
UNIT = 16
"""Physical channels of an image lie in runs that start at multiples of this."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A view of one frame in the arena.

    `layout` nhwc: `shape` is the logical (H, W, C), `pitch` the physical channels of a pixel of the buffer, `start`
    the first physical channel of this view, `segments` (physical start relative to `start`, count) in logical order,
    `span` the physical channels from `start` that belong to the view. `layout` flat: `shape` is ONNX's logical shape,
    C order, the rest is unused. `offset` is the buffer's first byte in the arena, `frame_bytes` the distance of frames.
    `buffer` names the bytes: tensors of one buffer (parts of a Concat, reshapes) share offset, frame_bytes and pitch.
    `scale`: real value = code * scale (1.0 for float32). `exact`: every executor computes the same bits.
    """

    name: str
    dtype: str
    layout: str
    shape: tuple[int, ...]
    offset: int
    frame_bytes: int
    scale: float = 1.0
    exact: bool = False
    pitch: int = 0
    start: int = 0
    span: int = 0
    segments: tuple[tuple[int, int], ...] = ()
    buffer: str = ""

    def channels(self) -> npt.NDArray[np.intp]:
        """Physical channel, relative to `start`, of each logical channel."""
        return np.concatenate([np.arange(s, s + n) for s, n in self.segments])


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in running order. `inputs` and `outputs` name tensors; `input_layout` is how the ONNX file orders its input
    ("nhwc" where a leading Transpose was absorbed, else "as-is": NCHW)."""

    batch: int
    arena_bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: dict[str, Tensor]
    steps: tuple[Step, ...]
    input_layout: str = "as-is"

    def to_json(self) -> dict[str, Any]:
        return {"batch": self.batch, "arena_bytes": self.arena_bytes, "inputs": self.inputs, "outputs": self.outputs,
                "input_layout": self.input_layout, "tensors": [asdict(t) for t in self.tensors.values()],
                "steps": [{"step": type(s).__name__, **asdict(s)} for s in self.steps]}


def program_from_json(data: dict[str, Any]) -> Program:
    """The program of a parsed JSON object, every field of its declared type. Raises ProgramError on anything unknown,
    missing or of another type; `validate.py` tells whether the program can run."""
    try:
        named = [made_of(Tensor, entry, f"tensor '{entry.get('name')}'") for entry in data["tensors"]]
        tensors = {t.name: t for t in named}
        steps = []
        for entry in data["steps"]:
            given = dict(entry)
            kind = STEPS.get(given.pop("step"))
            if kind is None:
                raise ProgramError(f"the program has a step '{entry['step']}' that this orind does not know: rebuild "
                                   "the plan with this version")
            steps.append(made_of(kind, given, f"step '{given.get('name')}' ({kind.__name__})"))
        rest = {k: v for k, v in data.items() if k not in ("tensors", "steps")}
        program = made_of(Program, {**rest, "tensors": {}, "steps": []}, "the program")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ProgramError):
            raise
        raise ProgramError(f"the program of the plan is not complete ({error}): rebuild the plan") from error
    if len(tensors) != len(named):
        raise ProgramError("the program of the plan has two tensors of one name: the plan is damaged, build it again")
    return replace(program, tensors=tensors, steps=tuple(steps))


def programs_to_text(programs: dict[int, Program]) -> str:
    """The JSON text that a plan's metadata carries under `program`: one program a batch size."""
    return json.dumps({str(n): p.to_json() for n, p in programs.items()}, separators=(",", ":"), sort_keys=True)


def programs_from_text(text: str) -> dict[int, Program]:
    """Inverse of `programs_to_text`. Raises ProgramError."""
    try:
        data = json.loads(text)
        return {int(n): program_from_json(p) for n, p in data.items()}
    except (AttributeError, ValueError, RecursionError) as error:
        if isinstance(error, ProgramError):
            raise
        raise ProgramError(f"the program of the plan cannot be read ({error}): rebuild the plan") from error
