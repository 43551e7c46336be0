"""`orind inspect PLAN --html FILE`: one page that says what a plan is, where its error is and where its time goes.

Caller: `daemon/inspect_command.py`. Self-contained: its policy (CSP) lets it load nothing, and run and apply only its
own script and style, by their hashes. Every number comes from the plan's program and report or from the models of time
and power.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..ir.program import Program
from .dataflow import Flow
from .layers import predicted_for, records_of
from .markup import Markup, joined, tag
from .overview import header
from .sections import (
    energy_section,
    error_section,
    graph_section,
    layer_section,
    memory_section,
    pass_section,
    time_section,
)
from .style import CSS, SCRIPT

SECTIONS = (("graph", "Graph"), ("error", "Error"), ("time", "Time"), ("energy", "Energy"),
            ("memory", "Memory"), ("passes", "Passes"), ("layers", "Layers"))


def page(table: Mapping[str, Any], program: Program, predicted: Sequence[Mapping[str, Any]],
         energy: Sequence[Mapping[str, Any]] = ()) -> str:
    """The whole page. `table` as `orind inspect --json` prints it, `program` that of its smallest served batch size,
    `predicted` the time model's tables, of which the first one's layers are shown; `energy` those with energy as well.
    Raises PlanError for a report and a program that do not belong together, or of an older orind."""
    report = table["report"]
    one = predicted_for(program, predicted)
    layers = records_of(program, report, one)
    flow = Flow(program)
    content = [graph_section(flow, layers), error_section(report, layers), time_section(predicted, one, layers),
               energy_section(energy), memory_section(flow, layers), pass_section(report),
               layer_section(layers)]
    there = [(name, text) for name, text in SECTIONS if energy or name != "energy"]
    navigation = tag("nav", tag("div", *(tag("a", text, href=f"#{name}") for name, text in there)),
                     aria_label="sections")
    footer = tag("footer", "Made by orind inspect --html. Predicted times and energy come from models of the board, "
                           "not from a measurement; SQNR, share of the loss and the gate's figures were measured by "
                           "the build.")
    body = joined(header(table, layers, one), navigation, tag("main", *content), footer, tag("script", Markup(SCRIPT)))
    policy = (f"default-src 'none'; style-src '{_hash(CSS)}'; script-src '{_hash(SCRIPT)}'; base-uri 'none'; "
              "form-action 'none'")
    head = tag("head", tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=policy),
               tag("meta", name_="viewport", content="width=device-width,initial-scale=1"),
               tag("title", f"{table['spec']['name']}: plan report"), tag("style", Markup(CSS)))
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
