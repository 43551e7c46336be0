"""Joules and watts beside the time model's predictions: for a board's modes, and for each clock of one.

Called by `prediction.py` and scripts/bench_energy. Times and bytes are kernels/perf's, watts the board's power model's
(power/cost.py): a model's figures, and every text says so. The clock tables are those of the simulated boards; a real
board's depends on its device tree, and the governor reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..kernels.ir.program import Program
from ..kernels.perf.device import SMS_PER_TPC, Device
from ..kernels.perf.model import Costs, costs
from ..power.board import BoardFacts
from ..power.cost import InferenceCost, Running, inference_cost
from ..power.model import PowerModel
from ..power.plant.modules import MODULES


def clocks_hz(device: Device) -> list[int]:
    """The GPU clocks that the board's mode allows, ascending; only the mode's cap for a board that is not simulated."""
    module = MODULES.get(device.board)
    below = [] if module is None else [hz for hz in module.gpu_table_hz if hz < device.gpu_hz]
    return [*below, device.gpu_hz]


def cost_of(found: Costs, batch: int, board: Mapping[str, Any], facts: BoardFacts) -> InferenceCost:
    """Of a program on `found.device`. `board`: the file that `facts` was read from."""
    device, compute = found.device, board["compute"]
    top = replace(device, emc_hz=compute["emc_top_hz"])
    sms = compute["tpc_mask"].bit_count() * SMS_PER_TPC
    running = Running(device.gpu_hz, device.sms / sms, _cpu_share(device, facts), top.dram_bytes_per_ns)
    moved = sum(step.dram_ns for step in found.steps) * device.dram_bytes_per_ns
    return inference_cost(facts.model, running, found.ns, batch, moved)


def by_clock(program: Program, device: Device, board: Mapping[str, Any], facts: BoardFacts,
             clocks: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each clock."""
    rows = []
    for hz in clocks:
        found = costs(program, device.at(gpu_hz=hz))
        rows.append({"gpu_mhz": hz / 1e6, "us": round(found.ns / 1000, 2),
                     **told(cost_of(found, program.batch, board, facts))})
    return rows


def told(cost: InferenceCost) -> dict[str, float]:
    """As in JSON."""
    return {"board_w": round(cost.board_mw / 1000, 2), "joules": round(cost.joules, 6),
            "joules_above_idle": round(cost.joules_above_idle, 6), "gb_per_s": round(cost.gb_per_s, 1)}


def _cpu_share(device: Device, facts: BoardFacts) -> float:
    """What the CPUs of the mode draw of what they can."""
    module, mode = MODULES.get(facts.name), facts.mode(device.mode)
    if module is None or mode is None or mode.cpu_max_khz is None:
        return 1.0
    top = module.cpu_table_khz[-1]
    return PowerModel.cpu_share(min(mode.cpu_max_khz, top), top)
