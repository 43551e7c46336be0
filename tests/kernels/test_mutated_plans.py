"""Mutated plans: bytes hit, cut and moved are always refused; with sums made right again, refused or equally right.

`ORIND_EXAMPLES=20000 pytest tests/kernels/test_mutated_plans.py` looks longer. Never a traceback, a hang, or a read
out of bounds: whatever is not an error of ours fails the test.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants import BASES, Parts, base, verdict

from orind.kernels.plan.file import PlanFile, write_plan
from orind.kernels.plan.layout import PlanError

EXAMPLES = int(os.environ.get("ORIND_EXAMPLES", "40"))
bounded = settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES < 1000, database=None)


@pytest.mark.parametrize("name", BASES)
def test_what_is_not_mutated_runs(name: str, tmp_path: Path) -> None:
    parts = base(name)
    write_plan(tmp_path / "whole.plan", parts.tensors, parts.metadata)
    with PlanFile.open_path(tmp_path / "whole.plan") as plan:
        plan.verify()
        assert verdict(plan) == "runs"


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
