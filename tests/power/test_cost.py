"""What an inference costs: closed form, the published stress rows, and where it must go with clock and traffic."""

from __future__ import annotations

import pytest
from closed_loop import facts_of

from orind.power.cost import Running, inference_cost
from orind.power.model import PowerModel

MODEL = PowerModel(reference_hz=1_000_000_000, idle_mw=5_000, gpu_full_mw=8_000, gpu_exponent=2.0, cpu_full_mw=1_000,
                   memory_full_mw=2_000, leak_per_c=0.01, leak_reference_c=60)


def test_watts_joules_and_bandwidth_in_closed_form() -> None:
    """Half the clock, half the SMs, half the CPU, a quarter of the traffic: 5 + 8/4/2 + 0.5 + 0.5 = 7 W for 2 ms."""
    cost = inference_cost(MODEL, Running(5e8, 0.5, 0.5, 100.0), 2e6, 4, 50e6)
    assert cost.board_mw == pytest.approx(7_000) and cost.gb_per_s == pytest.approx(25)
    assert cost.joules == pytest.approx(7 * 2e-3 / 4) and cost.joules_above_idle == pytest.approx(2 * 2e-3 / 4)


def test_memory_draws_no_more_than_at_its_most() -> None:
    full = [inference_cost(MODEL, Running(1e9, 1.0, 1.0, 100.0), 1e6, 1, moved).board_mw for moved in (1e8, 5e8)]
    assert full == [pytest.approx(16_000)] * 2


# forum 323456, AGX developer kit under stress: W of VDD_GPU_SOC, of which 3.4 W are idle (plant/constants.py)
@pytest.mark.parametrize(("gpu_mhz", "tpcs", "rail_w"), [(1300.5, 8, 40.4), (816, 8, 18.4), (612, 4, 7.6),
                                                         (408, 3, 5.2)])
def test_the_gpus_part_meets_the_published_stress_rows(gpu_mhz: float, tpcs: int, rail_w: float) -> None:
    model = facts_of("agx-orin").model
    cost = inference_cost(model, Running(gpu_mhz * 1e6, tpcs / 8, 0.0, 1.0), 1e6, 1, 0.0)
    assert 3.4 + (cost.board_mw - cost.idle_mw) / 1000 == pytest.approx(rail_w, rel=0.1)
