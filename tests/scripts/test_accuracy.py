"""What the shipped detector is worth in orind's own executor: mAP50 on unseen parts, FP32 and INT8, as they serve."""

from __future__ import annotations

from pathlib import Path

import built_plans
import evaluate_parts
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = 400
LEAST, INT8_LOSS_MAX = 0.90, 0.005


def measured(precision: str) -> float:
    outputs, truths = evaluate_parts.plan_outputs_and_truths(
        built_plans.part_plan(precision), PARTS, evaluate_parts.FIRST_SEED
    )
    found = [
        evaluate_parts.decode_and_suppress(o, evaluate_parts.SCORE_FLOOR, evaluate_parts.IOU_SUPPRESS) for o in outputs
    ]
    return float(evaluate_parts.mean_average_precision50(found, truths))


@pytest.fixture(scope="module")
def fp32() -> float:
    return measured("fp32")


def test_fp32_finds_what_the_card_says(fp32: float) -> None:
    assert fp32 >= LEAST
    # the model card's figure, which ONNX Runtime measured
    assert fp32 == pytest.approx(0.9829, abs=0.001)


def test_int8_costs_less_than_half_a_hundredth(fp32: float) -> None:
    assert abs(measured("int8") - fp32) <= INT8_LOSS_MAX
