"""`orind power` without an action: what the governor of the running daemon sees and does, from its control socket.

Called by `power_command.py`. Invariants: what is not known is said to be so, never shown as 0; escape codes go to a
terminal only; Ctrl-C is answered by `cli.py` as for every command.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from typing import Any

from ..ipc.exit_codes import Exit
from . import energy_view
from .control_options import ask

TIMEOUT_S = 5.0
EVERY_S = 1.0
HOME, WIPE_LINE, WIPE_REST = "\x1b[H", "\x1b[K", "\x1b[J"
BAR = 24
UNGOVERNED = ("the running daemon does not govern power: add a section `power` with a board and a policy to its "
              "configuration (docs/power.md; policies: configs/power), then orind reload")


def run(options: argparse.Namespace) -> int:
    """Once; with --watch until Ctrl-C, or until there is nothing to show any more."""
    live = options.watch and not options.json and sys.stdout.isatty()
    first = True
    while True:
        status = ask(options, {"op": "status"}, TIMEOUT_S)
        if isinstance(status, Exit):
            return status
        power = status["power"]
        if power.get("budget_w") is None:
            print(f"orind power: {UNGOVERNED}", file=sys.stderr)
            return Exit.UNAVAILABLE
        text = lines(power, _problem(status)) + energy_view.lines(status["energy"])
        if options.json:
            print(json.dumps(power), flush=True)
        elif live:
            print(_screen(text), end="", flush=True)
        else:
            print("\n".join(([] if first else [""]) + text), flush=True)
        if not options.watch:
            return Exit.DONE
        first = False
        time.sleep(EVERY_S)


def _problem(status: dict[str, Any]) -> str:
    """Why nobody governs at the moment, or ''."""
    return next((reason for reason in status["health"]["reasons"] if reason.startswith("the power governor")), "")


def _screen(text: list[str]) -> str:
    """From the top of the terminal, over what was there before, as much as it holds."""
    width, height = shutil.get_terminal_size()
    return HOME + "".join(f"{line[:width - 1]}{WIPE_LINE}\n" for line in text[: height - 1]) + WIPE_REST


def lines(power: dict[str, Any], problem: str) -> list[str]:
    """The `power` section of the status, for a person."""
    text = [f"{power.get('board') or 'board unknown'}{_mode(power)}"]
    text += [f"  ! {line}" for line in ([problem] if problem else []) + power.get("faults", [])]
    text += [f"  * {line}" for line in power.get("notes", [])]
    text.append(f"power    {_of(power.get('board_w'), power['budget_w'])}")
    text.append(f"target   {_show(power.get('target_w'), 'W', 1)}; budget: {power.get('budget_reason') or 'policy'}")
    text.append(f"level    {power.get('level') or 'unknown'}: {power.get('reason') or 'no report yet'}")
    if power.get("short"):
        text.append(f"short    {power['short']}")
    if power.get("mode_wanted"):
        text.append(f"mode     {power['mode_wanted']} would hold the budget (orind power mode {power['mode_wanted']})")
    wanted, active = power.get("fan_profile"), power.get("fan_profile_active")
    if wanted and wanted != active:
        now = f"{active} is active" if active else "which is active is not known"
        text.append(f"fan      profile {wanted} belongs to this budget, {now} (orind power fan {wanted})")
    text.append(f"junction {_show(power.get('tj_c'), 'C', 1)}   fan {_show(power.get('fan_pwm'), 'of 255')}")
    text.append(f"GPU      {_show(power.get('gpu_hz'), 'MHz', 0, 1e6)} of at most "
                f"{_show(power.get('gpu_cap_hz'), 'MHz', 0, 1e6)}, busy {_share(power.get('busy'))}")
    cap = "" if power.get("cpu_cap_khz") is None else f" of at most {power['cpu_cap_khz'] / 1e3:.0f} MHz"
    text.append(f"CPU      {_show(power.get('cpu_khz'), 'MHz', 0, 1e3)}{cap}")
    if power.get("emc_hz") is not None:
        busy = power.get("emc_percent")
        text.append(f"memory   {power['emc_hz'] / 1e6:.0f} MHz, busy {_share(None if busy is None else busy / 100)}")
    text += _list("rails", "W", power.get("rails_w") or {}) + _list("zones", "C", power.get("zones_c") or {})
    if power.get("over_current_hz"):
        text.append(f"events   {power['over_current_hz']:.1f} of over-current a second, which no clock shows")
    model = power.get("model")
    if model:
        text.append(f"learned  {model['bias_w']:+.1f} W, gain {model['gain']:.2f}")
    return text


def _mode(power: dict[str, Any]) -> str:
    mode, waiting = power.get("mode"), power.get("waiting_mode")
    return (f", mode {mode}" if mode else "") + (f" ({waiting} after the next boot)" if waiting else "")


def _of(board_w: float | None, budget_w: float) -> str:
    """The power as a bar against the budget, which stands at four fifths of it."""
    if board_w is None:
        return f"unreadable, budget {budget_w:.1f} W"
    filled = min(round(board_w / budget_w * BAR * 0.8), BAR)
    mark = round(BAR * 0.8)
    bar = "".join("|" if n == mark else "#" if n < filled else "." for n in range(BAR))
    return f"{board_w:5.1f} of {budget_w:.1f} W [{bar}]"


def _list(name: str, unit: str, values: dict[str, float]) -> list[str]:
    if not values:
        return []
    return [f"{name:8} {'  '.join(f'{key} {value:.1f}' for key, value in values.items())}  {unit}"]


def _show(value: float | None, unit: str, digits: int = 0, scale: float = 1.0) -> str:
    return "unreadable" if value is None else f"{value / scale:.{digits}f} {unit}"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0%}"
