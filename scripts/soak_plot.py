"""A soak as one SVG picture: latency, queue and memory over time, with what befell the daemon marked.

Called by `soak.py`. Pure: samples in, text out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from soak_cameras import Seen
from soak_schedule import FAULTS, RELOADS
from soak_watch import Sample

from orind.kernels.report.charts import tick_step
from orind.kernels.report.markup import Markup, tag

WIDTH, LEFT, RIGHT, TOP, PANEL, GAP = 1200.0, 62.0, 150.0, 58.0, 170.0, 46.0
BUCKETS = 240
COLOURS = ("#1f6feb", "#d1242f", "#8250df", "#1a7f37", "#bf8700", "#57606a")
MARKS = {"fault": "#d1242f", "reload": "#8250df", "camera": "#afb8c1"}
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600;font-size:13px}.k{fill:#57606a;font-size:11px}"
    ".g{stroke:#d0d7de}.w{fill:none;stroke-width:1.4}"
)
Series = dict[str, list[tuple[float, float]]]


def kind_of(event: str) -> str:
    return "fault" if event in FAULTS else "reload" if event in RELOADS else "camera"


def draw(
    title: str, seconds: float, seen: Sequence[Seen], samples: Sequence[Sample], events: Sequence[tuple[float, str]]
) -> Markup:
    """events: (when, kind)."""
    panels: list[tuple[str, Series, bool]] = [
        ("Latency from capture to answer, ms (answers ok or degraded)", latency(seen, seconds), True),
        ("Answers that are neither ok nor degraded, a second", refused(seen, seconds), False),
        ("Frames waiting and without an outcome; level of degradation", queues(samples), False),
        ("Resident memory, MiB (of engines and decoders the median)", memory(samples), False),
    ]
    height = TOP + len(panels) * (PANEL + GAP)
    parts: list[Markup] = [tag("style", Markup(STYLE)), tag("rect", width=WIDTH, height=height, fill="white"),
                           tag("text", title, x=LEFT, y=18.0, class_="t"), *_legend()]
    for number, (name, series, logarithmic) in enumerate(panels):
        parts += _panel(TOP + number * (PANEL + GAP), name, series, logarithmic, seconds, events)
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
               width=WIDTH, height=height, role="img", aria_label=title)


def latency(seen: Sequence[Seen], seconds: float) -> Series:
    answered = [s for s in seen if s.outcome in ("ok", "degraded")]
    found: Series = {"P50": [], "P99": []}
    for at_s, values in _buckets([(s.at_s, s.total_ms) for s in answered], seconds):
        ordered = sorted(values)
        found["P50"].append((at_s, ordered[len(ordered) // 2]))
        found["P99"].append((at_s, ordered[math.ceil(0.99 * len(ordered)) - 1]))
    return found


def refused(seen: Sequence[Seen], seconds: float) -> Series:
    found: Series = {}
    for outcome in sorted({s.outcome for s in seen} - {"ok", "degraded"}):
        width_s = seconds / BUCKETS
        counts = {at_s: len(v) / width_s for at_s, v in
                  _buckets([(s.at_s, 1.0) for s in seen if s.outcome == outcome], seconds)}
        found[outcome] = [(at := (n + 0.5) * width_s, counts.get(at, 0.0)) for n in range(BUCKETS)]
    return found


def queues(samples: Sequence[Sample]) -> Series:
    return {
        "waiting": [(s.at_s, float(s.queue)) for s in samples],
        "no outcome yet": [(s.at_s, float(s.in_flight)) for s in samples],
        "level": [(s.at_s, float(s.level)) for s in samples],
    }


def memory(samples: Sequence[Sample]) -> Series:
    found: Series = {}
    for sample in samples:
        roles = {p.role for p in sample.processes} - {"checker"}
        for role in roles:
            sizes = sorted(p.judged_kib for p in sample.processes if p.role == role)
            found.setdefault(role, []).append((sample.at_s, sizes[len(sizes) // 2] / 1024))
    return dict(sorted(found.items()))


def _buckets(points: Sequence[tuple[float, float]], seconds: float) -> list[tuple[float, list[float]]]:
    width_s = seconds / BUCKETS
    found: dict[int, list[float]] = {}
    for at_s, value in points:
        found.setdefault(min(BUCKETS - 1, max(0, int(at_s / width_s))), []).append(value)
    return [((n + 0.5) * width_s, found[n]) for n in sorted(found)]


# -- one panel ---------------------------------------------------------------------------------------------------


def _panel(
    y: float, name: str, series: Series, logarithmic: bool, seconds: float, events: Sequence[tuple[float, str]]
) -> list[Markup]:
    top = max((value for points in series.values() for _, value in points), default=1.0) or 1.0
    low = max(0.1, min((v for points in series.values() for _, v in points if v > 0), default=1.0))
    span = WIDTH - LEFT - RIGHT

    def across(at_s: float) -> float:
        return LEFT + span * min(1.0, at_s / seconds)

    def up(value: float) -> float:
        if not logarithmic:
            return y + PANEL * (1 - value / (top * 1.05))
        decades = math.log10(max(top * 1.2 / low, 1.1))
        return y + PANEL * (1 - math.log10(max(value, low) / low) / decades)

    parts = [tag("text", name, x=LEFT, y=y - 8, class_="t")]
    for kind in ("camera", "reload", "fault"):
        lines = "".join(f"M{across(at):.1f} {y:.1f}v{PANEL:.0f}" for at, what in events if kind_of(what) == kind)
        parts.append(tag("path", d=lines or "M0 0", stroke=MARKS[kind], stroke_width=0.8,
                         opacity=0.35 if kind == "camera" else 0.6))
    parts += _grid(low, top, logarithmic, up)
    step = tick_step(seconds, 10)
    for n in range(int(seconds / step + 1e-9) + 1):
        text = f"{n * step:g} s"
        parts.append(tag("text", text, x=across(n * step), y=y + PANEL + 14, class_="k", text_anchor="middle"))
    for number, (label, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = "L".join(f"{across(at):.1f} {up(value):.1f}" for at, value in points)
        parts.append(tag("path", d=f"M{path}" if path else "M0 0", class_="w", stroke=colour))
        parts.append(tag("text", label, x=WIDTH - RIGHT + 10, y=y + 14 + 16 * number, style=f"fill:{colour}"))
    return parts


def _grid(low: float, top: float, logarithmic: bool, up: Callable[[float], float]) -> list[Markup]:
    if logarithmic:
        first = math.floor(math.log10(low))
        values = [10.0**n for n in range(first, math.ceil(math.log10(top)) + 1) if low <= 10.0**n <= top * 1.2]
    else:
        step = tick_step(top)
        values = [n * step for n in range(int(top / step + 1e-9) + 1)]
    parts = []
    for value in values:
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=up(value), y2=up(value), class_="g"))
        parts.append(tag("text", f"{value:g}", x=LEFT - 6, y=up(value) + 4, class_="k", text_anchor="end"))
    return parts


def _legend() -> list[Markup]:
    parts, x = [], WIDTH - RIGHT - 330
    for kind, text in (("fault", "fault"), ("reload", "reload"), ("camera", "camera misbehaves")):
        parts.append(tag("line", x1=x, x2=x, y1=8.0, y2=22.0, stroke=MARKS[kind], stroke_width=2.0))
        parts.append(tag("text", text, x=x + 6, y=19.0))
        x += 90
    return parts
