"""What the time model must know of a GPU: a module in a power mode, with its clocks, memory and fixed costs.

Made from a mapping of configs/boards/*.yaml, which the daemon reads (kernels know no YAML). Nothing is measured here:
each figure names its source, and `band` says how far the two least known ones may be off. MLPerf: NVIDIA's submissions
in mlcommons/inference_results_v2.0 and v3.0.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

# GA10B: two SMs a TPC. An AGX Orin reports 16 SMs with 8 TPCs, an Orin NX 8, and 4 with mask 252 (deviceQuery logs).
SMS_PER_TPC = 2
# LPDDR5: two transfers a clock; 3199 MHz on 256 bits are the 204.8 GB/s of the data sheet.
TRANSFERS_PER_CLOCK = 2
# key of `compute` -> (least, largest) sound value
KEYS = {"tpc_mask": (1, 0xFFFF), "gpu_top_hz": (100_000_000, 3_000_000_000), "emc_top_hz": (100_000_000, 6_000_000_000),
        "dram_bits": (16, 1024), "l2_bytes": (1 << 18, 1 << 28)}
MODE_KEYS = {"tpc_pg_mask": (0, 0xFFFF), "gpu_max_hz": KEYS["gpu_top_hz"], "emc_max_hz": KEYS["emc_top_hz"]}


class DeviceError(ValueError):
    """Board facts that do not describe a GPU, or an unknown mode. `problems`: one line a mistake."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the model sees it. `sms` is what the driver would report in this mode; bandwidths are derived.

    `l2_bytes_per_clock`: L2 to one SM; NVIDIA publishes none. 32 is what a 128x128 tile needs at full rate, an A100
    gives about 47. `dram_share`: 152.8 of 204.8 GB/s were read on an AGX Orin (infinigence/ApxInf #74).
    `fixed_ns` + `fixed_cycles`: gap, fill and drain of a kernel inside a CUDA graph. With them TensorRT's ResNet50 at
    batch 1 on AGX Orin comes out within 6 %, at 1300.5 MHz (0.630 ms, MLPerf v3.0) and at 930.75 MHz (MaxQ of v2.0,
    brought to the TensorRT of v3.0: 0.831 ms). Two points do not tell the two constants well apart: the test shows
    that another split which meets both exactly predicts the other published figures as well.
    """

    board: str
    mode: str
    sms: int
    gpu_hz: int
    emc_hz: int
    dram_bits: int
    l2_bytes: int
    l2_bytes_per_clock: float = 32.0
    dram_share: float = 0.746
    fixed_ns: float = 3000.0
    fixed_cycles: float = 5000.0

    @property
    def dram_pin_bytes_per_s(self) -> float:
        return self.emc_hz * TRANSFERS_PER_CLOCK * self.dram_bits / 8

    @property
    def dram_bytes_per_ns(self) -> float:
        """What a kernel gets of it."""
        return self.dram_pin_bytes_per_s * self.dram_share / 1e9

    @property
    def launch_ns(self) -> float:
        """What every kernel costs, however small."""
        return self.fixed_ns + self.cycles_ns(self.fixed_cycles)

    def cycles_ns(self, cycles: float) -> float:
        return cycles * 1e9 / self.gpu_hz

    def band(self) -> tuple[Device, Device]:
        """(slowest, fastest) that the sources leave room for: L2 20 to 47 bytes a clock and SM, DRAM 0.65 to 0.80."""
        return (replace(self, l2_bytes_per_clock=20.0, dram_share=0.65),
                replace(self, l2_bytes_per_clock=47.0, dram_share=0.80))

    def at(self, gpu_hz: int | None = None, emc_hz: int | None = None) -> Device:
        """The same GPU at other clocks: a governor's cap, another device tree's table."""
        return replace(self, gpu_hz=gpu_hz or self.gpu_hz, emc_hz=emc_hz or self.emc_hz)

    @classmethod
    def from_dict(cls, board: object, mode: str) -> Device:
        """From a board's facts and the name of one of its modes. Raises DeviceError with every mistake.

        SMs: two for each TPC that is present (`compute.tpc_mask`) and not power-gated by the mode (`tpc_pg_mask`).
        A clock without a cap is the top one (`compute.gpu_top_hz`, `emc_top_hz`): the table that the board really has
        depends on its device tree, and `at` takes that into account.
        """
        if not isinstance(board, Mapping):
            raise DeviceError([f"board facts must be a mapping of keys, not {type(board).__name__}"])
        problems: list[str] = []
        given = board.get("compute")
        compute: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        if not isinstance(given, Mapping):
            problems.append("compute: a mapping of what the time model needs is required")
        else:
            problems += _unknown(compute)
            problems += [p for key, ends in KEYS.items() for p in _wrong(compute, f"compute.{key}", key, ends, True)]
        chosen = _mode_of(board, mode, problems)
        problems += [p for key, ends in MODE_KEYS.items() for p in _wrong(chosen, f"mode {mode}: {key}", key, ends)]
        if problems:
            raise DeviceError(problems)
        tpcs = (compute["tpc_mask"] & ~(chosen.get("tpc_pg_mask") or 0)).bit_count()
        if not tpcs:
            raise DeviceError([f"mode {mode}: tpc_pg_mask gates every TPC of compute.tpc_mask"])
        return cls(str(board.get("name", "")), mode, tpcs * SMS_PER_TPC,
                   min(compute["gpu_top_hz"], chosen.get("gpu_max_hz") or compute["gpu_top_hz"]),
                   min(compute["emc_top_hz"], chosen.get("emc_max_hz") or compute["emc_top_hz"]),
                   compute["dram_bits"], compute["l2_bytes"])


def mode_names(board: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a board's power modes, in the file's order; () where there are none."""
    modes = board.get("modes")
    return tuple(str(m["name"]) for m in modes if isinstance(m, Mapping) and "name" in m) if isinstance(
        modes, list | tuple) else ()


def _mode_of(board: Mapping[str, Any], mode: str, problems: list[str]) -> Mapping[str, Any]:
    known = mode_names(board)
    if not known:
        problems.append("modes: a list of power modes with their names is required")
        return {}
    found = next((m for m in board["modes"] if isinstance(m, Mapping) and m.get("name") == mode), None)
    if found is None:
        near = difflib.get_close_matches(mode, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f" (known: {', '.join(known)})"
        problems.append(f"{board.get('title') or board.get('name') or 'the board'} has no mode {mode!r}{hint}")
        return {}
    chosen: Mapping[str, Any] = found
    return chosen


def _unknown(compute: Mapping[Any, Any]) -> list[str]:
    found = []
    for key in compute:
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(KEYS)}"
            found.append(f"compute.{key}: unknown key; {hint}")
    return found


def _wrong(source: Mapping[str, Any], where: str, key: str, ends: tuple[int, int], required: bool = False) -> list[str]:
    value = source.get(key)
    if value is None:
        return [f"{where} is required"] if required else []
    if isinstance(value, bool) or not isinstance(value, int):
        return [f"{where} must be a whole number, not {value!r}"]
    return [] if ends[0] <= value <= ends[1] else [f"{where} must lie in {ends[0]} to {ends[1]}, not {value}"]
