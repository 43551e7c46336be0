"""Every step has a name that a person who knows ONNX knows."""

from __future__ import annotations

import onnx.defs
import pytest

from orind.kernels.cpu.flat import BINARY as COMPUTED
from orind.kernels.ir.flat_steps import Binary, Reduce, Unary, WindowPool
from orind.kernels.ir.onnx_names import BINARY, NAMES, onnx_name
from orind.kernels.ir.step import Step
from orind.kernels.ir.steps import STEPS, ActivationF16, ActivationF32, AddF16, AddF32, AddI8, Copy
from orind.kernels.passes import lower_flat

MATCHED = (ActivationF32, AddF32, AddI8, Binary, Copy, Reduce, Unary, WindowPool)
OURS = {"depthwise Conv", "Transpose to NCHW", "Transpose to NHWC", "activation"}
BY_THEIR_FIELDS: tuple[tuple[Step, str], ...] = (
    (AddI8("", "a", "b", "y", 1.0, 1.0), "Add"),
    (AddI8("", "a", "b", "y", 1.0, -1.0), "Sub"),
    (AddF16("", "a", "b", "y"), "Add"),
    (AddF16("", "a", "b", "y", sign=-1.0), "Sub"),
    (ActivationF16("", "x", "y", "Sigmoid"), "Sigmoid"),
    (ActivationF16("", "x", "y", "", low=0.0), "Clip"),
    (Copy("", "x", "y", ()), "Concat"),
    (Copy("", "x", "y", (), clear=True), "Pad"),
    (Unary("", "Softplus", "x", "y"), "Softplus"),
    (Unary("", "Boolean", "x", "y"), "Cast"),
    (Reduce("", "mean", "x", "y", ()), "ReduceMean"),
    (WindowPool("", "x", "y", (), (), (), ()), "MaxPool"),
    (WindowPool("", "x", "y", (), (), (), (), "m"), "AveragePool"),
    (Binary("", "greater_equal", "a", "b", "y"), "GreaterOrEqual"),
    (Binary("", "of a damaged plan", "a", "b", "y"), "of a damaged plan"),
)


@pytest.mark.parametrize(("step", "name"), BY_THEIR_FIELDS)
def test_by_what_it_does(step: Step, name: str) -> None:
    assert onnx_name(step) == name


def test_every_kind_of_step_has_a_name_of_onnx() -> None:
    by_fields = {kind for kind, cls in STEPS.items() if issubclass(cls, MATCHED)}
    assert set(NAMES) | by_fields == set(STEPS)
    assert {name for name in (*NAMES.values(), *BINARY.values()) if not onnx.defs.has(name)} == OURS
    assert {BINARY[ours]: ours for ours in BINARY if ours != "fmod"} == lower_flat.BINARY
    assert set(COMPUTED) | {"prelu"} == set(BINARY)
