"""Bars by layer as SVG: where the error is, where the predicted time is, and the memory map over time.

Caller: `page.py`. Horizontal place is the layer's number in running order, the same in all charts. All lengths are in
CSS pixels; colours are classes of the page's style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .dataflow import Buffer, Flow
from .drawing import describe, fitting, sqnr_class
from .layers import Layer
from .markup import Markup, tag

WIDTH = 780.0
LEFT, RIGHT = 54.0, 10.0
PANEL = 150.0
TIME_HEIGHT = 300.0
MEMORY_HEIGHT = 330.0
WIDE = 1150.0
NUMBERED = (1, 2, 5, 10, 20, 50, 100, 200, 500)


def tick_step(top: float, most: int = 5) -> float:
    """A round distance of at most `most` lines up to `top`."""
    if top <= 0:
        return 1.0
    least = top / most
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


def byte_step(top: int) -> int:
    """As `tick_step`, a power of two."""
    step = 1024
    while top / step > 6:
        step *= 2
    return step


def size_text(nbytes: float) -> str:
    """Bytes for a person, in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 100 else f"{nbytes:.3g} {unit}"


class _Plot:
    """A panel with a grid: `at` the x of a layer, `up` the y of a value."""

    def __init__(self, top_y: float, height: float, count: int, top: float, width: float = WIDTH) -> None:
        self.y, self.height, self.top, self.width = top_y, height, top or 1.0, width
        self.pitch = (width - LEFT - RIGHT) / max(count, 1)
        self.bar = max(1.0, min(self.pitch - max(1.0, self.pitch * 0.22), 16.0))

    def at(self, number: float) -> float:
        return LEFT + (number + 0.5) * self.pitch

    def up(self, value: float) -> float:
        return self.y + self.height * (1 - value / self.top)

    def grid(self, step: float, text: str) -> list[Markup]:
        found = []
        for i in range(int(self.top / step + 1e-9) + 1):
            y = self.up(i * step)
            found.append(tag("line", x1=LEFT, x2=self.width - RIGHT, y1=y, y2=y, class_="grid"))
            found.append(tag("text", text.format(i * step), x=LEFT - 7, y=y + 3.5, class_="tick", text_anchor="end"))
        return found

    def numbers(self, count: int) -> list[Markup]:
        """Numbers of layers under the panel."""
        step = next((n for n in NUMBERED if n * self.pitch >= 28), NUMBERED[-1])
        return [tag("text", str(i), x=self.at(i), y=self.y + self.height + 14, class_="tick", text_anchor="middle")
                for i in range(0, count, step)]

    def column(self, layer: Layer, *marks: Markup | None) -> Markup:
        """A layer's marks, linked, over an invisible bar of the panel's height that is easy to hit."""
        hit = tag("rect", x=LEFT + layer.number * self.pitch, y=self.y, width=self.pitch, height=self.height,
                  class_="hit")
        return tag("a", tag("title", describe(layer)), hit, *marks, href=f"#layer-{layer.number}", class_="c",
                   data_s=layer.number)


def error_chart(layers: Sequence[Layer]) -> Markup:
    """Two panels: SQNR of each layer's output; its share of the loss, where that was measured."""
    shares = any(layer.kl_share is not None for layer in layers)
    count = len(layers)
    measured = [layer.sqnr_db for layer in layers if layer.sqnr_db is not None]
    top = max(10.0, math.ceil(max(measured, default=10.0) / 10) * 10)
    upper = _Plot(24, PANEL, count, top)
    parts: list[Markup] = [tag("text", "SQNR of the output, dB: higher is better", x=LEFT, y=12, class_="axis")]
    parts += upper.grid(10 if top <= 60 else 20, "{:.0f}")
    points = [(upper.at(v.number), upper.up(max(v.sqnr_db, 0.0))) for v in layers if v.sqnr_db is not None]
    parts.append(tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), class_="thread") if points
                 else Markup())
    for layer in layers:
        if layer.sqnr_db is not None:
            dot = tag("circle", cx=upper.at(layer.number), cy=upper.up(max(layer.sqnr_db, 0.0)),
                      r=max(1.6, min(3.4, upper.pitch * 0.36)), class_=f"dot {sqnr_class(layer.sqnr_db)}")
            parts.append(upper.column(layer, dot))
    height = 24 + PANEL + 24
    lower = upper
    if shares:
        most = max(layer.kl_share or 0.0 for layer in layers) * 100
        lower = _Plot(height + 26, PANEL, count, most * 1.05)
        parts.append(tag("text", "Share of the loss, %: what the layer alone in INT8 costs, of the sum over all layers",
                         x=LEFT, y=height + 14, class_="axis"))
        parts += lower.grid(tick_step(most), "{:g}")
        for layer in layers:
            if layer.kl_share is not None:
                y = lower.up(layer.kl_share * 100)
                bar = tag("rect", x=lower.at(layer.number) - lower.bar / 2, y=y, width=lower.bar,
                          height=max(lower.y + lower.height - y, 0.75), rx=min(2.0, lower.bar / 3),
                          class_="share kept" if layer.kept else "share")
                parts.append(lower.column(layer, bar))
        height += 26 + PANEL + 24
    parts += lower.numbers(count)
    return _svg(parts, WIDTH, height, "SQNR and share of the loss by layer")


def time_chart(layers: Sequence[Layer], launch_us: float | None) -> Markup:
    """Predicted time of each layer with its band, coloured by what bounds it; `launch_us` of it a kernel costs anyhow.
    """
    top = max((layer.high_us or 0.0 for layer in layers), default=1.0)
    plot = _Plot(24, TIME_HEIGHT, len(layers), top * 1.04)
    parts: list[Markup] = [tag("text", "Predicted time, µs (a model, not measured); the thin line is the band",
                               x=LEFT, y=12, class_="axis"), *plot.grid(tick_step(top), "{:g}")]
    for layer in layers:
        if layer.us is None or layer.low_us is None or layer.high_us is None:
            continue
        x, y = plot.at(layer.number), plot.up(layer.us)
        bar = tag("rect", x=x - plot.bar / 2, y=y, width=plot.bar, height=plot.y + plot.height - y,
                  rx=min(2.0, plot.bar / 3), class_=f"b-{layer.bound}")
        band = tag("line", x1=x, x2=x, y1=plot.up(layer.high_us), y2=plot.up(layer.low_us), class_="band")
        parts.append(plot.column(layer, bar, band))
    if launch_us is not None:
        y = plot.up(launch_us)
        parts += [tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="floor"),
                  tag("text", f"{launch_us:g} µs: what launching a kernel costs anyhow", x=WIDTH - RIGHT, y=12,
                      class_="floor-text", text_anchor="end")]
    return _svg([*parts, *plot.numbers(len(layers))], WIDTH, 24 + TIME_HEIGHT + 24, "predicted time by layer")


def memory_chart(flow: Flow, layers: Sequence[Layer]) -> Markup:
    """Each buffer as a rectangle: its steps across, its bytes upwards; the fullest step is marked."""
    program, count = flow.program, len(layers)
    plot = _Plot(40, MEMORY_HEIGHT, count, float(program.arena_bytes), WIDE)
    live = flow.live_bytes()
    peak = max(range(count), key=live.__getitem__)
    parts: list[Markup] = [tag("text", "Offset in the arena", x=LEFT, y=12, class_="axis")]
    step = byte_step(program.arena_bytes)
    for offset in range(0, program.arena_bytes + 1, step):
        y = plot.up(offset)
        parts += [tag("line", x1=LEFT, x2=WIDE - RIGHT, y1=y, y2=y, class_="grid"),
                  tag("text", size_text(offset), x=LEFT - 7, y=y + 3.5, class_="tick", text_anchor="end")]
    ends = {*program.inputs, *program.outputs}
    x = plot.at(peak)
    for buffer in flow.buffers:
        held = sorted(ends & set(buffer.tensors))
        word = ", ".join(held) if held else f"{buffer.first} {layers[buffer.first].op}"
        parts.append(_buffer(buffer, plot, count, word, bool(held),
                             bool(held) and x < WIDE / 2))
    side = "end" if x > WIDE / 2 else "start"
    parts += [tag("line", x1=x, x2=x, y1=22, y2=plot.y + plot.height, class_="peak"),
              tag("text", f"fullest at step {peak}: {size_text(live[peak])} in use", class_="peak-text",
                  x=x + (-5 if side == "end" else 5), y=32, text_anchor=side), *plot.numbers(count)]
    return _svg(parts, WIDE, plot.y + plot.height + 24, "memory map")


def _buffer(buffer: Buffer, plot: _Plot, count: int, word: str, pinned: bool,
            right: bool) -> Markup:
    """`word` stands at its right end where `right`: away from the mark of the fullest step."""
    first, last, dtype = max(buffer.first, 0), min(buffer.alone_to, count - 1), buffer.dtype
    x, width = LEFT + first * plot.pitch, (last - first + 1) * plot.pitch
    y, height = plot.up(buffer.end), plot.height * buffer.nbytes / plot.top
    whole = "the whole run" if pinned else f"steps {first} to {last}"
    title = "\n".join([f"{size_text(buffer.nbytes)} at {buffer.offset}, {whole}, {dtype}", *buffer.tensors]
                      + (["a later buffer takes its place"] if buffer.replaced else []))
    label = tag("text", fitting(word, width - 8, 9.5), x=x + width - 5 if right else x + 5,
                text_anchor="end" if right else None, y=y + min(height / 2 + 3.5, 14), class_="buffer-name")
    return tag("a", tag("title", title),
               tag("rect", x=x + 0.5, y=y + 0.5, width=max(width - 1, 0.5), height=max(height - 1, 0.5),
                   rx=min(2.5, height / 3, width / 3), class_=f"buffer t-{dtype}{' pinned' if pinned else ''}",
                   data_offset=buffer.offset, data_bytes=buffer.nbytes, data_first=buffer.first,
                   data_last=buffer.last),
               label if width > 44 and height > 12 else None, href=f"#layer-{first}",
               data_s=None if pinned else first)


def _svg(parts: Sequence[Markup], width: float, height: float, label: str) -> Markup:
    return tag("svg", *parts, viewBox=f"0 0 {width:.0f} {height:.0f}", class_="chart", role="group", aria_label=label)
