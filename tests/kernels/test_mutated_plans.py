"""Mutated plans: bytes hit, cut and moved are always refused; with sums made right again, refused or equally right.

`ORIND_EXAMPLES=20000 pytest tests/kernels/test_mutated_plans.py` looks longer. Never a traceback, a hang, or a read
out of bounds: whatever is not an error of ours fails the test.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import fill, fp32, int8
from forms import segmenter, vit
from hypothesis import given, settings
from hypothesis import strategies as st
from models import Net, detector_onnx
from test_half import fp16

from orind.kernels.cpu.executor import CpuExecutor, ProgramRunner
from orind.kernels.ir.errors import GoldenMismatch, ProgramError
from orind.kernels.ir.program import programs_to_text
from orind.kernels.ir.steps import STEPS
from orind.kernels.ir.validate import RULES, programs_of
from orind.kernels.plan.file import PlanFile, write_plan
from orind.kernels.plan.layout import PlanError
from orind.kernels.spec import ModelSpec, SpecError

EXAMPLES = int(os.environ.get("ORIND_EXAMPLES", "40"))
REFUSALS = (PlanError, ProgramError, SpecError, GoldenMismatch)
bounded = settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES < 1000, database=None)


@dataclass
class Parts:
    """What a plan holds; stands for an opened plan whose sums are right."""

    tensors: dict[str, Any]
    metadata: dict[str, str]


def gated() -> Any:
    """Steps that the other nets lack: gates, averages, depthwise, padding, a copied part of a Concat."""
    net = Net((1, 3, 12, 10))
    x = net.op("Relu", net.conv(net.input, 20))
    x = net.op("Add", net.conv(x, 20, group=20), net.op("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1],
                                                        pads=[1] * 4))
    x = net.op("Mul", x, net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", x), 20, 1)))
    x = net.op("Pad", net.concat(*[net.op("Tanh", x)] * 2), net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1])))
    return net.model([(net.op("Softmax", net.conv(x, 4, 1), axis=1), (1, 4, 14, 12))])


BASES: dict[str, Callable[[], tuple[ProgramRunner, dict[str, Any]]]] = {
    "detector fp32": lambda: fp32(detector_onnx(32, (4, 8, 8, 8)), 2),
    "detector int8": lambda: int8(detector_onnx(32, (4, 8, 8, 8)), 2, frames=1),
    "vit": lambda: fp32(vit(True, 16, 8, 2)),
    "segmenter fp16": lambda: fp16(segmenter(16)), "gated int8": lambda: int8(gated(), frames=1),
    "gated fp32": lambda: fp32(gated())}


@cache
def base(name: str) -> Parts:
    runner, constants = BASES[name]()
    batch = runner.program.batch
    fill(runner, 1)
    tensors = {**constants, "golden.input": runner.input.copy()}
    tensors[f"golden.crc.b{batch}"] = np.array([runner.checksum(step) for step in runner.walk()], np.uint32)
    tensors |= {f"golden.output.{i}": value.copy() for i, value in enumerate(runner.outputs)}
    spec = ModelSpec.for_tensor("mutant", (batch,)).to_json()
    return Parts(tensors, {"spec": spec, "program": programs_to_text({batch: runner.program})})


def verdict(parts: Any) -> str:
    """"runs", or the error with which an engine would refuse; anything else than an error of ours is raised."""
    try:
        ModelSpec.from_json(parts.metadata["spec"])
        programs = programs_of(parts.metadata, parts.tensors)
        for batch in programs:
            with CpuExecutor(parts, batch, programs) as executor:
                executor.golden()
    except REFUSALS as error:
        assert 20 < len(str(error)) < 3000
        return f"{type(error).__name__}: {error}"
    return "runs"


@pytest.mark.parametrize("name", BASES)
def test_what_is_not_mutated_runs(name: str, tmp_path: Path) -> None:
    parts = base(name)
    write_plan(tmp_path / "whole.plan", parts.tensors, parts.metadata)
    with PlanFile.open_path(tmp_path / "whole.plan") as plan:
        plan.verify()
        assert verdict(plan) == "runs"


def test_every_step_has_a_rule() -> None:
    assert set(RULES) == set(STEPS)


# -- bytes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mutants") / "whole.plan"
    write_plan(path, base("detector int8").tensors, base("detector int8").metadata)
    return path


def opened(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    try:
        with PlanFile.open_path(path) as plan:
            plan.verify()
    except PlanError as error:
        assert str(path) in str(error) and len(str(error)) < 3000
        return str(error)
    return "whole"


@bounded
@given(st.data())
def test_bytes_hit_cut_and_moved(written: Path, data: st.DataObject) -> None:
    whole = written.read_bytes()
    place = st.integers(0, len(whole) - 1)
    kind = data.draw(st.sampled_from(["flip", "cut", "longer", "swap", "splice"]))
    header = st.integers(0, 20_000)
    at, to = data.draw(place | header), data.draw(place | header)
    if kind == "flip":
        changed = bytearray(whole)
        changed[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        changed = bytearray(whole[:at])
    elif kind == "longer":
        changed = bytearray(whole + whole[at:at + 300])
    else:
        size = data.draw(st.sampled_from([1, 256, 4096]))
        changed = bytearray(whole)
        changed[to:to + size] = whole[at:at + size]
        if kind == "swap":
            changed[at:at + size] = whole[to:to + size]
    said = opened(written.with_name("mutant.plan"), bytes(changed))
    assert said == "whole" if bytes(changed) == whole else said != "whole"


# -- programs ----------------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 4, 15, 16, 17, 64, 255, 256, 1 << 31, 1 << 40, 1 << 62, 10 ** 30])
VALUES = st.one_of(NUMBERS, st.sampled_from([None, True, "", "x", "float32", "int8", "flat", "nhwc", [], {}, [1],
                                             [0, 0], [[0, 16]], 0.5, -2.0, 1e300, float("inf"), float("nan")]))


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a JSON value, but for the root."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [p for key, inner in items for p in ((*way, key), *places(inner, (*way, key)))]


def change(data: st.DataObject, program: Any) -> None:
    """One change of a program: a value, a missing or further field, another's value, the order."""
    every = places(program)
    if not every:                                              # all was deleted
        return
    way = data.draw(st.sampled_from(every))
    holder = program
    for key in way[:-1]:
        holder = holder[key]
    last = way[-1]
    kind = data.draw(st.sampled_from(["value", "value", "near", "delete", "add", "other", "order"]))
    if kind == "value":
        holder[last] = data.draw(VALUES)
    elif kind == "near" and type(holder[last]) in (int, float):
        holder[last] += data.draw(st.sampled_from([-256, -16, -1, 1, 16, 256, 1 << 20]))
    elif kind == "delete":
        del holder[last]
    elif kind == "add" and isinstance(holder, dict):
        holder[data.draw(st.sampled_from(["extra", "buffer", "groups", "residual", "table"]))] = data.draw(VALUES)
    elif kind == "other":
        same = [w for w in every if w[-1] == last and len(w) == len(way)]
        source = program
        for key in data.draw(st.sampled_from(same)):
            source = source[key]
        holder[last] = copy.deepcopy(source)
    elif kind == "order" and isinstance(holder, list):
        other = data.draw(st.integers(0, len(holder) - 1))
        holder[last], holder[other] = holder[other], holder[last]


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


@pytest.mark.parametrize("name", BASES)
@bounded
@given(st.data())
def test_edited_programs(name: str, data: st.DataObject) -> None:
    """Refused, or the golden check finds the same answer (a name, a bound that nothing reaches)."""
    program = json.loads(base(name).metadata["program"])
    for _ in range(data.draw(st.sampled_from([1, 1, 1, 2]))):
        change(data, program)
    verdict(Parts(base(name).tensors, {**base(name).metadata, "program": json.dumps(program)}))


@pytest.mark.parametrize("name", BASES)
@bounded
@given(st.data())
def test_edited_constants(name: str, data: st.DataObject) -> None:
    tensors = dict(base(name).tensors)
    names = st.sampled_from(sorted(tensors))
    a, b = data.draw(names), data.draw(names)
    value = tensors[a]
    kind = data.draw(st.sampled_from(["drop", "swap", "type", "shape", "cut", "splice", "number"]))
    if kind == "drop":
        del tensors[a]
    elif kind == "swap":
        tensors[a], tensors[b] = tensors[b], tensors[a]
    elif kind == "type":
        with np.errstate(all="ignore"):
            tensors[a] = value.astype(data.draw(st.sampled_from(["int8", "uint8", "int32", "int64", "float32"])))
    elif kind == "shape":
        tensors[a] = value.reshape(-1) if value.ndim != 1 else value[None]
    elif kind == "cut":
        tensors[a] = value[:-1]
    elif kind == "splice":
        half = value.size // 2
        with np.errstate(all="ignore"):
            tail = np.resize(tensors[b], value.size - half).astype(value.dtype)
        tensors[a] = np.concatenate([value.reshape(-1)[:half], tail]).reshape(value.shape)
    elif value.size:
        tensors[a] = value.copy()
        tensors[a].reshape(-1)[data.draw(st.integers(0, value.size - 1))] = data.draw(st.sampled_from([0, 1, 100]))
    same = tensors.keys() == base(name).tensors.keys() and all(
        np.array_equal(tensors[n], v) and tensors[n].dtype == v.dtype for n, v in base(name).tensors.items())
    said = verdict(Parts(tensors, base(name).metadata))
    if kind in ("drop", "type", "cut") and not same:         # another shape may broadcast to the same
        assert said != "runs" and (a in said or kind != "drop"), said
