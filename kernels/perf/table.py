"""The prediction for a program on a device as plain data: for a plan's report and for `orind inspect --board`.

Callers: `kernels/build.py` and the daemon's command line. It always says that it is a model's, and gives its band.
"""

from __future__ import annotations

from typing import Any

from ..ir.program import Program
from .device import Device
from .model import costs
from .schedule import schedule

LABEL = "a model's prediction, not a measurement"


def predict(program: Program, device: Device) -> dict[str, Any]:
    """Times in microseconds: in all (one kernel after the other, with its band), on the streams chosen, and by layer.

    A layer's `earliest_us`, `latest_finish_us` and `critical` belong to the schedule on `streams` streams.
    """
    table = costs(program, device)
    plan = schedule(program, table)
    slow, fast = device.band()
    layers = [{"name": step.name, "us": _us(step.ns), "low_us": _us(step.low_ns), "high_us": _us(step.high_ns),
               "bound": step.bound, "tile": step.tile, "sms": step.sms, "stream": row.stream,
               "start_us": _us(row.start_ns), "earliest_us": _us(row.earliest_ns),
               "latest_finish_us": _us(row.latest_finish_ns), "critical": row.critical, "waits": list(row.waits)}
              for step, row in zip(table.steps, plan.rows, strict=True)]
    return {"what": LABEL, "board": device.board, "mode": device.mode, "batch": program.batch, "sms": device.sms,
            "gpu_mhz": device.gpu_hz / 1e6, "dram_gb_s": round(device.dram_pin_bytes_per_s / 1e9, 1),
            "band": {"l2_bytes_per_clock": [slow.l2_bytes_per_clock, fast.l2_bytes_per_clock],
                     "dram_share": [slow.dram_share, fast.dram_share]},
            "launch_us": _us(device.launch_ns), "us": _us(table.ns), "low_us": _us(table.low_ns),
            "high_us": _us(table.high_ns), "streams": plan.streams, "makespan_us": _us(plan.makespan_ns),
            "layers": layers}


def _us(ns: float) -> float:
    return round(ns / 1000, 2)
