"""A plan's facts as lines for a terminal of 120 to 140 columns. Caller: `inspect_command.py`.

Names come from a model that someone else made: characters that would steer a terminal are replaced.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..kernels.ir.program import Program
from ..kernels.quant.verdict import gate_lines, gate_of
from ..kernels.report.layers import Layer, precision_of, predicted_for, records_of
from ..kernels.report.markup import clean
from . import prediction

NAME, OP, WIDTH = 38, 26, 132
SHORT = {"int8": "i8", "uint8": "u8", "float16": "f16", "float32": "f32"}


def lines(path: Path, table: Mapping[str, Any], programs: Mapping[int, Program], whole: bool) -> list[str]:
    """Facts, accuracy, warnings, and what the models predict of time and energy; `whole`: passes and layers too."""
    spec, report, made = table["spec"], table["report"], table["provenance"]
    predicted = table.get("predicted") or report.get("predicted")
    shape = "x".join(map(str, table["input"]["shape"]))
    program = programs[spec["batch"][0]]
    layers = records_of(program, report, predicted_for(program, predicted or ()))
    text = [
        f"{path}: {spec['name']}, {spec['task']}, {_precision(report)}, {table['bytes']} bytes",
        f"sha256   {table['sha256']}",
        f"input    {table['input']['dtype']} {shape}, batch sizes {', '.join(map(str, spec['batch']))}",
        *([f"labels   {', '.join(spec['labels'][:12])}{' ...' if len(spec['labels']) > 12 else ''}"]
          if spec["labels"] else []),
        f"graph    {report['nodes_before']} nodes before, {report['steps']} kernels after",
        f"made by  orind {made['orind']} from {made['model']}, sha256 {made['model_sha256']}{_shapes(made['shapes'])}",
        *([f"scales   {_calibration(report['calibration'])}"] if report.get("calibration") else []),
        *gate_lines(gate_of(report)),
        *(f"warning  {warning}" for warning in report.get("warnings", ())),
    ]
    if predicted:
        text += prediction.lines(predicted)
    if "predicted" in table:
        text += prediction.energy_lines(table["predicted"])
    if whole:
        text += ["", *_passes(report["passes"])] if "passes" in report else []
        text += ["", *_layers(layers), *_shares(report), *_kept(layers)]
        text += prediction.by_layer(predicted) if predicted else []
    else:
        text += ["", f"{len(layers)} layers and the passes: --layers; all of it: --json, --html FILE"]
    return [line for each in text for line in _wrapped(clean(each))]


def _shapes(shapes: Mapping[str, Sequence[int]]) -> str:
    """Those that were given for the model's inputs."""
    return "".join(f", {name} as {'x'.join(map(str, shape))}" for name, shape in shapes.items())


def _calibration(told: Mapping[str, Any]) -> str:
    """How tensors got their scales."""
    held = f"; {told['held_back']} pictures held back to judge" if told.get("held_back") else ""
    if told["method"] == "file":
        return f"{told['scales_kept']} of the file kept, {told['scales_coded_again']} coded again{held}"
    left = len(told.get("tensors_that_left", ()))
    others = f"; {left} tensors use another method" if left else ""
    given = f"{told['pictures_given']} given " if told["pictures_given"] != told["pictures"] else ""
    return f"{told['method']} on {told['pictures']} {f'of {given}' if given else ''}pictures{others}{held}"


def _precision(report: Mapping[str, Any]) -> str:
    precision, chosen = precision_of(report)
    return f"{precision} ({chosen})" if chosen else precision


def _wrapped(line: str) -> list[str]:
    """What is wider than WIDTH goes on in further lines."""
    if len(line) <= WIDTH:
        return [line]
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * 9, break_on_hyphens=False)


def _passes(told: Mapping[str, Any]) -> list[str]:
    board = told["device"]
    where = f"; latency predicted for {board['board']}:{board['mode']}, not measured" if board else ""
    text = [f"passes that changed something, {told['what']}{where}",
            f"{'after':28} {'nodes':>6} {'kernels':>8} {'us':>10} {'peak KB':>10}"]
    for row in told["rows"]:
        if row["changed"] or row is told["rows"][0] or row is told["rows"][-1]:
            us = "-" if row["us"] is None else f"{row['us']:.1f}"
            peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1024:.1f}"
            text.append(f"{row['name']:28} {row['nodes']:6} {row['kernels'] or '-':>8} {us:>10} {peak:>10}")
    return text


def _layers(layers: Sequence[Layer]) -> list[str]:
    text = [f"{'layer':{NAME}} {'op':{OP}} {'shape':>13} {'type':>8} {'SQNR':>6} {'share':>6} {'MMAC':>8} {'KB':>8} "
            f"{'us':>7}"]
    for layer in layers:
        text.append(
            f"{_cut(layer.short, NAME):{NAME}} {layer.op[:OP]:{OP}} {layer.shape:>13} {_type(layer):>8} "
            f"{_figure(layer.sqnr_db, '.1f'):>6} {_figure(layer.kl_share, '.1%'):>6} {layer.macs / 1e6:8.2f} "
            f"{layer.nbytes / 1024:8.1f} {_figure(layer.us, '.1f'):>7}")
    macs, moved = sum(v.macs for v in layers), sum(v.nbytes for v in layers)
    text.append(f"{'together':{NAME}} {'':{OP}} {'':>13} {'':>8} {'':>6} {'':>6} {macs / 1e6:8.2f} {moved / 1024:8.1f} "
                + (f"{sum(v.us or 0 for v in layers):7.1f}" if layers and layers[0].us is not None else ""))
    return text


def _shares(report: Mapping[str, Any]) -> list[str]:
    """What `share` is, or why it is empty."""
    told = report.get("ranking")
    if told is None:
        return []
    if told["measured"]:
        return [f"share: what the layer alone in INT8 costs, of the sum over all layers; {told['pictures']} pictures"]
    return [f"share: not measured, {told['why']}"]


def _kept(layers: Sequence[Layer]) -> list[str]:
    kept = [layer for layer in layers if layer.kept]
    return ["", "kept in FP16", *(f"  {_cut(v.short, NAME):{NAME}} {v.kept}" for v in kept)] if kept else []


def _type(layer: Layer) -> str:
    """The type that the layer computes in, and what it makes where that is another."""
    return layer.precision if layer.output == layer.precision else f"{layer.precision}>{SHORT.get(layer.output, '?')}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else "..." + text[len(text) - width + 3:]


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
