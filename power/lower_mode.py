"""Which live mode of nvpmodel would hold a budget that the lowest clocks do not hold at full load. Pure.

Called by governor.py; the mode is named in the reason and in the status, and entered by whoever may (`orind power
mode`, the root helper), never from here. Invariant: only modes that need no reboot (no other mask), cap nothing higher
than the active one and leave the CPUs the clock that the policy wants at least. What a lower memory clock saves is not
known and counts as nothing. The CPUs are at that clock before this is asked, so that only cores that a mode takes
offline save anything: no live mode of NVIDIA's does, one of the board's own may.
"""

from __future__ import annotations

from collections.abc import Sequence

from .board import BoardFacts, Mode
from .cpu_clock import Permitted
from .model import PowerModel
from .nvpmodel import ConfMode

_UNCAPPED = 10**12


def mode_that_holds(facts: BoardFacts, modes: Sequence[Mode | ConfMode], permitted: Permitted, budget_mw: float,
                    needed_mw: float, cpu_khz: int, cpu_min_khz: int) -> Mode | ConfMode | None:
    """The one of `modes` that leaves the most power, or None. `needed_mw`: full load at the lowest GPU clock with the
    CPUs at `cpu_khz`, as learned; `cpu_min_khz`: of the policy."""
    active = next((mode for mode in modes if mode.id == permitted.mode_id), None)
    top_khz = permitted.cpu_top_khz
    if active is None or not top_khz:
        return None
    best: tuple[float, Mode | ConfMode] | None = None
    for mode in modes:
        if mode.id == active.id or _needs_boot(mode, active) or not _caps_no_higher(mode, active):
            continue
        most_khz = mode.cpu_max_khz or _UNCAPPED
        if most_khz < cpu_min_khz:
            continue
        khz = min(cpu_khz, most_khz)
        share = PowerModel.cpu_share(khz, top_khz) * _cores(mode) / _cores(active)
        needs = needed_mw - facts.model.cpu_full_mw * (PowerModel.cpu_share(cpu_khz, top_khz) - share)
        if needs <= budget_mw and (best is None or needs > best[0]):
            best = (needs, mode)
    return None if best is None else best[1]


def _cores(mode: Mode | ConfMode) -> int:
    return mode.cpus if isinstance(mode, Mode) else len(mode.cpus)


def _needs_boot(mode: Mode | ConfMode, active: Mode | ConfMode) -> bool:
    """A mask that the mode does not write (None) stays as it is."""
    masks = [(mode.tpc_pg_mask, active.tpc_pg_mask)]
    if isinstance(mode, ConfMode) and isinstance(active, ConfMode):
        masks.append((mode.fbp_pg_mask, active.fbp_pg_mask))
    return any(own is not None and own != live for own, live in masks)


def _caps_no_higher(mode: Mode | ConfMode, active: Mode | ConfMode) -> bool:
    pairs = ((mode.gpu_max_hz, active.gpu_max_hz), (mode.cpu_max_khz, active.cpu_max_khz),
             (mode.emc_max_hz, active.emc_max_hz))
    return _cores(mode) <= _cores(active) and all((own or _UNCAPPED) <= (now or _UNCAPPED) for own, now in pairs)
