"""`orind power mode NAME [--stage]` and `orind power fan PROFILE`: requests that need root, made here where we are it
or the board is a simulated one, else by the power helper.

Used by power_command.py. Invariants: what is printed is the one answer that power/privileged.py gives, whoever asked
it; a signal that comes while we act ourselves ends us after that answer.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from ..ipc.control import ControlClient
from ..ipc.errors import ControlError
from ..ipc.exit_codes import Exit
from ..power.deferred_signals import deferred_signals
from ..power.held import STATE_NAME
from ..power.privileged import Privileged
from .control_options import add_run_dir
from .power_helper import SOCKET

BOARD = Path("/")
TIMEOUT_S = 90.0  # a switch may take 30 s, and so may one that was asked for before
HINT = "is the power helper installed and listening? (systemctl enable --now orind-power.socket), or use sudo"
ENTER = "enter a mode of nvpmodel, and look whether it is there (as root or a member of group orind)"
CHOOSE = "choose the fan's profile (as root or a member of group orind)"
_EXITS = {"usage": Exit.USAGE, "conf": Exit.CONFIGURATION, "file": Exit.NO_INPUT, "failed": Exit.FAILED}


def add_actions(actions: Any) -> None:
    """The sub-commands, to the parsers of `orind power`."""
    mode = actions.add_parser(
        "mode",
        help=ENTER,
        description=ENTER,
        epilog="example: orind power mode MODE_50W\n"
        "exit code 0: entered, or staged; 1: not; 2: no such mode; 66: no nvpmodel.conf, or it cannot be read; "
        "69: no helper; 78: the file is wrong",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mode.add_argument("name", metavar="NAME", help="as `orind power modes` shows it")
    mode.add_argument("--stage", action="store_true",
                      help="one that needs a reboot: have the next boot enter it, and change nothing now")
    fan = actions.add_parser(
        "fan",
        help=CHOOSE,
        description=CHOOSE,
        epilog="example: orind power fan quiet\n"
        "exit code 0: chosen; 1: not; 2: no such profile; 66: no nvfancontrol.conf, or it cannot be read; "
        "69: no helper",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fan.add_argument("profile", metavar="PROFILE", help="quiet, cool, or another one of nvfancontrol.conf")
    for parser in (mode, fan):
        add_run_dir(parser)
        parser.add_argument("--root", type=Path, default=BOARD, metavar="DIR", help="of a simulated board (default /)")


def run(options: argparse.Namespace) -> int:
    if options.action == "fan":
        request = {"op": "fan", "profile": options.profile}
    else:
        request = {"op": "stage" if options.stage else "mode", "name": options.name}
    if os.geteuid() == 0 or options.root != BOARD:
        with deferred_signals():
            return _tell(Privileged(options.root, Path(options.run_dir) / STATE_NAME).answer(request))
    try:
        with ControlClient(SOCKET, TIMEOUT_S, HINT) as client:
            return _tell(client.request(request, TIMEOUT_S))
    except ControlError as error:
        print(f"orind power: {error}", file=sys.stderr)
        return Exit.UNAVAILABLE


def _tell(answer: dict[str, Any]) -> int:
    if answer.get("ok") is True:
        print(answer["done"], flush=True)
        return Exit.DONE
    for text in answer.get("errors") or [answer.get("error", "the helper gave no reason")]:
        print(f"orind power: {text}", file=sys.stderr)
    if answer.get("kind") == "file":
        print("orind power: --root names a simulated board", file=sys.stderr)
    return _EXITS.get(answer.get("kind", ""), Exit.FAILED)
