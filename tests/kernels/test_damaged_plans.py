"""Plans whose program, golden data or metadata are wrong in one place: each refused, and the place is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mutants import Parts, base, verdict

from orind.kernels.ir.steps import STEPS
from orind.kernels.ir.validate import RULES


def test_every_step_has_a_rule() -> None:
    assert set(RULES) == set(STEPS)


def first(program: Any, kind: str, **fields: Any) -> Any:
    """The first step of a kind; its fields are changed to `fields`."""
    step = next(s for s in program["steps"] if s["step"] == kind)
    step.update(fields)
    return step


def tensor(program: Any, name: str, **fields: Any) -> Any:
    found = next(t for t in program["tensors"] if t["name"] == name)
    found.update(fields)
    return found


def onto(program: Any) -> None:
    """The y of a step in the bytes of its x."""
    step = first(program, "TableI8")
    there = tensor(program, step["y"])
    offset, buffer = tensor(program, step["x"])["offset"], there["buffer"]
    for t in program["tensors"]:
        if t["buffer"] == buffer:
            t["offset"] = offset


DAMAGE: dict[str, tuple[Callable[[Any], object], str]] = {
    "unknown step": (lambda p: first(p, "ConvI8", step="Warp"), "step 'Warp' that this orind does not know"),
    "missing field": (lambda p: first(p, "ConvI8").pop("stride"), r"step 'Conv_0' \(ConvI8\) is not complete .*stride"),
    "further field": (lambda p: first(p, "ConvI8", padding=1), "has a field 'padding' that this orind does not know"),
    "type of a field": (lambda p: first(p, "ConvI8", kernel="3x3"), "has '3x3' as 'kernel', which makes no sense"),
    "huge number": (lambda p: first(p, "ConvI8", groups=1 << 70), f"has {1 << 70} as 'groups'"),
    "huge factor": (lambda p: first(p, "MulI8", multiplier=1e300), r"has 1e\+300 as 'multiplier'"),
    "huge window": (lambda p: first(p, "AveragePoolI8", kernel=[1 << 39, 3]), "has a window of"),
    "stride": (lambda p: first(p, "ConvI8", stride=[2, 1]), r"takes \(12, 10\) to \(12, 10\), which a window of"),
    "no stride": (lambda p: first(p, "ConvI8", stride=[0, 1]), "has a window of"),
    "groups": (lambda p: first(p, "ConvI8", groups=7), "has 7 groups"),
    "no groups": (lambda p: first(p, "ConvI8", groups=0), "has 0 groups"),
    "bounds": (lambda p: first(p, "ConvI8", high=300), "has the bounds 0 and 300 for int8 codes"),
    "factor": (lambda p: first(p, "MulI8", multiplier=float("inf")), "multiplies by inf"),
    "type of a tensor": (lambda p: tensor(p, first(p, "TableI8")["x"], dtype="float32"), "but differently|needs|take"),
    "unknown type": (lambda p: tensor(p, "images", dtype="int3"), "tensor 'images' has the unknown type int3"),
    "shape": (lambda p: tensor(p, "images", shape=[13, 10, 3]), "tensor 'images' has .* bytes a frame, and needs"),
    "shape, less": (lambda p: tensor(p, "images", shape=[11, 10, 3]), "'images' has 360 bytes a frame|takes"),
    "negative shape": (lambda p: tensor(p, "images", shape=[-1, -1, 3]), "'images' has the shape"),
    "layout": (lambda p: tensor(p, "images", layout="nchw"), "has the layout 'nchw'"),
    "channels": (lambda p: tensor(p, "images", segments=[[0, 2]]), "has 3 channels, other than its segments"),
    "span": (lambda p: tensor(p, "images", span=99), "has channels .* of 3"),
    "scale": (lambda p: tensor(p, "images", scale=0.0), "has the scale 0.0"),
    "frame": (lambda p: tensor(p, "images", frame_bytes=1 << 30), "bytes a frame, and needs 360"),
    "offset": (lambda p: tensor(p, "images", offset=-256), "'images' lies at -256 of the arena"),
    "odd offset": (lambda p: tensor(p, "images", offset=260), "'images' lies at 260 of the arena"),
    "far offset": (lambda p: tensor(p, "images", offset=1 << 38), "'images' does not fit the arena of"),
    "arena": (lambda p: p.update(arena_bytes=512), "does not fit the arena of 512 bytes"),
    "large arena": (lambda p: p.update(arena_bytes=1 << 39), "the arena has 549755813888 bytes, its tensors reach"),
    "two of a name": (lambda p: p["tensors"].append(p["tensors"][0]), "two tensors of one name"),
    "two steps of a name": (lambda p: p["steps"][0].update(name=p["steps"][1]["name"]), "has two steps '"),
    "no tensor": (lambda p: p["tensors"].pop(), "uses the unknown tensor|input or output .* is unknown"),
    "unknown tensor": (lambda p: first(p, "ConvI8", x="elsewhere"), "uses the unknown tensor 'elsewhere'"),
    "unknown output": (lambda p: p.update(outputs=["elsewhere"]), "input or output 'elsewhere' is unknown"),
    "two inputs": (lambda p: p["inputs"].append("images"), "has 2 inputs"),
    "order of the input": (lambda p: p.update(input_layout="chwn"), "in the order 'chwn'"),
    "order": (lambda p: p["steps"].insert(0, p["steps"].pop(1)), "before it is written"),
    "missing step": (lambda p: p["steps"].pop(), "is never written"),
    "over the input": (lambda p: first(p, "ConvI8", y="images"), "writes 'images' over the input"),
    "place": (onto, "lie in the same bytes of the arena and are needed at once"),
    "batch": (lambda p: p.update(batch=2), "the program for batch 1 says that it is for 2"),
    "run": (lambda p: first(p, "Copy", runs=[[20, 32, 20]]), "copies 20 channels from 20 to 32"),
    "axis": (lambda p: first(p, "Softmax", axis=9), "works on axis 9 of 4"),
    "no weights": (lambda p: first(p, "ConvI8", weight="w"), "the plan lacks the tensor 'w' that its program needs"),
    "other weights": (lambda p: first(p, "ConvI8", weight=first(p, "DepthwiseI8")["weight"]), "as int8 of shape"),
    "step of another type": (lambda p: first(p, "ConvI8", step="DepthwiseI8"), "whose channels lie otherwise")}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named(what: str) -> None:
    edit, text = DAMAGE[what]
    program = json.loads(base("gated int8").metadata["program"])
    edit(program["1"])
    said = verdict(Parts(base("gated int8").tensors, {**base("gated int8").metadata, "program": json.dumps(program)}))
    assert said.startswith("ProgramError: ") and re.search(text, said), said


@pytest.mark.parametrize(("name", "value", "text"), [
    ("golden.input", None, "the golden data 'golden.input' should be int8 of shape .*, and is missing"),
    ("golden.crc.b1", np.zeros(3, np.uint32), "'golden.crc.b1' should be uint32"),
    ("golden.output.0", np.zeros((1, 4), np.float32), "'golden.output.0' should be float32"),
    ("golden.crc.b1", "other", "golden check: step 'Conv_0' .* gives other bits than at build time")])
def test_golden_data(name: str, value: Any, text: str) -> None:
    tensors = dict(base("gated int8").tensors)
    given_value = tensors.pop(name)
    if value is not None:
        tensors[name] = given_value + 1 if isinstance(value, str) else value
    assert re.search(text, verdict(Parts(tensors, base("gated int8").metadata)))


@pytest.mark.parametrize(("metadata", "text"), [
    ({}, "the plan holds no program"), ({"program": "{}"}, "the plan holds no program"),
    ({"program": "nonsense"}, "cannot be read"), ({"program": "[" * 100_000}, "cannot be read")])
def test_metadata(metadata: dict[str, str], text: str) -> None:
    assert text in verdict(Parts(base("gated int8").tensors, {"spec": base("gated int8").metadata["spec"], **metadata}))
