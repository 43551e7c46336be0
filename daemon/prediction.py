"""`--board BOARD[:MODE]` of `orind build` and `orind inspect`: the board's facts, and predictions of time
and energy for a person to read.

Reads configs/boards/*.yaml, the only table of board facts. Every line says that its times are a model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..kernels.ir.program import Program
from ..kernels.perf.device import Device, DeviceError, mode_names
from ..kernels.perf.table import LABEL, predict
from ..kernels.yaml_lines import LinedYaml
from . import config_file
from .predicted_energy import by_clock, clocks_hz

DEFAULT = "agx-orin:MAXN"
"""What the report's pass table and page predict for where no board is named; they say so."""
HELP = "a board of configs/boards and a power mode, such as agx-orin:MODE_30W"


def devices(spec: str) -> list[Device]:
    """The board in the mode that `spec` (BOARD:MODE) names; in every mode where it names none.

    Raises DeviceError for an unknown board or mode and for facts that are not whole.
    """
    return _read(spec)[0]


def _read(spec: str) -> tuple[list[Device], LinedYaml]:
    """The devices, and the board's file."""
    name, colon, mode = spec.partition(":")
    try:
        board = config_file.read_board(name)
    except config_file.UnknownBoard as error:
        raise DeviceError([str(error)]) from None
    except config_file.ConfigError as error:
        raise DeviceError(error.problems) from None
    modes = (mode,) if colon else mode_names(board.value)
    return [Device.from_dict(board.value, each) for each in modes or ("",)], board


def predictions(programs: Mapping[int, Program], spec: str) -> list[dict[str, Any]]:
    """One for each device of `spec` and each batch size: times as in a plan's report, and `energy` at the mode's clock,
    or at every clock below it as well where `spec` names a mode. Raises DeviceError."""
    found, board = _read(spec)
    try:
        facts = config_file.facts_of(board)
    except config_file.ConfigError as error:
        raise DeviceError(error.problems) from None
    tables = []
    for device in found:
        clocks = clocks_hz(device) if len(found) == 1 else [device.gpu_hz]
        for _, program in sorted(programs.items()):
            rows = by_clock(program, device, board.value, facts, clocks)
            energy = {"what": LABEL, "idle_w": facts.model.idle_mw / 1000, "tj_c": facts.model.leak_reference_c,
                      "clocks": rows}
            tables.append({**predict(program, device), "energy": energy})
    return tables


def lines(found: list[dict[str, Any]]) -> list[str]:
    """Totals of all."""
    text = ["", f"predicted time: {LABEL}. It takes kernels of TensorRT's quality; the band is what the"]
    l2, dram = found[0]["band"]["l2_bytes_per_clock"], found[0]["band"]["dram_share"]
    text += [f"sources leave open (L2 {l2[0]:g} to {l2[1]:g} bytes a clock and SM, DRAM {dram[0]:.2f} to {dram[1]:.2f} "
             "of the pin rate).", f"{'board and mode':30} {'SMs':>4} {'MHz':>7} {'GB/s':>6} {'batch':>5} {'ms':>8} "
             f"{'band, ms':>17} {'streams':>8}"]
    for table in found:
        name = f"{table['board']}:{table['mode']}"
        band = f"{table['low_us'] / 1e3:.3f} to {table['high_us'] / 1e3:.3f}"
        streams = "1" if table["streams"] == 1 else f"{table['streams']}: {table['makespan_us'] / 1e3:.3f}"
        text.append(f"{name:30} {table['sms']:4} {table['gpu_mhz']:7.1f} {table['dram_gb_s']:6.1f} "
                    f"{table['batch']:5} {table['us'] / 1e3:8.3f} {band:>17} {streams:>8}")
    return text


def energy_lines(found: list[dict[str, Any]]) -> list[str]:
    """What `predictions` says of energy, at each clock where there is one mode only."""
    energy = found[0]["energy"]
    text = ["", f"energy: {LABEL}. W: the board's under stress, one batch after the other, at "
            f"{energy['tj_c']:g} C; idle {energy['idle_w']:g} W.",
            f"{'board and mode':30} {'MHz':>7} {'batch':>5} {'ms':>8} {'W':>6} {'mJ/inference':>12} {'above idle':>10} "
            f"{'GB/s':>6}"]
    for table in found:
        rows = table["energy"]["clocks"]
        least = min(rows, key=lambda row: row["joules"]) if len(rows) > 1 else None
        text += [f"{table['board'] + ':' + table['mode']:30} {row['gpu_mhz']:7.1f} {table['batch']:5} "
                 f"{row['us'] / 1e3:8.3f} {row['board_w']:6.1f} {row['joules'] * 1e3:12.3f} "
                 f"{row['joules_above_idle'] * 1e3:10.3f} {row['gb_per_s']:6.1f}{'  least' if row is least else ''}"
                 for row in rows]
    return text


def by_layer(found: list[dict[str, Any]]) -> list[str]:
    """Where there is one mode only, of its smallest batch."""
    table = found[0]
    if len({each["mode"] for each in found}) != 1:
        return []
    text = ["", f"{'layer, batch ' + str(table['batch']):44} {'us':>8} {'band, us':>16} {'bound by':>9} "
            f"{'tile/split':>10} {'SMs':>4} {'stream':>6} {'critical':>8}"]
    for row in table["layers"]:
        band = f"{row['low_us']:.1f} to {row['high_us']:.1f}"
        text.append(f"{row['name'][-44:]:44} {row['us']:8.1f} {band:>16} {row['bound']:>9} {row['tile']:>10} "
                    f"{row['sms']:4} {row['stream']:6} {'yes' if row['critical'] else '':>8}")
    band = f"{table['low_us']:.1f} to {table['high_us']:.1f}"
    return [*text, f"{'together':44} {table['us']:8.1f} {band:>16}"]
