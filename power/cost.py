"""What an inference costs on a board at a clock, by the models: watts, joules, bytes a second. Pure; none is measured.

Called by the daemon's predicted_energy.py with the time model's milliseconds and bytes, and by scripts/bench_energy.
Power is the board's model at full load, with the GPU's part in proportion to the SMs that have power (the published
stress rows of AGX Orin in four modes bear that out) and the memory's to what is moved. So it is that of a stress load:
NVIDIA's nine MaxQ submissions to MLPerf 3.0 need 0.66 to 1.54 times its GPU part, by network and scenario.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .model import PowerModel


@dataclass(frozen=True, slots=True)
class Running:
    """How the board runs: GPU clock; powered SMs of those it has; what the CPUs draw of what they can; bytes/ns that
    memory gives a kernel at its highest clock."""

    gpu_hz: float
    sm_share: float
    cpu_share: float
    memory_bytes_per_ns: float


@dataclass(frozen=True, slots=True)
class InferenceCost:
    """Of one batch of `batch` inferences, while one follows the other. mW, ns, bytes."""

    board_mw: float
    idle_mw: float
    ns: float
    batch: int
    moved_bytes: float

    @property
    def joules(self) -> float:
        """For one inference, the board as a whole."""
        return self.board_mw * self.ns / 1e12 / self.batch

    @property
    def joules_above_idle(self) -> float:
        """For one inference, what it adds to a board that idles: what the status tells as joules a frame."""
        return (self.board_mw - self.idle_mw) * self.ns / 1e12 / self.batch

    @property
    def gb_per_s(self) -> float:
        return self.moved_bytes / self.ns


def inference_cost(model: PowerModel, running: Running, ns: float, batch: int, moved_bytes: float) -> InferenceCost:
    """A batch that takes `ns` and moves `moved_bytes` between DRAM and the GPU. The junction is where the model's
    leakage has its reference."""
    traffic = min(moved_bytes / ns / running.memory_bytes_per_ns, 1.0)
    fitting = replace(model, gpu_full_mw=model.gpu_full_mw * running.sm_share, memory_full_mw=0.0)
    dynamic = fitting.dynamic_mw(running.gpu_hz, 1.0, model.leak_reference_c, running.cpu_share)
    return InferenceCost(model.idle_mw + dynamic + model.memory_full_mw * traffic, model.idle_mw, ns, batch,
                         moved_bytes)
