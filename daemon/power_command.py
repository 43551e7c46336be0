"""`orind power restore`: the board's clocks as they were before the daemon (ExecStopPost=, also after a crash)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..ipc.exit_codes import Exit
from ..power.actuators import restore_saved
from ..power.errors import PowerError
from .control_options import add_run_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: orind power restore"
    parser.add_argument("action", choices=("restore",), help="restore: put the clocks back as they were before orind")
    add_run_dir(parser)


def run(options: argparse.Namespace) -> int:
    try:
        done = restore_saved(Path(options.run_dir) / "power-state.json")
    except (PowerError, OSError) as error:
        print(f"orind power: {error}", file=sys.stderr)
        return Exit.FAILED
    print("\n".join(done) if done else "nothing to restore")
    return Exit.DONE
