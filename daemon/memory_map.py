"""The reservations of the engines as one picture (SVG): who has which bytes, what is free, and the emergency reserve.

Caller: `orind status --memory-map`. Each engine has a bar to scale, below it the part in use enlarged, and a legend.
The picture has its own colours for light and dark; names are escaped (kernels/report/markup.py).
"""

from __future__ import annotations

from typing import Any

from ..kernels.report.drawing import fitting
from ..kernels.report.markup import Markup, tag
from . import process_view
from .age import age
from .memory_report import in_words, mib

BEGINS = b"<svg"
"""Every map does."""

WIDTH, MARGIN = 1160.0, 30.0
BAR_X, BAR_W, BAR_H = MARGIN, WIDTH - 2 * MARGIN, 46.0
LEGEND_COLUMNS, LEGEND_LINE = 3, 20.0
HUES = 6
STYLE = """
svg { background: #fff; font: 13px system-ui, sans-serif } text { fill: #1f2328 } .dim { fill: #59636e }
.head { font-size: 15px; font-weight: 600 } .title { font-size: 19px; font-weight: 600 }
.in { font-size: 11px; fill: #fff } .block { stroke: #fff; stroke-width: .6 }
.free { fill: #eef1f4; stroke: #c4ccd4 } .line { stroke: #8c959f; fill: none; stroke-dasharray: 3 3 }
.reserve { fill: url(#stripes); stroke: #9a6700 } .stripe { stroke: #d4a72c; stroke-width: 3 }
.h0 { fill: #0969da } .h1 { fill: #1a7f37 } .h2 { fill: #8250df } .h3 { fill: #bf3989 } .h4 { fill: #0f766e }
.h5 { fill: #9a3412 } .prep { fill: #6e7781 }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117 } text { fill: #e6edf3 } .dim { fill: #9198a1 } .in { fill: #0d1117 }
.free { fill: #1b222b; stroke: #3d444d } .line { stroke: #656c76 } .block { stroke: #0d1117 }
.reserve { stroke: #d29922 } .stripe { stroke: #7d5b12 }
.h0 { fill: #58a6ff } .h1 { fill: #3fb950 } .h2 { fill: #bc8cff } .h3 { fill: #f778ba } .h4 { fill: #2dd4bf }
.h5 { fill: #fb923c } .prep { fill: #8b949e } }
"""
STRIPES = tag(
    "pattern",
    tag("path", d="M0 9 L9 0", class_="stripe"),
    id="stripes", width="9", height="9", patternUnits="userSpaceOnUse",
)


def render(engines: list[dict[str, Any]], processes: list[dict[str, Any]], now_ns: int) -> str:
    """The picture of `engines` and of what their `processes` hold, as a status has them; `now_ns` for ages."""
    private = {process["pid"]: process["private"] for process in processes if "pid" in process}
    parts: list[Markup] = [tag("text", "Memory of the engines", x=MARGIN, y=34.0, class_="title")]
    y = 62.0
    every = [block for engine in engines if engine["memory"] is not None for block in engine["memory"]["blocks"]]
    models = sorted({_model(block) for block in every} - {"preprocessing"})  # of one colour in all engines
    for engine in engines:
        drawn, y = _engine(engine, models, private.get(engine["pid"]), y, now_ns)
        parts += drawn
    if not engines:
        parts.append(tag("text", "No engine runs.", x=MARGIN, y=y, class_="dim"))
        y += 20
    return tag(
        "svg",
        tag("title", "Memory of the engines"),
        tag("style", Markup(STYLE)),
        tag("defs", STRIPES),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {y + 10:g}",
        width=WIDTH,
        height=y + 10,
    )


def _engine(
    engine: dict[str, Any], models: list[str], private: int | None, y: float, now_ns: int
) -> tuple[list[Markup], float]:
    memory = engine["memory"]
    whole = f", {mib(private)} of private memory in all" if private is not None else ""
    head = f"engine {engine['epoch']}, {engine['role']}, on {process_view.device(engine)} (pid {engine['pid']}{whole})"
    drawn = [tag("text", head, x=MARGIN, y=y, class_="head")]
    if memory is None:
        return [*drawn, tag("text", "It has not told yet.", x=MARGIN, y=y + 20, class_="dim")], y + 52
    drawn.append(tag("text", f"{memory['what']}: {in_words(memory)}", x=MARGIN, y=y + 20, class_="dim"))
    top, size = y + 34, max(memory["size"], 1)
    drawn += _bar(memory, models, top, 0, size)
    for at, anchor in ((0, "start"), (size, "end")):
        drawn.append(tag("text", mib(at), x=_x(at, 0, size), y=top + BAR_H + 15, text_anchor=anchor, class_="dim"))
    y = top + BAR_H + 15
    first, last = _busy(memory)
    if memory["blocks"] and last - first < 0.7 * size:
        below = y + 24
        for at, to in ((first, 0.0), (last, BAR_W)):
            path = f"M{_x(at, 0, size):.1f} {top + BAR_H:.1f} L{BAR_X + to:.1f} {below:.1f}"
            drawn.append(tag("path", d=path, class_="line"))
        drawn += _bar(memory, models, below, first, last)
        for at, anchor in ((first, "start"), (last, "end")):
            drawn.append(
                tag("text", mib(at), x=_x(at, first, last), y=below + BAR_H + 15, text_anchor=anchor, class_="dim")
            )
        y = below + BAR_H + 15
    legend, y = _legend(memory, models, y + 26, now_ns)
    return [*drawn, *legend], y + 30


def _bar(memory: dict[str, Any], models: list[str], y: float, first: int, last: int) -> list[Markup]:
    """[first, last) of the reservation over the whole width."""
    drawn = [tag("rect", x=BAR_X, y=y, width=BAR_W, height=BAR_H, class_="free", rx="3")]
    edge = memory["size"] - memory["reserve"]
    if memory["reserve"] and last > edge:
        x, end = _x(edge, first, last), _x(memory["size"], first, last)
        said = f"emergency reserve, {mib(memory['reserve'])}, of which {mib(memory['reserve_used'])} are used"
        text = tag("title", said)
        drawn.append(tag("rect", text, x=x, y=y, width=end - x, height=BAR_H, class_="reserve"))
    for block in memory["blocks"]:
        offset, size, owner, _ = block
        if offset >= last or offset + size <= first:
            continue
        x, width = _x(offset, first, last), max(1.0, BAR_W * size / (last - first))
        title = tag("title", f"{owner}: {mib(size)} at {mib(offset)}")
        drawn.append(
            tag("rect", title, x=x, y=y, width=width, height=BAR_H, class_=f"block {_colour(block, models)}",
                fill_opacity=_shade(owner))
        )
        if width > 60:
            for line, text in enumerate((owner, mib(size))):
                shown = fitting(text, width - 8, 11)
                drawn.append(tag("text", shown, x=x + 5, y=y + 19 + 15 * line, class_="in"))
    return drawn


def _legend(memory: dict[str, Any], models: list[str], y: float, now_ns: int) -> tuple[list[Markup], float]:
    entries: list[tuple[str, float, str]] = []
    for block in memory["blocks"]:
        age_s = max(0.0, now_ns / 1e9 - block[3] / 1e3)
        said = f"{block[2]}, {mib(block[1])}, {age(age_s)} old"
        entries.append((f"block {_colour(block, models)}", _shade(block[2]), said))
    entries.append(("free", 1.0, f"free, {mib(memory['free'])}, the largest piece {mib(memory['largest_free'])}"))
    if memory["reserve"]:
        entries.append(("reserve", 1.0, f"emergency reserve, {mib(memory['reserve'])}"))
    drawn = []
    rows = -(-len(entries) // LEGEND_COLUMNS)
    for number, (kind, shade, text) in enumerate(entries):
        x, line = MARGIN + number // rows * BAR_W / LEGEND_COLUMNS, y + number % rows * LEGEND_LINE
        drawn.append(tag("rect", x=x, y=line - 11, width=14.0, height=14.0, rx="2", class_=kind, fill_opacity=shade))
        drawn.append(tag("text", fitting(text, BAR_W / LEGEND_COLUMNS - 26, 11), x=x + 22, y=line))
    return drawn, y + rows * LEGEND_LINE


def _busy(memory: dict[str, Any]) -> tuple[int, int]:
    """The part of the reservation that has blocks, without its reserve."""
    edge = memory["size"] - memory["reserve"]
    inside = [(offset, offset + size) for offset, size, _, _ in memory["blocks"] if offset < edge]
    return (min(a for a, _ in inside), max(b for _, b in inside)) if inside else (0, max(edge, 1))


def _x(offset: float, first: int, last: int) -> float:
    return BAR_X + BAR_W * (offset - first) / max(last - first, 1)


def _model(block: list[Any]) -> str:
    return str(block[2]).partition(":")[0]


def _colour(block: list[Any], models: list[str]) -> str:
    model = _model(block)
    return "prep" if model == "preprocessing" else f"h{models.index(model) % HUES}"


def _shade(owner: str) -> float:
    """Parts of one model differ in shade: weights the darkest, then work memory, then arenas."""
    part = owner.partition(": ")[2]
    return 1.0 if part.startswith("weights") or not part else 0.8 if part == "work memory" else 0.62
