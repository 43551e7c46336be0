"""Rows to words: labels, rounding, and what is no answer."""

from __future__ import annotations

import numpy as np
import pytest

from orind.daemon.answers import Labels, describe


def test_detections() -> None:
    rows = np.array([[1.234, 2, 3, 4.999, 0.98765, 1], [0, 0, 1, 1, 0.5, 7]], np.float32)
    said = describe(Labels("detect", ("ok", "scratch")), rows)
    assert said["objects"] == [
        {"label": "scratch", "score": 0.9876, "box": [1.23, 2.0, 3.0, 5.0]},
        {"label": "class 7", "score": 0.5, "box": [0.0, 0.0, 1.0, 1.0]},
    ]
    assert said["boxes"] is rows


def test_nothing_seen_is_an_answer() -> None:
    assert describe(Labels("detect", ("a",)), np.empty((0, 6), np.float32))["objects"] == []


def test_classes() -> None:
    rows = np.array([[1, 0.75], [0, 0.25]], np.float32)
    said = describe(Labels("classify", ("cat", "dog")), rows)
    assert said == {"classes": [{"label": "dog", "score": 0.75}, {"label": "cat", "score": 0.25}]}


def test_tensor() -> None:
    said = describe(Labels("tensor", (), (2, 3)), np.arange(6, dtype=np.float32).reshape(6, 1))
    assert said["tensor"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("task", ["detect", "classify", "tensor"])
def test_what_is_not_finite_is_no_answer(task: str, value: float) -> None:
    rows = np.zeros((2, 6), np.float32)
    rows[1, 4 if task == "detect" else 1] = value
    with pytest.raises(ValueError, match="not finite"):
        describe(Labels(task, ("a",), (12,)), rows)


def test_too_few_numbers_are_no_tensor() -> None:
    with pytest.raises(ValueError, match="reshape"):
        describe(Labels("tensor", (), (2, 3)), np.zeros((5, 1), np.float32))
