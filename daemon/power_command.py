"""`orind power`: the live view (power_view.py) without an action; `restore` puts the board's clocks back as they were
before the daemon (ExecStopPost=, also after a crash); `modes` shows what each mode of nvpmodel caps, and which switch
needs a reboot. `mode`, `fan`: mode_command.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ..ipc.control import ControlClient
from ..ipc.errors import ControlError
from ..ipc.exit_codes import Exit
from ..power.actuators import restore_saved
from ..power.errors import ConfError, PowerError, SysfsError
from ..power.held import STATE_NAME
from ..power.nvpmodel import CONF, Conf, ConfMode, Masks, read_board, switch_to
from ..power.sysfs import Sysfs
from . import mode_command, power_ask_command, power_view
from .control_options import DEFAULT_RUN_DIR, add_run_dir
from .power_requests import UNITS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples: orind power --watch\n          orind power restore\n          orind power modes --json\n"
        "Without an action: what the governor of the running daemon sees and does.\n"
        "exit code 69: no daemon runs, or it does not govern power"
    )
    # an action's own defaults would take their place under the same names
    parser.add_argument("--run-dir", dest="live_run_dir", metavar="RUN_DIR", help="the daemon's run_dir "
                        f"(default {DEFAULT_RUN_DIR})")
    parser.add_argument("--watch", dest="live_watch", action="store_true", help="again every second, until Ctrl-C")
    parser.add_argument("--json", dest="live_json", action="store_true", help="the status' power section; with --watch "
                        "an object a line")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    restore = actions.add_parser(
        "restore",
        help="put the clocks back as they were before orind",
        description="put the clocks back as they were before orind, from what it saved; after a crash, not beside a "
        "daemon",
        epilog="example: orind power restore\n"
        "exit code 0: done, or nothing to restore; 1: a daemon runs, or a clock cannot be put back",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_dir(restore)
    modes = actions.add_parser(
        "modes",
        help="what each mode of nvpmodel caps, and which switch needs a reboot",
        description="what each mode of nvpmodel caps, and which switch needs a reboot; read from the board, without "
        "asking a daemon",
        epilog="example: orind power modes --json\n"
        "exit code 0: shown; 66: no nvpmodel.conf, or it cannot be read; 78: it is wrong",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    modes.add_argument("--json", action="store_true", help="as one JSON object")
    modes.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="of a simulated board (default /)")
    mode_command.add_actions(actions)
    power_ask_command.add_actions(actions)


def run(options: argparse.Namespace) -> int:
    live = {"run_dir": options.live_run_dir, "watch": options.live_watch, "json": options.live_json}
    if options.action is None:
        run_dir = options.live_run_dir or DEFAULT_RUN_DIR
        return power_view.run(argparse.Namespace(command="power", **{**live, "run_dir": run_dir}))
    if misplaced := [name for name, given in live.items() if given]:
        option = f"--{misplaced[0].replace('_', '-')}"
        print(f"orind power: {option} before {options.action} is for the view without an action; where "
              f"{options.action} takes it, it stands behind", file=sys.stderr)
        return Exit.USAGE
    if options.action == "restore":
        return _restore(options)
    if options.action in ("mode", "fan"):
        return mode_command.run(options)
    if options.action in UNITS:
        return power_ask_command.run(options)
    try:
        return _modes(options)
    except ConfError as error:
        print("\n".join(f"orind power: {line}" for line in error.lines()), file=sys.stderr)
        return Exit.CONFIGURATION
    except SysfsError as error:
        print(f"orind power: {options.root / error.path}: {error.why}; --root names a simulated board", file=sys.stderr)
        return Exit.NO_INPUT


def _restore(options: argparse.Namespace) -> int:
    run_dir = Path(options.run_dir)
    with suppress(ControlError), ControlClient(run_dir / "control"):
        # beside the daemon it would last for one tick
        print(f"orind power: a daemon runs in {run_dir} and puts the clocks back when it ends: stop it first "
              "(systemctl stop orind)", file=sys.stderr)
        return Exit.FAILED
    try:
        done = restore_saved(run_dir / STATE_NAME)
    except (PowerError, OSError) as error:
        print(f"orind power: {error}", file=sys.stderr)
        return Exit.FAILED
    print("\n".join(done) if done else "nothing to restore")
    return Exit.DONE


def _modes(options: argparse.Namespace) -> int:
    conf, active, live = read_board(Sysfs(options.root))
    if options.json:
        print(json.dumps(_table(conf, active, live)))
    else:
        print("\n".join(_lines(options.root, conf, active, live)))
    return Exit.DONE


def _table(conf: Conf, active: int | None, live: Masks) -> dict[str, object]:
    return {
        "active": active,
        "waiting": any(mode.id == active and switch_to(mode, active, live).kind == "reboot" for mode in conf.modes),
        "default": conf.default,
        "live": asdict(live),
        "modes": [{**asdict(mode), "switch": asdict(switch_to(mode, active, live))} for mode in conf.modes],
    }


def _lines(root: Path, conf: Conf, active: int | None, live: Masks) -> list[str]:
    if active is None:
        now = "active: not known, nvpmodel has not written its status file"
    else:
        mode = conf.mode(active)
        now = f"active: {active} {mode.name if mode else '(not in this file)'}"
        if mode and switch_to(mode, active, live).kind == "reboot":
            now += ", which waits for a boot"
    return [
        f"{root / CONF}: {now}; default: {conf.default}",
        f"{'id':>4} {'mode':16} {'CPUs':>4} {'CPU MHz':>8} {'GPU MHz':>8} {'EMC MHz':>8} {'TPC':>5} {'FBP':>5}  switch",
        *(_row(mode, active, live) for mode in conf.modes),
        "caps, not watts; -: no cap, or a mask that the mode leaves as it is; ids are not ordered by power",
    ]


def _row(mode: ConfMode, active: int | None, live: Masks) -> str:
    switch = switch_to(mode, active, live)
    clocks = [_mhz(mode.cpu_max_khz, 1e3), _mhz(mode.gpu_max_hz, 1e6), _mhz(mode.emc_max_hz, 1e6)]
    masks = ["-" if mask is None else str(mask) for mask in (mode.tpc_pg_mask, mode.fbp_pg_mask)]
    return (f"{mode.id:4} {mode.name:16} {len(mode.cpus):4} {clocks[0]:>8} {clocks[1]:>8} {clocks[2]:>8} "
            f"{masks[0]:>5} {masks[1]:>5}  {switch.kind}{f': {switch.reason}' if switch.reason else ''}")


def _mhz(value: int | None, divisor: float) -> str:
    return "-" if value is None else f"{value / divisor:.1f}"
