"""What a simulated run was like: its figures as a whole, its course second by second, as JSON, text and panels.

Called by `simulate_command.py`. Pure. Units are in the names; docs/simulation.md says what every field means.
Invariant: whatever form it takes, it says that the board was simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..ipc.bounded_text import bound_text
from ..power.simulation import Second
from . import panels
from .panels import Level, Line, Mark, Panel
from .simulate_line import Counts
from .terminal import plot, table

SIMULATED = "simulated board; nothing was measured on an Orin"
EVENTS_MAX = 50
SERIES_MAX = 7200
"""Points of the JSON's series: seconds up to two hours, longer stretches above."""
PLOT_WIDTH, PLOT_HEIGHT = 66, 4
OUTCOMES = ("offered", "answered", "expired", "dropped")


@dataclass(slots=True)
class Told:
    """A run. `about`: what was simulated, as the JSON has it. `frames`: by second, as many as `seconds`."""

    about: dict[str, Any]
    seconds: list[Second] = field(default_factory=list)
    frames: list[Counts] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    waiting: int = 0
    marks: list[Mark] = field(default_factory=list)


def summary(told: Told) -> dict[str, Any]:
    """The figures of the whole run."""
    seconds, counts, tolerance_w = told.seconds, told.counts, told.about["tolerance_w"]
    length_s = sum(s.lasted_s for s in seconds)
    energy_j = sum(s.board_w * s.lasted_s for s in seconds)
    worked_s = sum(s.busy * s.lasted_s for s in seconds)
    full = [abs(s.board_w - s.budget_w) <= tolerance_w for s in seconds if s.full]
    level_s: dict[str, float] = {}
    for second in seconds:
        level_s[second.level] = level_s.get(second.level, 0.0) + second.lasted_s
    return {
        "length_s": round(length_s, 3),
        "board_w_mean": round(energy_j / length_s, 3),
        "board_w_max": round(max(s.board_w for s in seconds), 3),
        "budget_w_min": round(min(s.budget_w for s in seconds), 3),
        "budget_w_max": round(max(s.budget_w for s in seconds), 3),
        "energy_wh": round(energy_j / 3600, 4),
        "full_load_s": len(full),
        "within_tolerance": round(sum(full) / len(full), 5) if full else None,
        "over_budget_s": sum(s.board_w > s.budget_w + tolerance_w for s in seconds),
        "tj_c_max": round(max(s.tj_c for s in seconds), 2),
        "throttled_s": round(sum(s.throttled_s for s in seconds), 3),
        "off_at_s": next((s.at_s for s in seconds if s.off), None),
        "clock_mhz_mean": _clock_mhz(seconds),
        "busy_mean": round(worked_s / length_s, 4),
        "frames": {**asdict(counts), "waiting": told.waiting},
        "answered_per_s": round(counts.answered / length_s, 3),
        "j_per_frame": round(energy_j / counts.answered, 4) if counts.answered else None,
        "level_s": {level: round(passed, 3) for level, passed in sorted(level_s.items())},
        "events": list(events(seconds))[:EVENTS_MAX],
    }


def _clock_mhz(seconds: Sequence[Second]) -> float | None:
    """The mean over the time in which the GPU worked."""
    worked_s = sum(s.busy * s.lasted_s for s in seconds)
    cycles = sum((s.clock_mhz or 0.0) * s.busy * s.lasted_s for s in seconds)
    return round(cycles / worked_s, 1) if worked_s else None


def events(seconds: Sequence[Second]) -> Iterator[dict[str, Any]]:
    """When the governor's level changed, and what decides the budget; when faults began and ended, and when the board
    switched itself off."""
    level, budget, faulty, off = "free", "policy", False, False
    for second in seconds:
        if (kind := second.budget_reason.partition(" ")[0]) != budget:
            budget = kind
            yield {"at_s": second.at_s, "text": bound_text(f"budget {second.budget_w:.1f} W: {second.budget_reason}")}
        if second.level != level:
            level = second.level
            named = second.reason if second.reason.startswith(level) else f"{level}: {second.reason}"
            yield {"at_s": second.at_s, "text": bound_text(named)}
        if bool(second.faults) != faulty:
            faulty = bool(second.faults)
            text = f"fault: {'; '.join(second.faults)}" if faulty else "no fault any more"
            yield {"at_s": second.at_s, "text": bound_text(text)}
        if second.off and not off:
            off = True
            yield {"at_s": second.at_s, "text": "the board reached its shutdown temperature and switched itself off"}


def to_json(told: Told) -> dict[str, Any]:
    """Everything as one object."""
    every = max(1, -(-len(told.seconds) // SERIES_MAX))
    points = [_point(told.seconds[i : i + every], told.frames[i : i + every])
              for i in range(0, len(told.seconds), every)]
    series = {name: [point[name] for point in points] for name in points[0]}
    return {"what": SIMULATED, **told.about, "summary": summary(told), "series": series}


def _point(seconds: Sequence[Second], frames: Sequence[Counts]) -> dict[str, Any]:
    lasted_s = sum(s.lasted_s for s in seconds)

    def mean(name: str, digits: int) -> float:
        return round(float(sum(getattr(s, name) * s.lasted_s for s in seconds)) / lasted_s, digits)

    return {
        "t_s": seconds[0].at_s, "lasted_s": round(lasted_s, 3), "board_w": mean("board_w", 3),
        "budget_w": mean("budget_w", 2), "target_w": mean("target_w", 2),
        "tj_c": round(max(s.tj_c for s in seconds), 2),
        "ambient_c": mean("ambient_c", 2), "clock_mhz": _clock_mhz(seconds), "cap_mhz": mean("cap_mhz", 1),
        "busy": mean("busy", 4), "fan_pwm": mean("fan_pwm", 0), "level": seconds[-1].level,
        **{name: sum(getattr(f, name) for f in frames) for name in OUTCOMES},
    }


# -- for a person's terminal ---------------------------------------------------------------------------------------


def lines(told: Told) -> list[str]:
    """What was simulated, a table, what happened, and small plots."""
    about = told.about
    text = [f"{about['title']}, mode {about['mode']}, policy {about['policy']}: {SIMULATED}",
            f"  frames   {about['frame_time']}", f"  load     {about['load']}", f"  ambient  {about['ambient']}",
            "", *table(("", "value", "of"), _rows(about, summary(told)))]
    happened = list(events(told.seconds))
    text += [""] if happened else []
    text += [f"{clock(event['at_s']):>9}  {event['text']}" for event in happened[:8]]
    if len(happened) > 8:
        text.append(f"{'':9}  and {len(happened) - 8} more (--json)")
    seconds, frames = told.seconds, told.frames
    pairs = list(zip(frames, seconds, strict=True))
    plots = (("board power", "W", [s.board_w for s in seconds]), ("junction", "C", [s.tj_c for s in seconds]),
             ("GPU clock while busy", "MHz", [s.clock_mhz for s in seconds]),
             ("answered", "frames/s", [f.answered / s.lasted_s for f, s in pairs]),
             ("expired", "frames/s", [f.expired / s.lasted_s for f, s in pairs]))
    for title, unit, values in plots:
        if title == "expired" and not told.counts.expired:
            continue
        text += ["", *plot(title, unit, values, PLOT_WIDTH, PLOT_HEIGHT)]
    length = clock(told.seconds[-1].at_s + told.seconds[-1].lasted_s)
    return [*text, f"{'':8}0{length:>{PLOT_WIDTH}}"]


def _rows(about: dict[str, Any], found: dict[str, Any]) -> list[tuple[str, str, str]]:
    frames, near = found["frames"], f"{about['tolerance_w']:g} W"
    within = "-" if found["within_tolerance"] is None else f"{found['within_tolerance']:.2%}"
    share = {name: f"{frames[name] / frames['offered']:.2%}" if frames["offered"] else "-"
             for name in ("answered", "expired", "dropped", "waiting")}
    mhz, joules = found["clock_mhz_mean"], found["j_per_frame"]
    off = found["off_at_s"]
    quiet = "" if about["quiet_tj_limit_c"] is None else f" ({about['quiet_tj_limit_c']:g} C when quiet)"
    return [
        ("board power, mean", f"{found['board_w_mean']:.2f} W", f"budget {_range(found)} W"),
        ("board power, largest second", f"{found['board_w_max']:.2f} W", ""),
        (f"within {near} of the budget", within, f"{found['full_load_s']} s at full load throughout"),
        (f"seconds over budget + {near}", str(found["over_budget_s"]), f"{found['length_s']:.0f} s"),
        ("junction, highest", f"{found['tj_c_max']:.1f} C",
         f"limit {about['tj_limit_c']:g} C{quiet}, throttle {about['throttle_c']:g} C"),
        ("throttled by heat", f"{found['throttled_s']:.0f} s", "" if off is None else f"switched off at {clock(off)}"),
        ("GPU clock while busy, mean", "-" if mhz is None else f"{mhz:.0f} MHz",
         f"at most {about['top_mhz']:g} MHz"),
        ("GPU busy", f"{found['busy_mean']:.1%}", ""),
        ("frames offered", str(frames["offered"]), ""),
        *((f"  {name}", str(frames[name]), share[name]) for name in ("answered", "expired")),
        ("    while paced", str(frames["paced"]), ""),
        *((f"  {name}", str(frames[name]), share[name]) for name in ("dropped", "waiting")),
        ("answered a second", f"{found['answered_per_s']:.2f}", ""),
        ("energy", f"{found['energy_wh']:.2f} Wh", "-" if joules is None else f"{joules:.3f} J a frame answered"),
        *((f"level {level}", f"{passed:.0f} s", "") for level, passed in found["level_s"].items()),
    ]


def _range(found: dict[str, Any]) -> str:
    """The budget, or between what it went."""
    low, high = found["budget_w_min"], found["budget_w_max"]
    return f"{high:g}" if low == high else f"{low:g} to {high:g}"


def clock(at_s: float) -> str:
    """h:mm:ss."""
    whole = round(at_s)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


# -- for a picture -------------------------------------------------------------------------------------------------


def picture(told: Told) -> bytes:
    """PNG. Raises panels.CannotDraw."""
    about, seconds = told.about, told.seconds
    at_s = [s.at_s + s.lasted_s / 2 for s in seconds]
    length_s = seconds[-1].at_s + seconds[-1].lasted_s
    rates = {name: [getattr(f, name) / s.lasted_s for f, s in zip(told.frames, seconds, strict=True)]
             for name in OUTCOMES}
    frames = [Line("offered", at_s, rates["offered"], panels.GREY, ranged=False),
              Line("answered", at_s, rates["answered"], panels.BLUE, ranged=False),
              Line("expired", at_s, rates["expired"], panels.RED, ranged=False)]
    if told.counts.dropped:
        frames.append(Line("dropped", at_s, rates["dropped"], panels.PURPLE, ranged=False))
    temperatures = [Level(f"throttle {about['throttle_c']:g} °C", about["throttle_c"], panels.RED),
                    Level(f"limit {about['tj_limit_c']:g} °C", about["tj_limit_c"], panels.ORANGE),
                    Level(f"warning {about['tj_warn_c']:g} °C", about["tj_warn_c"])]
    power = [Line("board", at_s, [s.board_w for s in seconds])]
    budget: list[Level] = []
    if len({s.budget_w for s in seconds}) == 1:
        label = f"budget {seconds[0].budget_w:g} ± {about['tolerance_w']:g} W"
        budget = [Level(label, seconds[0].budget_w, panels.INK, about["tolerance_w"])]
    else:
        power.insert(0, Line("budget", at_s, [s.budget_w for s in seconds], panels.INK, ranged=False, width=1.0))
    title = f"{about['title']} at {_range(summary(told))} W"
    return panels.draw(
        title, f"{SIMULATED} · policy {about['policy']}, mode {about['mode']}", length_s, [
            Panel("Board power, W", power, budget),
            Panel("Temperature, °C", [Line("junction", at_s, [s.tj_c for s in seconds], panels.PURPLE),
                                      Line("ambient", at_s, [s.ambient_c for s in seconds], panels.GREY, ranged=False)],
                  temperatures),
            Panel("GPU clock, MHz", [Line("while busy", at_s, [s.clock_mhz for s in seconds], panels.GREEN)],
                  [Level(f"highest {about['top_mhz']:g}", about["top_mhz"])], from_zero=True),
            Panel("Frames a second", frames, from_zero=True),
        ], told.marks)
