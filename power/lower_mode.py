"""Which live mode of nvpmodel would hold a budget that the lowest clocks do not hold at full load. Pure.

Called by governor.py; the mode is named in the reason and in the status, and entered by whoever may (`orind power
mode`, the root helper), never from here. Invariant: only modes that need no reboot (the same TPC mask) and cap nothing
higher than the active one. What a lower memory clock saves is not known and counts as nothing, so most boards have
none: a mode caps little that the governor does not cap itself, only cores that it takes offline.
"""

from __future__ import annotations

from .board import BoardFacts, Mode
from .model import PowerModel

_UNCAPPED = 10**12


def mode_that_holds(facts: BoardFacts, active_id: int | None, budget_mw: float, needed_mw: float, cpu_khz: int,
                    cpu_top_khz: int) -> Mode | None:
    """The one that leaves the most power, or None. `needed_mw`: full load at the lowest GPU clock with the CPUs at
    `cpu_khz`, as learned."""
    active = None if active_id is None else facts.mode(active_id)
    if active is None or not cpu_top_khz:
        return None
    best: tuple[float, Mode] | None = None
    for mode in facts.modes:
        if mode.id == active.id or mode.tpc_pg_mask != active.tpc_pg_mask or not _caps_no_higher(mode, active):
            continue
        khz = min(cpu_khz, mode.cpu_max_khz or cpu_khz)
        share = PowerModel.cpu_share(khz, cpu_top_khz) * mode.cpus / active.cpus
        needs = needed_mw - facts.model.cpu_full_mw * (PowerModel.cpu_share(cpu_khz, cpu_top_khz) - share)
        if needs <= budget_mw and (best is None or needs > best[0]):
            best = (needs, mode)
    return None if best is None else best[1]


def _caps_no_higher(mode: Mode, active: Mode) -> bool:
    pairs = ((mode.gpu_max_hz, active.gpu_max_hz), (mode.cpu_max_khz, active.cpu_max_khz),
             (mode.emc_max_hz, active.emc_max_hz))
    return mode.cpus <= active.cpus and all((own or _UNCAPPED) <= (now or _UNCAPPED) for own, now in pairs)
