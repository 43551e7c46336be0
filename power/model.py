"""The governor's model of board power as a function of GPU clock, busy share and temperature. Pure.

Called by governor.py (and checked against boards by board.py and policy.py). Form: idle + busy x (GPU dynamic power
~ clock^exponent, scaled by leakage per degree, + CPU share + memory share). Constants are starting values from the
board's facts; the governor learns a bias and a gain on top and never trusts them further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .fields import Fields

# CPU rail of AGX Orin under stress, 15.2 / 6.0 / 5.6 / 1.6 W: 12 cores at 2201.6 MHz, 12 at 1497.6, 8 at 1728, 4 at
# 1113.6 (forum 323456): cores x clock^2.64 within 5 % [inferred]
CPU_EXPONENT = 2.64


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Powers in mW, clock in Hz, temperatures in C. `reference_hz` is where the *_full_mw figures hold."""

    reference_hz: int
    idle_mw: float
    gpu_full_mw: float
    gpu_exponent: float
    cpu_full_mw: float
    memory_full_mw: float
    leak_per_c: float
    leak_reference_c: float

    @classmethod
    def from_fields(cls, f: Fields) -> PowerModel:
        """Read the `model` mapping of a board's facts."""
        model = cls(
            reference_hz=f.whole("reference_hz", 100_000_000, 3_000_000_000),
            idle_mw=f.number("idle_mw", 500, 40_000),
            gpu_full_mw=f.number("gpu_full_mw", 1_000, 100_000),
            gpu_exponent=f.number("gpu_exponent", 1.0, 3.0),
            cpu_full_mw=f.number("cpu_full_mw", 0, 30_000),
            memory_full_mw=f.number("memory_full_mw", 0, 30_000),
            leak_per_c=f.number("leak_per_c", 0, 0.05),
            leak_reference_c=f.number("leak_reference_c", 0, 100),
        )
        f.finish()
        return model

    @staticmethod
    def cpu_share(khz: int, top_khz: int) -> float:
        """What busy CPUs draw at a clock, of what they draw at the highest."""
        return float((khz / top_khz) ** CPU_EXPONENT)

    @property
    def full_mw(self) -> float:
        """What full load adds to idle at the reference clock."""
        return self.gpu_full_mw + self.cpu_full_mw + self.memory_full_mw

    def dynamic_mw(self, gpu_hz: float, busy: float, tj_c: float, cpu_share: float = 1.0) -> float:
        """Power above idle, for a busy share in 0..1 (linear in it: within a tick the GPU is either on or off).
        `cpu_share`: what the CPUs draw at their cap, of what they draw at their highest clock."""
        return busy * self.full_load_mw((gpu_hz,), tj_c, cpu_share)[0]

    def full_load_mw(self, clocks_hz: Sequence[float], tj_c: float, cpu_share: float = 1.0) -> list[float]:
        """As `dynamic_mw` at full load, for each clock."""
        leak = max(1.0 + self.leak_per_c * (tj_c - self.leak_reference_c), 0.1)
        gpu_mw, exponent, memory_mw = self.gpu_full_mw, self.gpu_exponent, self.memory_full_mw
        cpu_mw = cpu_share * self.cpu_full_mw
        found = []
        for hz in clocks_hz:
            ratio = hz / self.reference_hz
            found.append(gpu_mw * float(ratio**exponent) * leak + cpu_mw + memory_mw * ratio)
        return found
