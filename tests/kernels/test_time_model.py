"""The time model: near published TensorRT figures that it was not fitted to, above every roofline, and well-behaved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compiled import fp32, int8
from models import detector_onnx
from published_nets import Layer, program_of, resnet50, yolov5s
from test_device import BOARDS

from orind.kernels.ir.steps import ActivationF32, ConvI8
from orind.kernels.perf.device import Device, mode_names
from orind.kernels.perf.model import cost, costs
from orind.kernels.perf.work import Work, work_of

AGX = Device.from_dict(BOARDS["agx-orin"], "MAXN")
# MLPerf's Orin NX ran JetPack 5, whose top clock is 918 MHz
NX = Device.from_dict(BOARDS["orin-nx"], "MAXN_SUPER").at(gpu_hz=918_000_000)
MAXQ = AGX.at(gpu_hz=930_750_000)
FITTED = ((AGX, 0.630), (MAXQ, 0.912 * 0.630 / 0.692))


def test_the_layer_lists_are_the_published_networks() -> None:
    """Multiply-accumulates and weights as published: 4.1 G and 25.5 M; 16.5 GFLOP and 7.2 M."""
    for layers, macs, weights in ((resnet50(), 4.1e9, 25.5e6), (yolov5s(640, True), 8.25e9, 7.2e6)):
        program = program_of(layers)
        works = [work_of(step, program) for step in program.steps]
        assert sum(w.macs for w in works) == pytest.approx(macs, rel=0.03)      # channels padded to 16
        assert sum(w.weight_bytes for w in works) == pytest.approx(weights, rel=0.01)
    convolutions = [x for x in yolov5s(640, False) if x.kind == "conv"]
    assert len(convolutions) == 60 and sum(x.activation == "silu" for x in convolutions) == 57
    assert sum(x.kind == "conv" for x in resnet50()) == 54


@pytest.mark.parametrize(("device", "published_ms"), FITTED)
def test_the_points_that_the_constants_were_fitted_to(device: Device, published_ms: float) -> None:
    """ResNet50, batch 1, TensorRT. Two constants, rounded: within 6 %."""
    assert costs(program_of(resnet50()), device).ns / 1e6 == pytest.approx(published_ms, rel=0.06)


def test_resnet50_on_orin_nx_is_predicted() -> None:
    """MLPerf v3.0 single stream: 1.085 ms; not fitted."""
    assert costs(program_of(resnet50()), NX).ns / 1e6 == pytest.approx(1.085, rel=0.10)


def test_yolov5s_672_with_its_silu_apart_is_predicted() -> None:
    """1.82 ms on an Orin with 16 SMs at 1275 MHz (NVIDIA-AI-IOT/cuDLA-samples, TensorRT 8.6); not fitted."""
    program = program_of(yolov5s(672, False), fused=False)
    apart = costs(program, AGX.at(gpu_hz=1_275_000_000))
    assert apart.ns / 1e6 == pytest.approx(1.82, rel=0.10)
    fused = costs(program_of(yolov5s(672, False)), AGX.at(gpu_hz=1_275_000_000))
    assert apart.ns / fused.ns > 1.7, "an activation of its own costs what the published figure shows"


def test_the_predictions_do_not_hang_on_how_the_fixed_cost_is_split() -> None:
    """Constants that meet both fitted points exactly (two unknowns, two points) predict the others within 10 % too."""
    program = program_of(resnet50())
    count = len(program.steps)
    (a, ms_a), (b, ms_b) = FITTED
    body = {d: costs(program, d).ns - count * d.launch_ns for d in (a, b)}
    need = {a: (ms_a * 1e6 - body[a]) / count, b: (ms_b * 1e6 - body[b]) / count}
    cycles = (need[b] - need[a]) / (1e9 / b.gpu_hz - 1e9 / a.gpu_hz)
    fixed = need[a] - a.cycles_ns(cycles)
    for device, layers, fused, published in ((NX, program, True, 1.085), (AGX.at(gpu_hz=1_275_000_000), program_of(
            yolov5s(672, False), fused=False), False, 1.82)):
        exact = replace(device, fixed_ns=fixed, fixed_cycles=cycles)
        assert costs(layers, exact).ns / 1e6 == pytest.approx(published, rel=0.10), fused


def test_a_large_layer_reaches_what_tensorrt_reaches() -> None:
    """3x3, 128 to 128, 72x120, batch 10: 375 us on AGX Orin."""
    pixels = 10 * 72 * 120
    large = Work("large", "matrix", "int8", pixels * 128, 9 * 128 * 128, pixels * 128, pixels * 128, 7, pixels, 128,
                 1152, 1, 3)
    assert cost(large, AGX).ns / 1e3 == pytest.approx(375, rel=0.06)


def test_an_unfused_activation_is_a_launch_and_two_passes() -> None:
    program = program_of(yolov5s(640, True), fused=False)
    step = next(s for s in program.steps if isinstance(s, ActivationF32))
    work = work_of(step, program)
    assert (work.read_bytes, work.write_bytes) == (2 * 320 * 320 * 32, 320 * 320 * 32)
    assert cost(work, AGX).ns == pytest.approx(AGX.launch_ns + 3 * 320 * 320 * 32 / AGX.dram_bytes_per_ns)


@pytest.mark.parametrize("layers", [resnet50(), yolov5s(640, True)], ids=["resnet50", "yolov5s"])
def test_no_prediction_beats_the_roofline_and_better_hardware_is_never_slower(layers: list[Layer]) -> None:
    program = program_of(layers)
    works = [work_of(step, program) for step in program.steps]
    devices = [Device.from_dict(BOARDS["agx-orin"], m) for m in ("MODE_15W", "MODE_30W", "MODE_50W", "MAXN")]
    tables = [costs(program, device) for device in devices]
    for device, table in zip(devices, tables, strict=True):
        for work, step in zip(works, table.steps, strict=True):
            peak = work.macs / (2048 * device.sms) * 1e9 / device.gpu_hz
            cold = work.weight_bytes / (device.dram_pin_bytes_per_s / 1e9)
            assert step.low_ns <= step.ns <= step.high_ns and step.ns > max(peak, cold) + device.launch_ns * 0.999
            assert step.sms <= device.sms
        assert table.low_ns < table.ns < table.high_ns < 1.25 * table.ns
    assert [t.ns for t in tables] == sorted((t.ns for t in tables), reverse=True)


def test_yolov5s_640_on_each_module_with_its_band() -> None:
    """Printed (pytest -s), as a model's figures. 0.81, 1.91 and 2.85 ms: an independent model of the same kernels."""
    program = program_of(yolov5s(640, True))
    found = {}
    for name, board in BOARDS.items():
        for mode in mode_names(board):
            table = costs(program, Device.from_dict(board, mode))
            low, middle, high = table.low_ns / 1e6, table.ns / 1e6, table.high_ns / 1e6
            print(f"YOLOv5s-640 INT8 on {name}:{mode}: model {middle:.2f} ms, band {low:.2f} to {high:.2f} ms")
            found[name, mode] = middle
            assert 0.9 * middle < low < middle < high < 1.25 * middle
    assert found["agx-orin", "MAXN"] == pytest.approx(0.81, rel=0.1)
    assert found["agx-orin", "MODE_30W"] == pytest.approx(1.91, rel=0.1)
    assert found["orin-nx", "25W"] == pytest.approx(2.85, rel=0.1)
    assert found["orin-nx", "25W"] > found["orin-nx", "40W"], "the name of a mode is not its speed"


def test_every_step_of_a_real_program_has_a_cost() -> None:
    """Compiled at both precisions: floats cost more, depthwise and pools are no matrix products, nothing is free."""
    model = detector_onnx(64)
    floats, integers = fp32(model)[0].program, int8(model)[0].program
    float_costs, integer_costs = costs(floats, AGX), costs(integers, AGX)
    assert [s.name for s in integer_costs.steps] == [s.name for s in integers.steps]
    assert all(s.ns > AGX.launch_ns for s in (*float_costs.steps, *integer_costs.steps))
    assert float_costs.ns > integer_costs.ns
    convolutions = [s for s in integers.steps if type(s) is ConvI8]
    assert {work_of(s, integers).kind for s in convolutions} == {"matrix"}
    assert {work_of(s, integers).kind for s in integers.steps if type(s).__name__ == "MaxPool"} == {"window"}
    batch = costs(int8(model, batch=4)[0].program, AGX)
    assert integer_costs.ns < batch.ns < 4 * integer_costs.ns
