"""What happened when, as a PNG for a report: panels that share the time axis, labelled where their lines end.

Callers: `orind simulate --plot`, scripts that show a run of a board. matplotlib is imported here alone, when there is
something to draw. Invariants: the colours can be told apart without colour vision (Okabe and Ito), and long runs are
shown as the mean of each stretch with its range behind it, so that nothing short disappears.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from math import isfinite
from typing import TYPE_CHECKING, Any

from .missing_parts import is_own

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REMEDY = "drawing needs matplotlib: pip install 'orind[plot]'"
INK, QUIET, GRID = "#24292f", "#57606a", "#e4e8ec"
BLUE, ORANGE, RED, GREEN, PURPLE, GREY = "#0072b2", "#b87700", "#d55e00", "#009e73", "#a34f83", "#6e7781"
WIDTH_IN, PANEL_IN, HEAD_IN, FOOT_IN, DPI = 11.0, 1.75, 0.75, 0.62, 150
STRETCHES = 480
"""Points of a line: two pixels each."""
LABEL_GAP = 0.105
"""Between two labels beside a panel, as a share of its height."""
MARK_GAP, TITLE_SHARE = 0.1, 0.2
"""Between the middles of two labels above a panel, and where its title ends, as shares of its width."""


class CannotDraw(Exception):
    """matplotlib is missing; the text says what to install."""


@dataclass(frozen=True, slots=True)
class Line:
    """Values at the times `at_s`, which ascend; None or not finite leaves a gap. `ranged`: with its range behind it."""

    label: str
    at_s: Sequence[float]
    values: Sequence[float | None]
    colour: str = BLUE
    ranged: bool = True
    width: float = 1.5


@dataclass(frozen=True, slots=True)
class Level:
    """A value that means something, such as a budget; `half_band`: how far from it is still well."""

    label: str
    value: float
    colour: str = QUIET
    half_band: float = 0.0


@dataclass(frozen=True, slots=True)
class Panel:
    """`title` names the unit. `from_zero`: the axis begins at 0. `least`: values that the axis shows in any case."""

    title: str
    lines: Sequence[Line]
    levels: Sequence[Level] = ()
    from_zero: bool = False
    least: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened: a line through all panels, named above them."""

    at_s: float
    label: str


def check_available() -> None:
    """Raises CannotDraw, before any work is done for a picture that cannot be made."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        if is_own(error):
            raise
        raise CannotDraw(REMEDY) from None


def draw(title: str, note: str, length_s: float, panels: Sequence[Panel], marks: Sequence[Mark] = ()) -> bytes:
    """The picture as PNG. `note` stands below the title: what it is of, and what it is not. Raises CannotDraw."""
    check_available()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = HEAD_IN + FOOT_IN + PANEL_IN * len(panels)
    figure = Figure(figsize=(WIDTH_IN, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    left, right = 0.065, 0.845
    each = PANEL_IN / height
    unit, unit_s = _unit(length_s)
    figure.text(left, 1 - 0.30 / height, title, fontsize=14, fontweight="bold", color=INK, va="center")
    figure.text(left, 1 - 0.58 / height, note, fontsize=9.5, color=QUIET, va="center")
    for number, panel in enumerate(panels):
        bottom = FOOT_IN / height + each * (len(panels) - 1 - number)
        axes = figure.add_axes((left, bottom, right - left, each * 0.74))
        last = number == len(panels) - 1
        _frame(axes, panel.title, length_s / unit_s, last)
        _draw_panel(axes, panel, unit_s)
        for mark in marks:
            axes.axvline(mark.at_s / unit_s, color=GREY, linewidth=0.9, linestyle=(0, (3, 3)), zorder=1)
        if number == 0:
            for mark, row in zip(marks, mark_rows([mark.at_s / length_s for mark in marks]), strict=True):
                axes.text(mark.at_s / unit_s, 1.04 + 0.11 * row, mark.label, transform=axes.get_xaxis_transform(),
                          fontsize=8.5, color=QUIET, ha="center", va="bottom")
        if last:
            axes.set_xlabel(f"time, {unit}", fontsize=9.5, color=QUIET)
    file = BytesIO()
    figure.savefig(file, format="png", metadata={"Software": "orind"})
    return file.getvalue()


def mark_rows(places: Sequence[float]) -> list[int]:
    """The row above the panel for each mark's label, by its place in 0 to 1: where another one, or the panel's title,
    is near, the next row up, of three."""
    last = [TITLE_SHARE - MARK_GAP, -1.0, -1.0]
    rows = []
    for place in places:
        row = next((n for n, before in enumerate(last) if place - before >= MARK_GAP), 2)
        last[row] = place
        rows.append(row)
    return rows


def _unit(length_s: float) -> tuple[str, float]:
    if length_s <= 300:
        return "s", 1.0
    return ("min", 60.0) if length_s <= 3 * 3600 else ("h", 3600.0)


def _frame(axes: Axes, title: str, length: float, last: bool) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK, pad=5)
    axes.set_xlim(0, length)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9, labelcolor=QUIET, labelbottom=last)
    axes.locator_params(axis="y", nbins=5)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#afb8c1")


def _draw_panel(axes: Axes, panel: Panel, unit_s: float) -> None:
    labels: list[tuple[float, str, str]] = []
    shown: list[float] = list(panel.least)
    for level in panel.levels:
        if level.half_band:
            axes.axhspan(level.value - level.half_band, level.value + level.half_band, color=level.colour, alpha=0.13,
                         linewidth=0)
        axes.axhline(level.value, color=level.colour, linewidth=1.0, linestyle=(0, (5, 3)))
        labels.append((level.value, level.label, level.colour))
        shown.append(level.value)
    for line in panel.lines:
        at, mean, low, high = stretches(line.at_s, line.values)
        known = [value for value in mean if isfinite(value)]
        if not known:
            continue
        times = [t / unit_s for t in at]
        if line.ranged:
            axes.fill_between(times, low, high, color=line.colour, alpha=0.18, linewidth=0)
            shown += [value for value in (*low, *high) if isfinite(value)]
        axes.plot(times, mean, color=line.colour, linewidth=line.width, solid_joinstyle="round")
        shown += known
        tail = known[-max(1, len(known) // 20):]
        labels.append((sum(tail) / len(tail), line.label, line.colour))
    low_end, high_end = (min(shown), max(shown)) if shown else (0.0, 1.0)
    if panel.from_zero:
        low_end = 0.0
    room = 0.06 * ((high_end - low_end) or 1.0)
    axes.set_ylim(low_end - (0.0 if panel.from_zero else room), high_end + room)
    _label(axes, labels)


def _label(axes: Axes, labels: list[tuple[float, str, str]]) -> None:
    """Beside the panel, at the height of what they name, moved apart where they would cover each other."""
    bottom, top = axes.get_ylim()
    wanted = sorted(((value - bottom) / ((top - bottom) or 1.0), text, colour) for value, text, colour in labels)
    places = spread([height for height, _, _ in wanted], LABEL_GAP)
    for place, (_, text, colour) in zip(places, wanted, strict=True):
        axes.text(1.008, place, text, transform=axes.transAxes, fontsize=9, color=colour, va="center", ha="left")


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights moved apart to at least `gap`, as little as that needs, within 0 to 1 where there is room."""
    groups: list[list[float]] = []  # centre, count
    for height in heights:
        groups.append([height, 1.0])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            (centre, count), (before, others) = groups.pop(), groups.pop()
            groups.append([(centre * count + before * others) / (count + others), count + others])
        last = groups[-1]
        half = gap * (last[1] - 1) / 2
        last[0] = max(min(last[0], 1.0 - half), half)
    return [centre + gap * (n - (count - 1) / 2) for centre, count in groups for n in range(int(count))]


def stretches(at_s: Sequence[float], values: Sequence[float | None],
              count: int = STRETCHES) -> tuple[list[float], list[float], list[float], list[float]]:
    """(middle, mean, lowest, highest) of at most `count` stretches of time; not a number where nothing is known."""
    if not at_s:
        return [], [], [], []
    if len(at_s) <= count:
        plain = [float("nan") if value is None else float(value) for value in values]
        return list(at_s), plain, plain, plain
    begin, end = at_s[0], at_s[-1]
    found: tuple[list[float], list[float], list[float], list[float]] = ([], [], [], [])
    first = 0
    for n in range(count):
        to_s = begin + (end - begin) * (n + 1) / count
        last = len(at_s) if n == count - 1 else bisect_left(at_s, to_s, first)
        part: list[Any] = [v for v in values[first:last] if v is not None and isfinite(v)]
        some = part or [float("nan")]
        for row, value in zip(found, (begin + (end - begin) * (n + 0.5) / count, sum(some) / len(some), min(some),
                                      max(some)), strict=True):
            row.append(value)
        first = last
    return found
