"""What a run of `scripts/hil` is judged by: figures of what was sampled and answered, by phase. Pure.

Used by hil_scenario.py (the names), hil.py and the report. Invariant: a figure that nothing was seen of is None, and a
limit on it is not kept.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

MEAN_S = 1.0
THROTTLE_C = 99.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The board and the daemon at a moment of the run. None: could not be read. `tj_c`: the hottest zone as the board
    shows it; `cap_mhz`: max_freq; `busy`: share of the time since the sample before; `alarms`: what the daemon's status
    says is wrong with the board."""

    at_s: float
    board_w: float | None
    tj_c: float | None
    gpu_mhz: float | None
    cap_mhz: float | None
    fan_pwm: int | None
    busy: float | None
    budget_w: float
    state: str
    healthy: bool
    level: int
    failovers: int
    generation: int
    alarms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame and what became of it. `answered_s` None: lost."""

    camera: str
    seq: int
    sent_s: float
    answered_s: float | None = None
    outcome: str = ""
    reason: str = ""


@dataclass(slots=True)
class Run:
    """Everything seen of one scenario. `marks`: what was done to the board and when; `begins`: of the phases; `wrong`:
    what must never be, whatever the limits say."""

    seconds: float = 0.0
    tolerance_w: float = 1.5
    samples: list[Sample] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    begins: list[tuple[float, str]] = field(default_factory=list)
    surplus: int = 0
    wrong: list[str] = field(default_factory=list)

    def phases(self) -> dict[str, tuple[float, float]]:
        """Name ('': the whole run) -> from and to, in s: each phase lasts until the next."""
        ends = [*(at_s for at_s, _ in self.begins), self.seconds][1:]
        own = {name: (begin_s, end_s) for (begin_s, name), end_s in zip(self.begins, ends, strict=True)}
        return {"": (0.0, self.seconds), **own}


@dataclass(frozen=True, slots=True)
class View:
    """A run between two moments. `before`: the last sample before them, or the first."""

    run: Run
    begin_s: float
    end_s: float
    samples: Sequence[Sample]
    frames: Sequence[Frame]
    before: Sample | None

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    def values(self, name: str) -> list[float]:
        """What is known of a field of the samples."""
        return [value for sample in self.samples if (value := getattr(sample, name)) is not None]

    def share(self, outcome: str) -> float | None:
        return sum(f.outcome == outcome for f in self.frames) / len(self.frames) if self.frames else None


def view(run: Run, begin_s: float, end_s: float) -> View:
    """Samples and frames sent in begin_s..end_s."""
    before = next((s for s in reversed(run.samples) if s.at_s < begin_s), run.samples[0] if run.samples else None)
    return View(run, begin_s, end_s, [s for s in run.samples if begin_s <= s.at_s < end_s],
                [f for f in run.frames if begin_s <= f.sent_s < end_s], before)


# -- figures -----------------------------------------------------------------------------------------------------


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _quantile(share: float) -> Callable[[View], float | None]:
    def figure(seen: View) -> float | None:
        times = sorted((f.answered_s - f.sent_s) * 1e3 for f in seen.frames if f.answered_s is not None
                       and f.outcome in ("ok", "degraded"))
        return times[math.ceil(share * len(times)) - 1] if times else None

    return figure


def one_second_means(samples: Sequence[Sample]) -> list[tuple[Sample, float]]:
    """Each sample with the mean board power over the second up to it, where a whole second was seen."""
    known = [s for s in samples if s.board_w is not None]
    times = [s.at_s for s in known]
    found = []
    for number, sample in enumerate(known):
        first = bisect_left(times, sample.at_s - MEAN_S)
        if sample.at_s - times[0] >= MEAN_S:
            part = [s.board_w for s in known[first:number + 1] if s.board_w is not None]
            found.append((sample, sum(part) / len(part)))
    return found


def _largest_mean(seen: View) -> float | None:
    return max((mean for _, mean in one_second_means(seen.samples)), default=None)


def _over_budget(seen: View) -> float | None:
    means = one_second_means(seen.samples)
    return _longest([(s.at_s, mean > s.budget_w + seen.run.tolerance_w) for s, mean in means])


def _longest(points: Sequence[tuple[float, bool]]) -> float | None:
    """The longest stretch in which something is true, in s."""
    if not points:
        return None
    longest, since = 0.0, None
    for at_s, true in points:
        since = (at_s if since is None else since) if true else None
        longest = max(longest, at_s - since if since is not None else 0.0)
    return longest


def _whole(seen: View, name: Callable[[Sample], bool]) -> float | None:
    """Seconds in which something is true of the samples, altogether."""
    if len(seen.samples) < 2:
        return None
    return sum(b.at_s - a.at_s for a, b in pairwise(seen.samples) if name(a))


def _gap(seen: View) -> float | None:
    """The longest time between two answers to a camera during which one of its frames was on its way, in ms."""
    longest = None
    for camera in {f.camera for f in seen.frames}:
        answers = sorted((f.answered_s, f.sent_s) for f in seen.frames
                         if f.camera == camera and f.answered_s is not None)
        waiting_since_s = math.inf
        for number in range(len(answers) - 1, -1, -1):
            answered_s, sent_s = answers[number]
            waiting_since_s = min(waiting_since_s, sent_s)  # of all frames that were answered then or later
            before_s = answers[number - 1][0] if number else 0.0
            longest = max(longest or 0.0, (answered_s - max(before_s, waiting_since_s)) * 1e3)
    return longest


def _alarm_after(seen: View) -> float | None:
    return next((s.at_s - seen.begin_s for s in seen.samples if s.alarms), None)


def _calm_after(seen: View) -> float | None:
    """From when on nothing is wrong with the board any more; None where something still is at the end."""
    if not seen.samples or seen.samples[-1].alarms:
        return None
    last = next((s for s in reversed(seen.samples) if s.alarms), None)
    return 0.0 if last is None else last.at_s - seen.begin_s


def _rise(seen: View, name: str) -> float | None:
    if seen.before is None or not seen.samples:
        return None
    return float(getattr(seen.samples[-1], name) - getattr(seen.before, name))


Figure = Callable[[View], float | None]
FIGURES: dict[str, tuple[str, Figure]] = {
    "sent": ("frames sent", lambda v: len(v.frames)),
    "lost": ("frames without an answer", lambda v: sum(f.answered_s is None for f in v.frames)),
    "ok_share": ("share of the frames answered ok", lambda v: v.share("ok")),
    "expired_share": ("share answered expired", lambda v: v.share("expired")),
    "error_share": ("share answered error", lambda v: v.share("error")),
    "ok_hz": ("frames answered ok, a second", lambda v: sum(f.outcome == "ok" for f in v.frames) / v.seconds),
    "latency_p50_ms": ("from sending to the answer: median, ms", _quantile(0.5)),
    "latency_p99_ms": ("from sending to the answer: P99, ms", _quantile(0.99)),
    "gap_max_ms": ("longest time between answers while a frame was on its way, ms", _gap),
    "busy_mean": ("share of the time that the engines worked", lambda v: _mean(v.values("busy"))),
    "board_w_mean": ("mean board power as the board shows it, W", lambda v: _mean(v.values("board_w"))),
    "board_w_max": ("largest mean board power over one second, W", _largest_mean),
    "over_budget_s": ("longest time with one-second means above budget and tolerance, s", _over_budget),
    "tj_max_c": ("highest temperature as the board shows it, C", lambda v: max(v.values("tj_c"), default=None)),
    "tj_mean_c": ("mean temperature of the hottest zone, C", lambda v: _mean(v.values("tj_c"))),
    "throttled_s": ("time at 99 C and above, where an Orin throttles by itself, s",
                    lambda v: _whole(v, lambda s: s.tj_c is not None and s.tj_c >= THROTTLE_C)),
    "cap_mhz_min": ("lowest cap of the GPU's clock, MHz", lambda v: min(v.values("cap_mhz"), default=None)),
    "cap_mhz_mean": ("mean cap of the GPU's clock, MHz", lambda v: _mean(v.values("cap_mhz"))),
    "cap_mhz_max": ("highest cap of the GPU's clock, MHz", lambda v: max(v.values("cap_mhz"), default=None)),
    "gpu_mhz_mean": ("mean clock of the GPU, MHz", lambda v: _mean(v.values("gpu_mhz"))),
    "alarm_s": ("time in which the daemon reports a fault of the board, s",
                lambda v: _whole(v, lambda s: bool(s.alarms))),
    "alarm_after_s": ("until the daemon reports a fault of the board, s", _alarm_after),
    "calm_after_s": ("until the daemon reports no fault of the board any more, s", _calm_after),
    "unhealthy_s": ("time in which health was not ok, s", lambda v: _whole(v, lambda s: not s.healthy)),
    "not_ready_s": ("time without a ready standby, s", lambda v: _whole(v, lambda s: s.state != "serving")),
    "failovers": ("take-overs", lambda v: _rise(v, "failovers")),
    "reloads": ("reloads that took effect", lambda v: _rise(v, "generation")),
}


def figures(run: Run) -> dict[str, dict[str, float | None]]:
    """Phase ('': the whole run) -> figure -> value."""
    return {phase: {name: figure(view(run, *span)) for name, (_, figure) in FIGURES.items()}
            for phase, span in run.phases().items()}
