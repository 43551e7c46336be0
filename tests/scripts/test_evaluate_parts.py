"""Average precision at IoU 0.5 against values worked out by hand, and the decoding that the measurement rests on."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "configs" / "models" / "part-inspect.onnx"


def load(name: str) -> ModuleType:
    """A script of this repository as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


evaluate_parts = load("evaluate_parts")
NOTHING_FOUND = np.zeros((0, 6))
NOTHING_THERE = np.zeros((0, 5))
# two 10 x 10 truths side by side
TWO = np.array([[0, 0, 0, 10, 10], [0, 20, 0, 30, 10]], np.float32)


def found(*rows: tuple[float, float, float, float, float, float]) -> np.ndarray:
    return np.array(rows, np.float32).reshape(-1, 6)


def test_all_found_and_nothing_else_is_one() -> None:
    rows = found((0, 0, 10, 10, 0.9, 0), (20, 0, 30, 10, 0.8, 0))
    assert evaluate_parts.average_precision50([rows], [TWO]) == {0: 1.0}


def test_right_wrong_right_is_five_sixths() -> None:
    # precision 1/1, 1/2, 2/3 at recall 1/2, 1/2, 1: area 0.5 * 1 + 0.5 * 2/3
    rows = found((0, 0, 10, 10, 0.9, 0), (50, 50, 60, 60, 0.8, 0), (20, 0, 30, 10, 0.7, 0))
    assert evaluate_parts.average_precision50([rows], [TWO])[0] == pytest.approx(5 / 6)


def test_precision_is_made_non_increasing() -> None:
    # wrong, right, right: precision 0, 1/2, 2/3; at both recalls the best precision still to come is 2/3
    rows = found((50, 50, 60, 60, 0.9, 0), (0, 0, 10, 10, 0.8, 0), (20, 0, 30, 10, 0.7, 0))
    assert evaluate_parts.average_precision50([rows], [TWO])[0] == pytest.approx(2 / 3)


def test_what_is_missed_counts() -> None:
    assert evaluate_parts.average_precision50([found((0, 0, 10, 10, 0.9, 0))], [TWO])[0] == pytest.approx(0.5)
    assert evaluate_parts.average_precision50([NOTHING_FOUND], [TWO])[0] == 0.0


def test_a_truth_is_found_once() -> None:
    # the second detection of the same truth is wrong: precision 1, 1/2, 2/3
    rows = found((0, 0, 10, 10, 0.9, 0), (0, 0, 10, 9, 0.8, 0), (20, 0, 30, 10, 0.7, 0))
    assert evaluate_parts.average_precision50([rows], [TWO])[0] == pytest.approx(5 / 6)


def test_a_detection_takes_the_best_truth_that_is_free() -> None:
    # truths overlap; the first detection covers the second truth exactly, the second reaches IoU 6/10 with the first
    truths = np.array([[0, 0, 0, 10, 10], [0, 4, 0, 14, 10]])
    rows = found((4, 0, 14, 10, 0.9, 0), (0, 0, 6, 10, 0.8, 0))
    assert evaluate_parts.average_precision50([rows], [truths]) == {0: 1.0}


def test_an_overlap_of_exactly_a_half_counts_and_less_does_not() -> None:
    truth = np.array([[0, 0, 0, 10, 10]])
    assert evaluate_parts.average_precision50([found((0, 0, 10, 5, 0.9, 0))], [truth]) == {0: 1.0}
    assert evaluate_parts.average_precision50([found((0, 0, 10, 4.9, 0.9, 0))], [truth]) == {0: 0.0}


def test_the_right_box_in_another_picture_or_class_is_wrong() -> None:
    rows = found((0, 0, 10, 10, 0.9, 0))
    truth = np.array([[0, 0, 0, 10, 10]])
    assert evaluate_parts.average_precision50([rows, NOTHING_FOUND], [NOTHING_THERE, truth]) == {0: 0.0}
    assert evaluate_parts.average_precision50([found((0, 0, 10, 10, 0.9, 1))], [truth]) == {0: 0.0}


def test_pictures_are_ranked_together_by_score() -> None:
    # first picture: wrong at 0.95; second: right at 0.9; together precision 0, 1/2 at recall 1
    truth = np.array([[0, 0, 0, 10, 10]])
    rows = [found((50, 50, 60, 60, 0.95, 0)), found((0, 0, 10, 10, 0.9, 0))]
    assert evaluate_parts.average_precision50(rows, [NOTHING_THERE, truth])[0] == pytest.approx(0.5)


def test_the_mean_is_over_the_classes_that_have_truths() -> None:
    truths = np.array([[0, 0, 0, 10, 10], [2, 20, 0, 30, 10]])
    rows = found((0, 0, 10, 10, 0.9, 0), (40, 0, 50, 10, 0.9, 1))
    assert evaluate_parts.average_precision50([rows], [truths]) == {0: 1.0, 2: 0.0}
    assert evaluate_parts.mean_average_precision50([rows], [truths]) == pytest.approx(0.5)


def test_nothing_to_find_has_no_precision() -> None:
    with pytest.raises(ValueError, match="no truth in any picture"):
        evaluate_parts.mean_average_precision50([NOTHING_FOUND], [NOTHING_THERE])


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="1 pictures with detections, but 2 with truths"):
        evaluate_parts.average_precision50([NOTHING_FOUND], [TWO, TWO])
    with pytest.raises(ValueError, match=r"detections must be \(n, 6\), not \(0, 5\)"):
        evaluate_parts.average_precision50([NOTHING_THERE], [TWO])
    with pytest.raises(ValueError, match=r"truths must be \(n, 5\), not \(0, 6\)"):
        evaluate_parts.average_precision50([NOTHING_FOUND], [NOTHING_FOUND])


def test_counting_at_one_threshold() -> None:
    # first picture: one right, one wrong, one missed; second: all right; third: nothing there, nothing said
    second = np.array([[1, 0, 0, 10, 10]])
    rows = [found((0, 0, 10, 10, 0.9, 0), (50, 50, 60, 60, 0.8, 3)), found((0, 0, 10, 9, 0.5, 1)), NOTHING_FOUND]
    count = evaluate_parts.count_right(rows, [TWO, second, NOTHING_THERE])
    assert (count.right, count.wrong, count.missed, count.faultless) == (2, 1, 1, 2)


def test_decoding_gives_corners_and_suppresses_within_a_class() -> None:
    # columns are anchors: cx, cy, w, h, then two classes
    output = np.array([[10, 11, 10, 100], [20, 20, 20, 50], [8, 8, 8, 20], [4, 4, 4, 10],
                       [0.9, 0.8, 0.001, 0.3], [0.1, 0.001, 0.7, 0.001]])
    rows = evaluate_parts.decode_and_suppress(output, 0.05, 0.5)
    expected = [(6, 18, 14, 22, 0.9, 0), (6, 18, 14, 22, 0.7, 1), (90, 45, 110, 55, 0.3, 0)]
    assert np.allclose(rows, expected)


def test_decoding_nothing_gives_no_rows() -> None:
    assert evaluate_parts.decode_and_suppress(np.zeros((8, 5)), 0.05, 0.5).shape == (0, 6)


def test_empty_boxes_overlap_nothing() -> None:
    others = np.array([[0.0, 0, 0, 0], [0, 0, 2, 2]])
    assert evaluate_parts.intersection_over_union(np.zeros(4), others).tolist() == [0.0, 0.0]


def test_the_shipped_model_finds_the_defects_of_unseen_parts(monkeypatch: pytest.MonkeyPatch,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    """A short form of the measurement in the model card (which takes 400 parts)."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    assert evaluate_parts.main(["--model", str(MODEL), "--count", "40", "--at-least", "0.9"]) == 0
    assert "on 40 parts with" in capsys.readouterr().out
    assert evaluate_parts.main(["--model", str(MODEL), "--count", "20", "--at-least", "1.01"]) == 1


def test_parts_without_defects_cannot_be_measured(monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    with pytest.raises(SystemExit) as stop:
        evaluate_parts.main(["--model", str(MODEL), "--count", "1", "--seed", "8"])
    assert stop.value.code == 2
    assert "these parts have no defects at all: raise --count" in capsys.readouterr().err


def test_a_missing_model_is_a_wrong_argument(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        evaluate_parts.main(["--model", str(tmp_path / "absent.onnx")])
    assert stop.value.code == 2
    assert "absent.onnx is not a file" in capsys.readouterr().err
