"""A seeded sample of ONNX's own test cases, the PyTorch convolutions, two light networks; the table is up to date."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import light_networks  # noqa: E402  from scripts/, which the line above makes importable
import onnx_conformance as conformance  # noqa: E402

SAMPLE = 150
REFUSED = ("training mode", "mode cubic", "outside of the image", "antialias", "no whole size",
           "not supported on a tensor")


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    found: list[Any] = conformance.node_cases()
    return found


def test_a_sample_of_the_node_cases(cases: list[Any]) -> None:
    assert len(cases) > 450 and len({case.op for case in cases}) >= 90
    results = [conformance.judge(case) for case in random.Random(5).sample(cases, SAMPLE)]
    assert [(r.case.name, r.wrong) for r in results if r.wrong] == []
    odd = [r.refused for r in results if r.refused and not any(text in r.refused for text in REFUSED)]
    assert odd == []
    assert sum(r.passed for r in results) >= 0.9 * SAMPLE


def test_convolutions_from_pytorch() -> None:
    results = [conformance.judge(case) for case in conformance.pytorch_cases()]
    assert len(results) == 30
    assert [r.case.name for r in results if not r.passed] == []


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet"])
def test_light_networks(name: str) -> None:
    packaged, drawn = conformance.light_cases([name])
    for case in (packaged, drawn):
        result = conformance.judge(case)
        assert not result.refused and not result.wrong
    exchanged = onnx.ModelProto()
    exchanged.CopyFrom(drawn.model)
    last = next(node for node in reversed(exchanged.graph.node) if node.op_type in ("Conv", "Gemm"))
    weight = next(w for w in exchanged.graph.initializer if w.name == last.input[1])
    value = numpy_helper.to_array(weight).copy()
    value[:, :2] = value[:, 1::-1]
    weight.CopyFrom(numpy_helper.from_array(value, weight.name))
    other = conformance.Case(name, drawn.op, exchanged, drawn.inputs, drawn.outputs)
    assert "largest difference" in conformance.judge(other).wrong, "two exchanged channels of one layer must show"


def test_drawn_weights_are_the_same_each_time_and_all_of_them() -> None:
    first, again = (light_networks.light_network("light_squeezenet") for _ in range(2))
    assert first.drawn == again.drawn and np.array_equal(first.noise, again.noise)
    assert not any(node.op_type == "ConstantOfShape" for node in first.drawn.graph.node)
    net = onnx.helper.make_graph([onnx.helper.make_node("Tanh", ["w"], ["y"], "odd")], "net", [], [],
                                 [numpy_helper.from_array(np.ones(3, np.float32), "w")])
    with pytest.raises(ValueError, match="input 0 of Tanh 'odd'"):
        light_networks.with_drawn_weights(onnx.helper.make_model(net), np.random.default_rng(0))


def test_the_table_is_of_this_compiler(cases: list[Any]) -> None:
    """Operators and counts of docs/operators.md, so that an operator that is added gets its line."""
    text = (ROOT / "docs" / "operators.md").read_text()
    rows = dict(re.findall(r"^\| (\w+) \| (\d+) \|", text, re.M))
    assert set(rows) == {case.op for case in cases}
    assert "WRONG" not in text and "| light networks, drawn weights | 9 | 9 |" in text
    single = re.search(r"(\d+) operators, (\d+) cases of one node, (\d+) passed", text)
    assert single is not None and int(single[3]) >= 0.95 * int(single[2]) and int(single[1]) >= 55
