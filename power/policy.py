"""The power policy: what the operator wants held, as read from configs/power/*.yaml or the `power` section.

Read by the daemon, used by governor.py, steward.py and (its lowest pacing) by main. What a policy asks of a board is
checked in policy_check.py, which budget holds when is decided in budget.py. Invariant: a policy that contradicts itself
or that a board cannot keep is refused before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .fields import Fields
from .limits import Limits
from .schedule import Schedule

_MS = 1_000_000
_ROOM_MC = 2_000
# what NVIDIA's modes write as the lowest clock of the CPUs (nvpmodel.conf of all modules)
CPU_MIN_MHZ = 729.6


@dataclass(frozen=True, slots=True)
class Quiet:
    """A lower budget and lower temperatures, at which the fan has less to do. `fan_profile`: of nvfancontrol, '' for
    any."""

    budget_mw: int
    tj_warn_mc: int
    tj_limit_mc: int
    fan_profile: str


@dataclass(frozen=True, slots=True)
class Policy:
    """Budgets in mW, temperatures in milli-degrees C, times in ns, pacing in frames/s over all cameras, clocks in Hz
    and kHz. `ambient`: (milli-degrees C, mW), ascending. `priorities`: cameras, the most important first."""

    name: str
    boards: tuple[str, ...]
    budget_mw: int
    tolerance_mw: int
    tj_warn_mc: int
    tj_limit_mc: int
    lowest_pace_hz: float
    batch_max: int
    tick_ns: int
    dwell_ns: int
    limits_ttl_ns: int
    gpu_min_hz: int = 0
    cpu_min_khz: int = 0
    steady: bool = False
    rail_limits_mw: Mapping[str, int] = field(default_factory=dict)
    zone_limits_mc: Mapping[str, int] = field(default_factory=dict)
    ambient: tuple[tuple[int, int], ...] = ()
    schedule: Schedule | None = None
    quiet: Quiet | None = None
    priorities: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, source: object) -> Policy:
        """Check everything and build; raises SettingsError with all problems and their key paths."""
        f = Fields(source, "power policy")
        policy = cls(
            name=f.text("name", "unnamed"),
            boards=f.texts("boards", ()),
            budget_mw=round(f.number("budget_w", 1, 200) * 1000),
            tolerance_mw=round(f.number("tolerance_w", 0.1, 20, 1.5) * 1000),
            tj_warn_mc=round(f.number("tj_warn_c", 30, 120, 80) * 1000),
            tj_limit_mc=round(f.number("tj_limit_c", 30, 120, 85) * 1000),
            lowest_pace_hz=f.number("lowest_pace_hz", 0.01, 10_000, 5),
            batch_max=f.whole("batch_max", 1, 64, 8),
            tick_ns=f.whole("tick_ms", 20, 500, 100) * _MS,
            dwell_ns=f.whole("dwell_ms", 20, 5_000, 100) * _MS,
            limits_ttl_ns=f.whole("limits_ttl_ms", 200, 10_000, 2_000) * _MS,
            gpu_min_hz=round(f.number("gpu_min_mhz", 0, 3_000, 0) * 1_000_000),
            cpu_min_khz=round(f.number("cpu_min_mhz", 0, 4_000, CPU_MIN_MHZ) * 1000),
            steady=f.flag("steady", False),
            rail_limits_mw={name: round(watts * 1000) for name, watts in f.numbers("rail_limits_w", 0.5, 200).items()},
            zone_limits_mc={name: round(c * 1000) for name, c in f.numbers("zone_limits_c", 30, 120).items()},
            ambient=_read_ambient(f),
            schedule=Schedule.from_fields(f.child("schedule")) if f.has("schedule") else None,
            quiet=_read_quiet(f.child("quiet")) if f.has("quiet") else None,
            priorities=f.texts("priorities", ()),
        )
        _check_times(policy, f)
        _check_steady(policy, f)
        if policy.schedule is not None and policy.quiet is None:
            for i, window in enumerate(policy.schedule.windows):
                if window.quiet:
                    f.complain_at(("schedule", "windows", i, "quiet"), "needs the policy's `quiet` section")
        f.finish()
        return policy

    def budgets(self) -> list[tuple[tuple[str | int, ...], int]]:
        """Every budget that may come to hold, in mW, with the key that says it."""
        found: list[tuple[tuple[str | int, ...], int]] = [(("budget_w",), self.budget_mw)]
        found += [(("ambient", i, "budget_w"), mw) for i, (_, mw) in enumerate(self.ambient)]
        if self.quiet is not None:
            found.append((("quiet", "budget_w"), self.quiet.budget_mw))
        if self.schedule is not None:
            found += [(("schedule", "windows", i, "budget_w"), w.budget_mw)
                      for i, w in enumerate(self.schedule.windows) if w.budget_mw is not None]
        return found

    def lowest(self, reason: str) -> Limits:
        """The limits that hold when no governor speaks: one frame a batch at the lowest pace; they do not expire."""
        return Limits(expires_ns=None, batch_max=1, pace_hz=self.lowest_pace_hz, level="lowest", reason=reason)


def _check_times(policy: Policy, f: Fields) -> None:
    _check_room(policy, f)
    if policy.dwell_ns < policy.tick_ns:
        f.complain("dwell_ms", "must not be shorter than tick_ms: a step cannot end between two ticks")
    if policy.limits_ttl_ns < 4 * policy.tick_ns:
        f.complain("limits_ttl_ms", "must be at least four ticks, or limits expire while the governor is well")


def _check_room(temperatures: Policy | Quiet, f: Fields) -> None:
    if temperatures.tj_limit_mc - temperatures.tj_warn_mc < _ROOM_MC:
        f.complain("tj_limit_c", f"must lie at least {_ROOM_MC / 1000:g} C above tj_warn_c: the governor needs room to "
                   "act in")


def _check_steady(policy: Policy, f: Fields) -> None:
    """`steady` pins the clock by itself: keys that ask for something else of it contradict it."""
    if not policy.steady:
        return
    if f.has("dwell_ms"):
        f.complain("dwell_ms", "contradicts `steady: true`, which does not change between two clocks")
    if f.has("gpu_min_mhz"):
        f.complain("gpu_min_mhz", "contradicts `steady: true`, whose lowest clock is its highest")


def _read_quiet(f: Fields) -> Quiet:
    quiet = Quiet(
        budget_mw=round(f.number("budget_w", 1, 200) * 1000),
        tj_warn_mc=round(f.number("tj_warn_c", 30, 120) * 1000),
        tj_limit_mc=round(f.number("tj_limit_c", 30, 120) * 1000),
        fan_profile=f.text("fan_profile", ""),
    )
    _check_room(quiet, f)
    f.finish()
    return quiet


def _read_ambient(f: Fields) -> tuple[tuple[int, int], ...]:
    """Rows of ambient temperature and budget: the hotter the cabinet, the less power."""
    if not f.has("ambient"):
        return ()
    rows: list[tuple[int, int]] = []
    for row in f.children("ambient"):
        mc, mw = round(row.number("ambient_c", -40, 85) * 1000), round(row.number("budget_w", 1, 200) * 1000)
        if rows and mc <= rows[-1][0]:
            row.complain("ambient_c", f"must ascend from row to row, {mc / 1000:g} follows {rows[-1][0] / 1000:g}")
        if rows and mw > rows[-1][1]:
            row.complain("budget_w", f"rises with the temperature, {mw / 1000:g} follows {rows[-1][1] / 1000:g}")
        row.finish()
        rows.append((mc, mw))
    return tuple(rows)
