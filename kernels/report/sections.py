"""The sections of the page below its head. Caller: `page.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..quant.gate import strict
from ..quant.verdict import against_limits
from .charts import error_chart, memory_chart, size_text, time_chart
from .dataflow import Flow
from .drawing import graph_svg
from .layers import TYPES, Layer
from .markup import Markup, breakable, joined, tag

BOUNDS = {"mma": "tensor cores", "l2": "L2 to SM", "dram": "DRAM", "epilogue": "epilogue arithmetic",
          "issue": "instruction issue", "fixed": "launch"}
WORST = 8
MARKS = (("q3", "below 15 dB"), ("q2", "15 to 25"), ("q1", "25 to 35"), ("q0", "35 and more"))


def _section(name: str, title: str, lead: object, *content: object) -> Markup:
    return tag("section", tag("h2", title), tag("p", lead, class_="lead"), *content, id=name)


def _swatch(class_: str, round_: bool = False) -> Markup:
    return tag("svg", tag("rect", x=1, y=1, width=10, height=10, rx=5 if round_ else 2, class_=class_), width=12,
               height=12, viewBox="0 0 12 12", aria_hidden="true")


def _legend(*entries: tuple[str, str]) -> Markup:
    return tag("ul", *(tag("li", _swatch(class_), text) for class_, text in entries), class_="legend")


def _link(layer: Layer, text: str) -> Markup:
    return tag("a", breakable(text), href=f"#layer-{layer.number}", title=layer.name)


def _short_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup:
    """A small table whose first column is text and whose others are numbers."""
    def cells(kind: str, row: Sequence[object]) -> Markup:
        return tag("tr", *(tag(kind, cell, class_=None if i == 0 else "r") for i, cell in enumerate(row)))
    return tag("table", tag("thead", cells("th", head)), tag("tbody", *(cells("td", row) for row in rows)))


def graph_section(flow: Flow, layers: Sequence[Layer]) -> Markup:
    used = [t for t in TYPES if any(layer.precision == t for layer in layers)]
    marks = MARKS if any(layer.sqnr_db is not None for layer in layers) else ()
    legend = _legend(*((f"t-{t}", TYPES[t]) for t in used), *((mark, f"SQNR {text}") for mark, text in marks))
    lead = ("Every box is a kernel, in running order from top to bottom, column by column; its number leads to its row "
            "in the table of layers. Parts of a Concat are made in place, so it has no box.")
    return _section("graph", "The graph", lead, legend, tag("div", graph_svg(flow, layers), class_="scroll"))


def error_section(report: Mapping[str, Any], layers: Sequence[Layer]) -> Markup:
    if not any(layer.sqnr_db is not None for layer in layers):
        whole = report["precision"] == "fp32"
        return _section("error", "Where the error is", "Every layer is FP32: nothing is rounded." if whole else
                        "Not measured: the build had no calibration pictures to compare the layers with FP32 on.")
    lead = ("SQNR compares each layer's output with FP32's on calibration pictures; what a layer inherits from those "
            "before it counts too. ")
    ranking = report.get("ranking", {"measured": False, "why": "the plan was built before shares were"})
    if ranking["measured"]:
        lead += (f"The share of the loss is the layer's own: what it costs when it alone is INT8, measured on "
                 f"{ranking['pictures']} pictures with the gate's figures, as part of the sum over all layers.")
        worst = sorted((v for v in layers if v.kl_share is not None), key=lambda v: -(v.kl_share or 0))[:WORST]
        title, head = "Layers that cost most", ("layer", "share", "SQNR")
        rows = [(_link(v, f"{v.number} {v.short}"), f"{v.kl_share or 0:.1%}", _db(v.sqnr_db)) for v in worst]
    else:
        lead += f"The share of the loss by layer was not measured: {ranking['why']}."
        worst = sorted((v for v in layers if v.sqnr_db is not None), key=lambda v: v.sqnr_db or 0.0)[:WORST]
        title, head = "Layers with the lowest SQNR", ("layer", "type", "SQNR")
        rows = [(_link(v, f"{v.number} {v.short}"), _type(v), _db(v.sqnr_db)) for v in worst]
    aside = tag("div", tag("h3", title), _short_table(head, rows))
    chart = tag("div", error_chart(layers), class_="scroll")
    if any(layer.kept for layer in layers):
        chart = joined(chart, _legend(("share", "runs in INT8"), ("share kept", "kept in FP16 for what it would cost")))
    return _section("error", "Where the error is", lead, tag("div", tag("div", chart), aside, class_="two"),
                    _kept(report, layers))


def _kept(report: Mapping[str, Any], layers: Sequence[Layer]) -> Markup | None:
    """The layers that mixed precision keeps in FP16, and why."""
    kept = [layer for layer in layers if layer.kept]
    if not kept:
        return None
    told = report["mixed"]
    said = (f"{len(kept)} layers stay in FP16, {told['macs_fp16']:.1%} of the multiply-accumulates. On "
            f"{told['pictures']} calibration pictures all in INT8 is {against_limits(strict(told['int8']))}")
    said += f", all in FP16 {against_limits(strict(told['fp16']))}" if "fp16" in told else ""
    said += f", false alarms counted. The held-back pictures were looked at {told['looks']} times."
    kept.sort(key=lambda v: -(v.cost or 0.0))
    head = tag("tr", tag("th", "layer"), tag("th", "operator"), tag("th", "why it is not INT8"))

    def table(part: Sequence[Layer]) -> Markup:
        rows = [tag("tr", tag("td", _link(v, f"{v.number} {v.short}"), class_="name"), tag("td", v.op, class_="nowrap"),
                    tag("td", v.kept, class_="why")) for v in part]
        return tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll")
    rest = kept[WORST:]
    more = tag("details", tag("summary", f"{len(rest)} more"), table(rest)) if rest else None
    return joined(tag("h3", "Kept in FP16", class_="apart"), tag("p", said, class_="soft"), table(kept[:WORST]), more)


def _db(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} dB"


def time_section(predicted: Sequence[Mapping[str, Any]], one: Mapping[str, Any] | None,
                 layers: Sequence[Layer]) -> Markup:
    """`one` of the tables `predicted` has the layers' times."""
    if one is None:
        return _section("time", "Where the time is", "No prediction: name a board with --board.")
    l2, dram = one["band"]["l2_bytes_per_clock"], one["band"]["dram_share"]
    lead = (f"What the time model predicts for {one['board']} in mode {one['mode']}, batch {one['batch']}: a model, "
            f"not a measurement. It takes kernels of TensorRT's quality. The band is what its sources leave open: L2 "
            f"{l2[0]:g} to {l2[1]:g} bytes a clock and SM, DRAM {dram[0]:.2f} to {dram[1]:.2f} of the pin rate.")
    total = sum(layer.us or 0.0 for layer in layers) or 1.0
    sums = {bound: sum(v.us or 0.0 for v in layers if v.bound == bound) for bound in BOUNDS}
    bounds = [(joined(_swatch(f"b-{bound}"), " ", BOUNDS[bound]), f"{us:.0f}", f"{us / total:.0%}")
              for bound, us in sorted(sums.items(), key=lambda item: -item[1]) if us]
    slow = sorted(layers, key=lambda v: -(v.us or 0.0))[:WORST]
    aside = tag("div", tag("h3", "What bounds it"), _short_table(("the largest term", "µs", "share"), bounds),
                tag("h3", "Longest"), _short_table(("layer", "µs", "share"), [
                    (_link(v, f"{v.number} {v.short}"), f"{v.us or 0:.1f}", f"{(v.us or 0) / total:.0%}")
                    for v in slow[:5]]), class_="aside")
    head = ("board and mode", "SMs", "GPU MHz", "DRAM GB/s", "batch", "ms a run", "band, ms", "frames/s")
    rows = [(f"{t['board']}:{t['mode']}", t["sms"], f"{t['gpu_mhz']:.0f}", f"{t['dram_gb_s']:.0f}", t["batch"],
             f"{t['us'] / 1e3:.3f}", f"{t['low_us'] / 1e3:.3f} to {t['high_us'] / 1e3:.3f}",
             f"{t['batch'] * 1e6 / t['us']:,.0f}") for t in predicted]
    chart = tag("div", time_chart(layers, one.get("launch_us")), class_="scroll")
    return _section("time", "Where the time is", lead, tag("div", chart, aside, class_="two"),
                    tag("div", _short_table(head, rows), class_="scroll"))


def energy_section(tables: Sequence[Mapping[str, Any]]) -> Markup:
    """`tables` as predicted for a board's modes, with `energy`; without any there is no such section."""
    if not tables:
        return Markup("")
    energy = tables[0]["energy"]
    lead = (f"A model's figures, not measured ones: the time model's times and bytes, and the board's power model at "
            f"{energy['tj_c']:g} °C with one batch after the other, as a stress load has it. Above idle is what an "
            f"inference adds to a board that idles at {energy['idle_w']:g} W.")
    head = ("board and mode", "GPU MHz", "batch", "ms a run", "W", "mJ an inference", "above idle", "DRAM GB/s")
    rows = [(f"{t['board']}:{t['mode']}", f"{row['gpu_mhz']:g}", t["batch"], f"{row['us'] / 1e3:.3f}",
             f"{row['board_w']:.1f}", f"{row['joules'] * 1e3:.3f}", f"{row['joules_above_idle'] * 1e3:.3f}",
             f"{row['gb_per_s']:.1f}") for t in tables for row in t["energy"]["clocks"]]
    return _section("energy", "What an inference costs", lead, tag("div", _short_table(head, rows), class_="scroll"))


def memory_section(flow: Flow, layers: Sequence[Layer]) -> Markup:
    program = flow.program
    live = max(flow.live_bytes())
    lead = (f"The arena of batch {program.batch}: {program.arena_bytes:,} bytes, shared by {len(flow.buffers)} buffers "
            f"of {size_text(sum(b.nbytes for b in flow.buffers))} in all. The most that is in use at once is {live:,} "
            f"bytes: the arena is {program.arena_bytes / max(live, 1):.2f} times that. Left to right are the steps; "
            "dashed: input and outputs, kept for the whole run.")
    return _section("memory", "Memory over time", lead,
                    tag("div", memory_chart(flow, layers), class_="scroll wide"))


def pass_section(report: Mapping[str, Any]) -> Markup:
    told = report.get("passes")
    if told is None:
        return _section("passes", "Graph passes", "The plan was built before passes were recorded: build it again.")
    board = told["device"]
    where = f" Latency on {board['board']} {board['mode']}, predicted." if board else ""
    rows, idle, last = [], [], None
    for row in told["rows"]:
        if last is not None and not row["changed"]:
            idle.append(row["name"])
            continue
        rows.append(tag("tr", tag("td", _said(row["name"])), *(
            _change(row[key], last[key] if last else None, show)
            for key, show in (("nodes", str), ("kernels", str), ("us", lambda v: f"{v:.0f} µs"),
                              ("peak_bytes", size_text))), title=row["why"] or None))
        last = row
    head = tag("tr", tag("th", "after the pass"), *(tag("th", text, class_="r") for text in (
        "nodes", "kernels", "latency", "peak memory")))
    lead = f"{told['what'][:1].upper()}{told['what'][1:]}.{where}"
    end = next((row for row in reversed(told["rows"]) if row["us"]), told["rows"][-1])
    first = next((row for row in told["rows"] if row["us"]), end)
    if first is not end:
        lead += (f" From {first['kernels']} kernels and {first['us'] / 1e3:.2f} ms (after {_said(first['name'])}) to "
                 f"{end['kernels']} and {end['us'] / 1e3:.2f} ms.")
    note = f"{len(idle)} passes changed nothing: " + ", ".join(map(_said, idle)) + "." if idle else ""
    body = tag("table", tag("thead", head), tag("tbody", *rows))
    return _section("passes", "Graph passes", lead, tag("div", body, class_="scroll"),
                    tag("p", note, class_="soft") if note else None)


def _said(name: str) -> str:
    return name.replace("_", " ")


def _change(value: Any, before: Any, show: Any) -> Markup:
    if value is None:
        return tag("td", "-", class_="r")
    change = None
    if before and value != before:
        part = value / before - 1
        change = tag("span", f" {part:+.0%}".replace("-", "−"), class_="saved" if part < 0 else "lost")
    return tag("td", show(value), change, class_="r")


def _type(layer: Layer) -> str:
    word = TYPES.get(layer.precision, layer.precision)
    return word if layer.output == layer.precision else f"{word} → {TYPES.get(layer.output, layer.output)}"


def _sum_us(layers: Sequence[Layer]) -> str:
    return f"{sum(v.us for v in layers if v.us is not None):.1f}" if any(v.us is not None for v in layers) else ""


def layer_section(layers: Sequence[Layer]) -> Markup:
    names = ("", "layer", "operator", "shape", "type", "SQNR, dB", "share of loss", "MMAC", "KiB", "µs", "bound by")
    head = tag("tr", *(tag("th", name, class_="r" if i in (0, 5, 6, 7, 8, 9) else None)
                       for i, name in enumerate(names)))
    rows = [tag("tr", tag("td", str(v.number), class_="r soft"),
                tag("td", breakable(v.short), class_="name", title=v.name), tag("td", v.op, class_="nowrap"),
                tag("td", v.shape, class_="nowrap"),
                tag("td", tag("span", _type(v), class_=f"chip t-{v.precision}"), class_="nowrap"),
                *(tag("td", text, class_="r") for text in (
                    "" if v.sqnr_db is None else f"{v.sqnr_db:.1f}", "" if v.kl_share is None else f"{v.kl_share:.1%}",
                    f"{v.macs / 1e6:.2f}" if v.macs else "", f"{v.nbytes / 1024:.1f}",
                    "" if v.us is None else f"{v.us:.1f}")),
                tag("td", BOUNDS.get(v.bound, v.bound), class_="nowrap soft"), id=f"layer-{v.number}", data_s=v.number)
            for v in layers]
    foot = tag("tr", tag("td"), tag("td", "together"), tag("td"), tag("td"), tag("td"), tag("td"), tag("td"),
               tag("td", f"{sum(v.macs for v in layers) / 1e6:.2f}", class_="r"),
               tag("td", f"{sum(v.nbytes for v in layers) / 1024:.1f}", class_="r"),
               tag("td", _sum_us(layers), class_="r"), tag("td"))
    lead = ("Bytes are constants plus what the layer reads and writes, one frame. Empty: not measured, or the layer "
            "has none. Times are predicted.")
    cut = [v for v in layers if v.name.endswith(v.short) and v.short != v.name.lstrip("/")]
    if cut:
        start = cut[0].name[:len(cut[0].name) - len(cut[0].short)]
        lead += f" Names are given without the common {start}"
    return _section("layers", "Layers", lead, tag("div", tag("table", tag("thead", head), tag("tbody", *rows),
                                                             tag("tfoot", foot)), class_="scroll"))
