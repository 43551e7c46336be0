"""A seeded sample of ONNX's own test cases, the PyTorch convolutions, two light networks; the table is up to date."""

from __future__ import annotations

import importlib.util
import random
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = 150
REFUSED = ("training mode", "mode cubic", "outside of the image", "antialias", "no whole size",
           "not supported on a tensor")


def load() -> ModuleType:
    path = ROOT / "scripts" / "onnx_conformance.py"
    spec = importlib.util.spec_from_file_location("onnx_conformance", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["onnx_conformance"] = module
    spec.loader.exec_module(module)
    return module


conformance: Any = load()


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
    case = next(case for case in conformance.light_cases() if case.name == name)
    result = conformance.judge(case)
    assert not result.refused and not result.wrong


def test_the_table_is_of_this_compiler(cases: list[Any]) -> None:
    """Operators and counts of docs/operators.md, so that an operator that is added gets its line."""
    text = (ROOT / "docs" / "operators.md").read_text()
    rows = dict(re.findall(r"^\| (\w+) \| (\d+) \|", text, re.M))
    assert set(rows) == {case.op for case in cases}
    assert "WRONG" not in text
    single = re.search(r"(\d+) operators, (\d+) cases of one node, (\d+) passed", text)
    assert single is not None and int(single[3]) >= 0.95 * int(single[2]) and int(single[1]) >= 55
