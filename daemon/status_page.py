"""The status as one self-contained HTML page: what a person at the line looks at first. HTTP process only."""

from __future__ import annotations

import time
from html import escape
from typing import Any

from ..ipc import clock
from ..ipc.outcomes import OUTCOMES
from . import camera_view, energy_view, loss_view, process_view
from .memory_report import in_words as in_words_of_memory
from .placement import in_words, listed

STYLE = """
:root { color-scheme: light dark; --edge: #8884; --good: #1a7f37; --bad: #c62828; --warn: #b26a00; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .2rem } h2 { font-size: 1rem; margin: 1.6rem 0 .4rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--edge) }
td.n, th.n { text-align: right }
.state { font-weight: 600 } .ok { color: var(--good) } .down { color: var(--bad) } .poor { color: var(--warn) }
.bar { display: flex; height: .6rem; border-radius: .3rem; overflow: hidden; background: var(--edge); margin: .4rem 0 }
"""
COLOURS = {
    "ok": "#1a7f37",
    "degraded": "#b26a00",
    "stale": "#7a7a7a",
    "rejected": "#8e24aa",
    "expired": "#ef6c00",
    "error": "#c62828",
    "dropped": "#5d4037",
}


def render(status: dict[str, Any], code: int, reasons: list[str]) -> str:
    """The page. `code` and `reasons` are those of /healthz."""
    kind = "down" if code != 200 else "poor" if reasons else "ok"
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=2>",
        f"<title>orind: {escape(status['state'])}</title><style>{STYLE}</style>",
        f"<h1>orind <span class='state {kind}'>{escape(status['state'])}</span></h1>",
        f"<div>generation {status['generation']}, failovers: {status['failovers']}</div>",
        f"<div>{escape(status['config'])}, orind {escape(status['version'])}; as of {clock.wall_text()}</div>",
        *([f"<div>reload: {escape(result)}</div>"] if (result := status["reload"]["result"]) else []),
        *(f"<div class={kind}>{escape(reason)}</div>" for reason in reasons),
        _load(status["degradation"]),
        _frames(status["frames"]),
        _cameras(status),
        _latency(status["latency_ms"]),
        _engines(status["engines"]),
        _lost(status),
        _list("Processes", process_view.processes(status)),
        _list("Device memory", process_view.devices(status)),
        _placements(status["models"]),
        _power(status["power"]),
        _energy(status["energy"]),
    ]
    return "".join(parts)


def _load(degradation: dict[str, Any]) -> str:
    level, meaning = degradation["level"], escape(degradation["meaning"])
    text = f"offered load {degradation['load']:.0%}, degradation level {level}: {meaning}"
    return f"<div class={'poor' if level else 'ok'}>{text}</div>"


def _frames(frames: dict[str, int]) -> str:
    total = max(1, frames["received"])
    bar = "".join(
        f"<div title='{name}' style='width:{100 * frames[name] / total:.2f}%;background:{COLOURS[name]}'></div>"
        for name in OUTCOMES
    )
    columns = ["received", *OUTCOMES, "in_flight", "repeated"]
    head = "".join(f"<th class=n>{c.replace('_', ' ')}</th>" for c in columns)
    row = "".join(f"<td class=n>{frames[c]}</td>" for c in columns)
    return f"<h2>Frames</h2><div class=bar>{bar}</div><table><tr>{head}<tr>{row}</table>"


def _cameras(status: dict[str, Any]) -> str:
    head = "".join(f"<th class=n>{name}" for name in OUTCOMES)
    rows = "".join(
        f"<tr><td>{escape(camera)}" + "".join(f"<td class=n>{n}" for n in counts.values())
        + f"<td>{came or 'none yet'}<td>{escape(went)}"
        for camera, counts, came, went in camera_view.rows(status, time.monotonic_ns())
    )
    return f"<h2>Cameras</h2><table><tr><th>camera{head}<th>last frame<th>last not ok{rows}</table>"


def _latency(stages: dict[str, dict[str, float]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(stage)}" + "".join(f"<td class=n>{values[p]:.2f}" for p in ("p50", "p95", "p99"))
        for stage, values in stages.items()
    )
    return f"<h2>Latency, ms</h2><table><tr><th>stage<th class=n>P50<th class=n>P95<th class=n>P99{rows}</table>"


def _engines(engines: list[dict[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{e['pid']}<td>{escape(process_view.standing(e))}<td>{escape(process_view.device(e))}"
        f"<td class=n>{e['epoch']}<td>{escape(in_words_of_memory(e['memory'])) if e['memory'] else ''}"
        for e in engines
    )
    return f"<h2>Engines</h2><table><tr><th>pid<th>state<th>device<th class=n>epoch<th>memory{rows}</table>"


def _lost(status: dict[str, Any]) -> str:
    rows = "".join(f"<tr><td class=n>{count}<td>{escape(meaning)}" for count, meaning in loss_view.counts(status))
    last = loss_view.last_failover(status, time.monotonic_ns())
    table = f"<h2>Engines lost</h2><table><tr><th class=n>engines<th>why{rows}</table>" if rows else ""
    return table + (f"<p>Last failover {escape(last)}" if last else "")


def _list(title: str, lines: list[str]) -> str:
    return f"<h2>{title}</h2><ul>" + "".join(f"<li>{escape(line)}" for line in lines) + "</ul>" if lines else ""


def _placements(models: dict[str, Any]) -> str:
    """Models of which a GPU runs a part: which steps it leaves to the CPU."""
    placed = {name: model["placement"] for name, model in models.items() if model["placement"] is not None}
    if not placed:
        return ""
    return "<h2>Models</h2>" + "".join(
        f"<p>{escape(name)}: {escape(in_words(placement))}<ul>"
        + "".join(f"<li>{escape(line)}" for line in listed(placement))
        + "</ul>"
        for name, placement in placed.items()
    )


def _power(power: dict[str, Any]) -> str:
    if power.get("budget_w") is None:
        return "<h2>Power</h2><p>No power section in the configuration: the board is neither read nor governed."
    cells = [
        ("board", _unit(power["board_w"], "W", 1)),
        ("budget", _unit(power["budget_w"], "W", 1)),
        ("junction", _unit(power["tj_c"], "°C", 1)),
        ("GPU", _unit(_mhz(power["gpu_hz"]), "MHz", 0)),
        ("GPU cap", _unit(_mhz(power["gpu_cap_hz"]), "MHz", 0)),
        ("level", escape(str(power.get("level") or "-"))),
    ]
    head = "".join(f"<th>{name}" for name, _ in cells)
    row = "".join(f"<td>{value}" for _, value in cells)
    board, reason = escape(str(power.get("board") or "unknown board")), escape(str(power.get("reason") or ""))
    return f"<h2>Power: {board}</h2><table><tr>{head}<tr>{row}</table><p>{reason}"


def _energy(energy: dict[str, Any]) -> str:
    said = "<p>".join(escape(line) for line in energy_view.in_words(energy))
    rows = "".join(
        f"<tr><td>{escape(model)}<td>{escape(camera)}<td class=n>{told['joules']:.1f}<td class=n>{told['frames']}"
        f"<td class=n>{energy_view.each(told)}"
        for model, figures in energy["models"].items() for camera, told in figures["cameras"].items()
    )
    head = "<th>model<th>camera<th class=n>J above idle<th class=n>frames<th class=n>J a frame"
    table = f"<table><tr>{head}{rows}</table>"
    return f"<h2>Energy</h2><p>{said}" + (table if rows and energy["board_joules"] is not None else "")


def _mhz(hz: float | None) -> float | None:
    return None if hz is None else hz / 1e6


def _unit(value: float | None, unit: str, digits: int) -> str:
    return "unreadable" if value is None else f"{value:.{digits}f} {unit}"
