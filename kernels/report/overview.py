"""The head of the page: name, verdict of the accuracy gate with its figures against their limits, facts, warnings.

Caller: `page.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..quant.verdict import against_limits, agreement, gate_of
from .charts import size_text
from .layers import TYPES, Layer, precision_of
from .markup import Markup, joined, tag

METER = 150.0
LIMIT_AT = 0.8
"""Where the limit's mark stands on a meter."""


def header(table: Mapping[str, Any], layers: Sequence[Layer], predicted: Mapping[str, Any] | None) -> Markup:
    spec, report, made = table["spec"], table["report"], table["provenance"]
    sub = tag("p", f"task {spec['task']}, built from ", tag("code", made["model"]), f" by orind {made['orind']}",
              class_="soft")
    title = tag("div", tag("div", "Plan report", class_="over"), tag("h1", spec["name"]), sub)
    warnings = [tag("p", "Warning: ", text, class_="warning") for text in report.get("warnings", ())]
    return tag("header", tag("div", title, verdict(report), class_="top"), gate_figures(gate_of(report)),
               *warnings, tag("div", *_tiles(table, layers, predicted), class_="tiles"), _provenance(table))


def verdict(report: Mapping[str, Any]) -> Markup:
    gate = report.get("gate") or {}
    kind, word, small = "open", "Accuracy not measured", "no held-back pictures were given"
    if report["precision"] == "fp32":
        kind, word, small = "good", "FP32", "nothing is rounded: there is nothing to judge"
    elif gate:
        small = f"on {gate['pictures']} held-back pictures"
        if gate["met"] is None:
            word, small = "No verdict", gate.get("error", small)
        elif not gate["is_gate"]:
            word = "Figures, not a gate"
            small += ": too few for a verdict"
        elif gate["met"]:
            kind, word = "good", "Accuracy gate met"
        else:
            kind, word = "bad", "Accuracy gate NOT met"
            small += "; built all the same with --accept-loss"
    return tag("div", word, tag("small", small), class_=f"verdict {kind}")


def figures_of(gate: Mapping[str, Any]) -> list[tuple[str, str, str, float]]:
    """(figure, value, limit, part of the limit that is used up) of each figure that has a limit."""
    found = []
    if "kl_mean" in gate:
        found.append(("KL divergence, mean", f"{gate['kl_mean']:.3g} nats", f"at most {gate['limit_kl']:g}",
                      gate["kl_mean"] / gate["limit_kl"]))
    if "iou_mean" in gate:
        found.append(("IoU of boxes, mean", f"{gate['iou_mean']:.4f}", f"at least {gate['least_iou']:g}",
                      (1 - gate["iou_mean"]) / (1 - gate["least_iou"])))
    if "sqnr_db" in gate:
        found.append(("SQNR of the outputs", f"{gate['sqnr_db']:.1f} dB", f"at least {gate['least_sqnr_db']:g} dB",
                      10 ** ((gate["least_sqnr_db"] - gate["sqnr_db"]) / 10)))
    return found


def gate_figures(gate: Mapping[str, Any]) -> Markup | None:
    rows = [tag("tr", tag("td", name), tag("td", value, class_="r"), tag("td", meter(used)),
                tag("td", limit, class_="soft nowrap"), tag("td", _margin(used), class_="r nowrap"))
            for name, value, limit, used in figures_of(gate)]
    more = []
    if "kl_p99" in gate:
        more.append(f"KL P99 {gate['kl_p99']:.3g} nats")
    if "agreement" in gate:
        more.append(agreement(dict(gate)))
    more += [f"{gate[what]} {what}" for what in ("anchors", "pixels") if what in gate]
    if "others_sqnr_db" in gate:
        more.append(f"SQNR of the other outputs {gate['others_sqnr_db']:.1f} dB")
    if gate.get("false_alarms"):
        share = f" (with them {against_limits(gate['strict'])})" if "strict" in gate else ""
        more.append(f"false alarms: {gate['false_alarms']}{share}")
    if "looks" in gate:
        more.append(f"FP16 layers chosen on calibration pictures, look {gate['looks']} at these")
    if gate.get("overflow"):
        more.append(f"overflow in {gate['overflow']}")
    if not rows and not more:
        return None
    return tag("div", tag("table", tag("tbody", *rows)) if rows else None,
               tag("p", ", ".join(more), class_="soft") if more else None, class_="scroll gate")


def _margin(used: float) -> str:
    return f"margin: {1 - used:.0%} left" if used <= 1 else f"exceeded by {used - 1:.0%}"


def meter(used: float) -> Markup:
    """How much of what a limit permits is used up; the mark is the limit."""
    mark = METER * LIMIT_AT
    width = min(max(used, 0.0) * mark, METER)
    return tag("svg", tag("rect", x=0, y=3, width=METER, height=8, rx=4, class_="track"),
               tag("rect", x=0, y=3, width=max(width, 2.0), height=8, rx=min(4.0, width / 2),
                   class_="fill-good" if used <= 1 else "fill-bad"),
               tag("line", x1=mark, x2=mark, y1=0, y2=14, class_="limit"),
               width=METER, height=14, viewBox=f"0 0 {METER:.0f} 14", role="img",
               aria_label=f"{used:.0%} of what the limit permits")


def _tiles(table: Mapping[str, Any], layers: Sequence[Layer],
           predicted: Mapping[str, Any] | None) -> list[Markup]:
    spec, report = table["spec"], table["report"]
    macs = sum(layer.macs for layer in layers)
    counts = ((word, sum(layer.precision == kind for layer in layers)) for kind, word in TYPES.items())
    said = ", ".join(f"{count} in {word}" for word, count in counts if count)
    arenas = sorted(((int(n), size) for n, size in report["arena_bytes"].items()))
    precision, chosen = precision_of(report)
    found = [("precision", precision.upper(), f"kernels: {said}{f'; {chosen}' if chosen else ''}"),
             ("kernels", f"{report['nodes_before']} → {report['steps']}", "nodes of the model → kernels"),
             ("input", "×".join(map(str, table["input"]["shape"])),
              f"{table['input']['dtype']}, batch {' or '.join(map(str, spec['batch']))}")]
    if predicted:
        board, low, high = f"{predicted['board']} {predicted['mode']}", predicted["low_us"], predicted["high_us"]
        found.append(("predicted time", f"{predicted['us'] / 1e3:.2f} ms", f"{board}, batch {predicted['batch']}; "
                      f"{low / 1e3:.2f} to {high / 1e3:.2f}; a model, not measured"))
    found += [("arithmetic", f"{macs / 1e6:,.0f} M", "multiply-accumulates"),
              ("memory", size_text(arenas[0][1]), "arena, batch " + "; ".join(
                  str(n) if i == 0 else f"{n}: {size_text(size)}" for i, (n, size) in enumerate(arenas))),
              ("weights", size_text(report["weight_bytes"]), f"plan file {size_text(table['bytes'])}")]
    return [tag("div", tag("span", name), tag("b", value), tag("span", text), class_="tile")
            for name, value, text in found]


def _provenance(table: Mapping[str, Any]) -> Markup:
    spec, report, made = table["spec"], table["report"], table["provenance"]
    facts: list[tuple[str, str]] = [("SHA-256 of the plan", tag("code", table["sha256"])),
             ("SHA-256 of the model", tag("code", made["model_sha256"]))]
    if spec["labels"]:
        shown = ", ".join(spec["labels"][:20])
        more = len(spec["labels"]) - 20
        facts.append(("labels", shown + (f" and {more} more" if more > 0 else "")))
    if told := report.get("calibration"):
        left = len(told.get("tensors_that_left", ()))
        facts.append(("calibration", f"{told['method']} on {told['pictures']} pictures"
                      + (f"; {left} tensors took another method, at less loss" if left else "")))
    return tag("dl", *(joined(tag("dt", name), tag("dd", value)) for name, value in facts))
