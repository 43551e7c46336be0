"""The plant without files: the same sensors and caps as the steward takes, in simulated time.

Used by tests, benchmarks and simulations, where two hours must take seconds. Invariant: the steward, governor and
policy that run here are the ones that run on a board; only the two ends differ. Faults are set from outside on
`faults`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..board import BoardFacts, Mode
from ..cpu_clock import Permitted
from ..errors import SysfsError
from ..limits import Limits
from ..sensors import Readings, take_rail, take_zone
from ..steps import step_under, steps_under
from .faults import Faults
from .kernel import Kernel
from .model import PlantModel
from .modes import widest_of
from .modules import AGX_ORIN, Module

STEP_NS = 50_000_000


class Work(Protocol):
    """What keeps the GPU busy."""

    def run(self, now_ns: int, step_ns: int, clock_hz: float, cap_hz: int) -> tuple[float, float]:
        """Work for a step at a clock (0: switched off): (the share of it that the GPU was busy, the share that the work
        would have taken at the cap)."""
        ...


class LoadShare:
    """Work that is known as a share: `load_at(now_ns)` is what it would take of the time at the cap, taken at each
    step's start. At a lower clock it takes longer."""

    def __init__(self, load_at: Callable[[int], float]) -> None:
        self._load_at = load_at

    def run(self, now_ns: int, step_ns: int, clock_hz: float, cap_hz: int) -> tuple[float, float]:
        """As Work."""
        load = self._load_at(now_ns)
        return min(load * cap_hz / clock_hz, 1.0) if clock_hz else 0.0, load


class SimulatedBoard:
    """Sensors, caps, busy counter and clock over one PlantModel and its kernel. `advance` moves time."""

    def __init__(self, model: PlantModel, facts: BoardFacts, module: Module = AGX_ORIN,
                 table_hz: tuple[int, ...] | None = None, start_ns: int = 1_000_000_000) -> None:
        self.model = model
        self._facts = facts
        self._zones = {zone.name: zone for zone in facts.zones}
        self._whole_hz = self._table_hz = table_hz or module.gpu_table_hz  # and what the mode allows of it
        self._cpu_table_khz = module.cpu_table_khz
        c = model.constants
        self.kernel = Kernel(self._table_hz, c.oc_from_w, c.oc_limit_w, c.oc_at_limit_hz)
        self.now_ns = start_ns
        self.busy_ns = 0
        self.cap_hz = self._table_hz[-1]
        self.min_hz = self._table_hz[0]
        self.cpu_cap_khz = self.cpu_most_khz = module.cpu_table_khz[-1]
        self._cpus_capped = False
        widest = widest_of(module.name)
        self.mode_id, self._tpc_pg_mask = widest.id, widest.tpc_pg_mask
        self.done_hz = 0.0  # mean of clock x busy share of the last `advance`: the work that was done
        self.limits: Limits | None = None
        self.faults = Faults()
        self.busy_late_ns = 0  # the busy counter is this much behind
        self._busy_past: list[tuple[int, int]] = []

    # -- sensors
    def read(self) -> Readings:
        """As sensors.Sensors.read()."""
        now_s, model = self.now_ns / 1e9, self.model
        true_mw: dict[str, int] = {}
        for label in model.constants.rails:
            millivolts, milliamps = model.read_rail(label)
            true_mw[label] = millivolts * milliamps // 1000
        rails_mw: dict[str, int] = {}
        zones_mc: dict[str, int] = {}
        faults = [fault for name in sorted(self.faults.missing) if (fault := self._lost(name))]
        for label, mw in self.faults.shown_of(true_mw, now_s).items():
            take_rail(label, mw, self._facts, rails_mw, faults)
        for name, mc in self.faults.shown_of(model.read_temperatures_mc(), now_s).items():
            taken = take_zone(self._zones[name], mc, faults)
            if taken is not None:
                zones_mc[name] = taken
        return Readings(
            board_mw=self._facts.board_mw(rails_mw),
            rails_mw=rails_mw, tj_mc=zones_mc.get("tj"), zones_mc=zones_mc, gpu_hz=self.kernel.cur_hz,
            fan_pwm=round(self.model.fan_pwm), oc_count=self.kernel.oc3_count,
            faults=tuple(faults),
        )

    def _lost(self, name: str) -> str:
        """The fault of a sensor that answers nothing; '' for a zone that may be asleep."""
        zone = self._zones.get(name)
        if zone is None:
            return f"rail {name}: lost"
        return f"zone {name}: lost" if zone.sleeps == "never" else ""

    # -- caps
    def gpu_clocks_hz(self) -> tuple[int, ...]:
        """As actuators.Caps."""
        return self._table_hz

    def gpu_cap_hz(self) -> int:
        """As actuators.Caps: what the board says, which is less while heat holds the clock."""
        return self.kernel.cap_hz(self.cap_hz)

    def set_gpu_max(self, hz: int, reason: str) -> int:
        """As actuators.Caps: the highest step not above."""
        self._refuse()
        self.cap_hz = step_under(self._table_hz, hz)
        return self.gpu_cap_hz()

    def set_gpu_min(self, hz: int | None) -> None:
        """As actuators.Caps: pinned, or as it was."""
        if hz is None and self.min_hz == self._table_hz[0]:
            return
        self._refuse()
        self.min_hz = self._table_hz[0] if hz is None else hz

    def permitted(self) -> Permitted:
        """As actuators.Caps."""
        table = self._cpu_table_khz
        cap_khz = self.kernel.cpu_khz(table, self.cpu_cap_khz)
        return Permitted(steps_under(table, self.cpu_most_khz), table[-1], cap_khz, self.mode_id)

    def set_cpu_max(self, khz: int | None) -> None:
        """As actuators.Caps: the highest step not above, or as it was."""
        if khz is None and not self._cpus_capped:
            return
        self._refuse()
        self._cpus_capped = khz is not None
        wanted = self.cpu_most_khz if khz is None else khz
        self.cpu_cap_khz = step_under(self._cpu_table_khz, wanted)

    def _refuse(self) -> None:
        if self.faults.refuse_writes:
            raise SysfsError("max_freq", "cannot be written: EACCES (Permission denied)")

    def restore(self) -> tuple[str, ...]:
        """As actuators.Caps."""
        self.cap_hz, self.min_hz = self._table_hz[-1], self._table_hz[0]
        self.cpu_cap_khz, self._cpus_capped = self.cpu_most_khz, False
        return (f"max_freq: {self.cap_hz}",)

    def reset_mode(self, mode_id: int, gpu_max_hz: int | None) -> None:
        """As board.PlantBoard: the mode and this cap, behind everybody's back. A mode that gates other TPCs waits for a
        boot, and one that the board does not have is not known: then it is the cap alone."""
        mode = next((mode for mode in self._facts.modes if mode.id == mode_id), None)
        if mode is not None and mode.tpc_pg_mask == self._tpc_pg_mask:
            self._enter(mode)
        self.cap_hz = step_under(self._whole_hz, gpu_max_hz or self._whole_hz[-1])

    def boot(self, mode: Mode) -> None:
        """In this mode: its TPCs, too."""
        tpcs = self.model.constants.tpcs
        self.model.powered_tpcs = tpcs - (mode.tpc_pg_mask & (1 << tpcs) - 1).bit_count()
        self._tpc_pg_mask = mode.tpc_pg_mask
        self._enter(mode)
        self.cap_hz = self._table_hz[-1]

    def _enter(self, mode: Mode) -> None:
        """Clocks of GPU and CPUs, and the memory's."""
        self.mode_id = mode.id
        self._table_hz = steps_under(self._whole_hz, mode.gpu_max_hz)
        self.cpu_cap_khz = self.cpu_most_khz = mode.cpu_max_khz or self._cpu_table_khz[-1]
        self.model.emc_mhz = min((mode.emc_max_hz or 10**10) / 1e6, self.model.constants.emc_top_mhz)

    def mode(self) -> tuple[str | None, str | None]:
        """As actuators.Caps: there is no nvpmodel here."""
        return None, None

    def notes(self) -> tuple[str, ...]:
        """As actuators.Caps: nobody else is here."""
        return ()

    # -- the rest of the steward's ends
    def read_busy(self) -> tuple[int, int]:
        """(now_ns, busy_ns) of the simulated engine; with `busy_late_ns`, as it was so long ago but stamped now."""
        if not self.busy_late_ns:
            return self.now_ns, self.busy_ns
        past = self._busy_past
        past.append((self.now_ns, self.busy_ns))
        while len(past) > 1 and past[1][0] <= self.now_ns - self.busy_late_ns:
            past.pop(0)
        return self.now_ns, past[0][1]

    def take_limits(self, limits: Limits) -> None:
        """Remember the latest limits."""
        self.limits = limits

    def clock(self) -> int:
        """Simulated CLOCK_MONOTONIC."""
        return self.now_ns

    def advance(self, dt_ns: int, load_at: Callable[[int], float], step_ns: int = STEP_NS) -> float:
        """As `run`, with a load that is known as a share of the time."""
        return self.run(dt_ns, LoadShare(load_at), step_ns)

    def run(self, dt_ns: int, work: Work, step_ns: int = STEP_NS) -> float:
        """Run the plant for dt_ns under the work. Returns the true mean power in W."""
        energy, done, left = 0.0, 0.0, dt_ns
        model, kernel = self.model, self.kernel
        while left > 0:
            step = min(step_ns, left)
            clock = kernel.clock_hz(self.cap_hz, self.min_hz)
            busy, demand = work.run(self.now_ns, step, clock, self.cap_hz)
            kernel.choose(self.cap_hz, self.min_hz, demand)
            cpu_khz = kernel.cpu_khz(self._cpu_table_khz, self.cpu_cap_khz)
            energy += model.step(step / 1e9, clock / 1e6, busy, cpu_khz / 1e3) * step
            kernel.after(step / 1e9, model.temperature_c("tj"), model.board_w)
            model.off = kernel.shut_down
            self.busy_ns += round(busy * step)
            self.now_ns += step
            done += clock * busy * step
            left -= step
        self.done_hz = done / dt_ns
        return energy / dt_ns


def simulated_board(facts: BoardFacts, module: Module, mode: Mode | None = None, ambient_c: float = 25.0, seed: int = 0,
                    fan_profile: str | None = None, start_ns: int = 1_000_000_000) -> SimulatedBoard:
    """A board after its boot in `mode` (None: nothing is capped or gated): its TPCs, clock tables and memory clock."""
    model = PlantModel(module.constants, ambient_c, seed, fan_profile=fan_profile or module.fan_profile)
    board = SimulatedBoard(model, facts, module, start_ns=start_ns)
    if mode is not None:
        board.boot(mode)
    return board
