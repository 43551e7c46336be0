"""The graph of a program as SVG: steps in layers, coloured by type and marked by SQNR, each a link to its table row.

Caller: `page.py`. Colours are classes of the page's style sheet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from .dataflow import Flow
from .layering import GAP_X, NODE_H, NODE_W, TRACK, Item, Layering, crossing, layered
from .layers import Layer
from .markup import Markup, tag

WIDTH = 1150.0
SQUEEZE = 1.25
"""A drawing may be so much wider than WIDTH; it is then made smaller."""
MARGIN = 4.0
CHARACTER = 0.62
"""Width of a character of the page's typeface over its size, on average."""
SQNR_STEPS = (15.0, 25.0, 35.0)
"""dB: below the first is the worst of four marks, from the last on the best."""


def fitting(text: str, width: float, size: float) -> str:
    """The text, cut with an ellipsis where it is wider than `width`."""
    most = max(2, int(width / (size * CHARACTER)))
    return text if len(text) <= most else text[:most - 1] + "…"


def sqnr_class(sqnr_db: float | None) -> str:
    """q0 (best) to q3 (worst); "" where nothing was measured."""
    return "" if sqnr_db is None else f"q{sum(sqnr_db < step for step in SQNR_STEPS)}"


def describe(layer: Layer) -> str:
    """A layer in words, for tool tips: every figure that there is."""
    parts = [f"{layer.number}: {layer.name}", f"{layer.op} in {layer.precision}, makes {layer.shape} {layer.output}"]
    if layer.sqnr_db is not None:
        parts.append(f"SQNR {layer.sqnr_db:.1f} dB")
    if layer.kl_share is not None:
        parts.append(f"share of the loss {layer.kl_share:.1%}")
    if layer.us is not None:
        parts.append(f"predicted {layer.us:.1f} us ({layer.bound})")
    if layer.kept:
        parts.append(layer.kept)
    return "\n".join(parts)


def graph_svg(flow: Flow, layers: Sequence[Layer]) -> Markup:
    """Step s is node s + 1; node 0 is the input, the last one the output."""
    count = len(layers) + 2
    pairs = [(e.writer + 1, e.reader + 1) for e in flow.edges]
    drawn = layered(count, pairs, WIDTH * SQUEEZE - 2 * MARGIN)
    gutter = max((c.tracks for c in drawn.columns), default=0) * TRACK + 12
    floor = max(drawn.y[c.end - 1] + NODE_H / 2 + (c.tracks * TRACK + 8 if c.tracks else 0) for c in drawn.columns)
    program = flow.program
    boxes = []
    for rank, items in enumerate(drawn.ranks):
        for item in items:
            if not item.lane:
                y = drawn.y[rank] + gutter + MARGIN
                if 0 < item.node < count - 1:
                    boxes.append(_box(item.x + MARGIN, y, layers[item.node - 1]))
                else:
                    ends = program.inputs if item.node == 0 else program.outputs
                    boxes.append(_end(item.x + MARGIN, y, "input" if item.node == 0 else "output",
                                      "\n".join(ends), program.tensors[ends[0]].dtype))
    width, height = drawn.width + 2 * MARGIN, floor + gutter + 2 * MARGIN
    scale = min(1.0, WIDTH / width)
    lines = [tag("path", d=path, class_="e", data_s=str(node - 1) if node else None)
             for node, path in _paths(drawn, gutter)]
    return tag("svg", tag("title", "The program's steps and what they hand on"), tag("g", *lines), tag("g", *boxes),
               class_="graph", viewBox=f"0 0 {width:.0f} {height:.0f}", width=f"{width * scale:.0f}",
               height=f"{height * scale:.0f}", role="group", aria_label="graph")


def _box(x: float, y: float, layer: Layer) -> Markup:
    left, top = x - NODE_W / 2, y - NODE_H / 2
    mark = sqnr_class(layer.sqnr_db)
    return tag("a", tag("title", describe(layer)),
               tag("rect", x=left, y=top, width=NODE_W, height=NODE_H, rx=5),
               tag("rect", x=left + 3, y=top + 4, width=4, height=NODE_H - 8, rx=2, class_=f"mark {mark}")
               if mark else None,
               tag("text", fitting(layer.op, NODE_W - 14, 10), x=left + 12, y=y - 4, class_="what"),
               tag("text", layer.shape, x=left + 12, y=y + 10, class_="shape"),
               tag("text", str(layer.number), x=left + NODE_W - 6, y=y + 10, class_="number"),
               href=f"#layer-{layer.number}", class_=f"n t-{layer.precision}{' kept' if layer.kept else ''}",
               data_s=layer.number)


def _end(x: float, y: float, word: str, names: str, dtype: str) -> Markup:
    return tag("g", tag("title", f"{word}: {names} ({dtype})"),
               tag("rect", x=x - 42, y=y - 13, width=84, height=26, rx=13),
               tag("text", word, x=x, y=y + 4, text_anchor="middle"), class_="end")


def _paths(drawn: Layering, gutter: float) -> list[tuple[int, str]]:
    """(node whose output it is, path) of every piece of edge."""
    found = []
    top = gutter + MARGIN
    starts = {column.first: c for c, column in enumerate(drawn.columns)}

    def ends(item: Item, rank: int, below: bool) -> tuple[float, float]:
        half = 0.0 if item.lane else (13.0 if item.node in (0, _last(drawn)) else NODE_H / 2)
        return item.x + MARGIN, drawn.y[rank] + top + (half if below else -half)
    for rank, items in enumerate(drawn.ranks):
        if rank + 1 in starts:
            found += _across(drawn, rank, starts[rank + 1], top, ends)
            continue
        for item in items:
            x, y = ends(item, rank, True)
            for other in item.below:
                to, end = ends(other, rank + 1, False)
                half = (end - y) / 2
                found.append((item.node, f"M{x:.1f} {y:.1f}C{x:.1f} {y + half:.1f} {to:.1f} {end - half:.1f} "
                                         f"{to:.1f} {end:.1f}"))
    return found


def _last(drawn: Layering) -> int:
    return max(item.node for items in drawn.ranks for item in items)


def _across(drawn: Layering, rank: int, column: int, top: float,
            ends: Callable[[Item, int, bool], tuple[float, float]]) -> list[tuple[int, str]]:
    """Edges to the next column: down, right, up in the gutter, right, down. The order of the tracks crosses nothing."""
    found = []
    before = drawn.columns[column - 1]
    items = crossing(drawn.ranks, rank + 1)
    floor = drawn.y[before.end - 1] + NODE_H / 2 + top
    for at, item in enumerate(items):                  # the leftmost goes lowest, and up farthest to the right
        inner = len(items) - at
        x, y = ends(item, rank, True)
        low = floor + 4 + inner * TRACK
        up = before.left + before.width + MARGIN + GAP_X + (inner - 1) * TRACK
        high = top - 8 - (at + 1) * TRACK + TRACK / 2
        for other in item.below:
            to, end = ends(other, rank + 1, False)
            bends = _bends([(x, low), (up, low), (up, high), (to, high)], (to, end))
            found.append((item.node, f"M{x:.1f} {y:.1f}{bends}"))
    return found


def _bends(corners: list[tuple[float, float]], end: tuple[float, float]) -> str:
    """Straight lines with round corners."""
    text, radius = "", 5.0
    points = [*corners, end]
    before: tuple[float, float] | None = None
    for (x, y), (nx, ny) in pairwise(points):
        px, py = before if before is not None else (x, y - 2 * radius)
        a = _toward((x, y), (px, py), radius)
        b = _toward((x, y), (nx, ny), radius)
        text += f"L{a[0]:.1f} {a[1]:.1f}Q{x:.1f} {y:.1f} {b[0]:.1f} {b[1]:.1f}"
        before = (x, y)
    return text + f"L{end[0]:.1f} {end[1]:.1f}"


def _toward(start: tuple[float, float], to: tuple[float, float], length: float) -> tuple[float, float]:
    dx, dy = to[0] - start[0], to[1] - start[1]
    far = max(abs(dx), abs(dy), 1e-9)
    part = min(1.0, length / far)
    return start[0] + dx * part, start[1] + dy * part

