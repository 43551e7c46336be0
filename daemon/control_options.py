"""What the commands that talk to a running daemon have in common: where its control socket is, and how it answers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..ipc.control import ControlClient
from ..ipc.errors import ControlError
from ..ipc.exit_codes import Exit

DEFAULT_RUN_DIR = "/run/orind"


def add_run_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-dir", default=DEFAULT_RUN_DIR, help=f"the daemon's run_dir (default {DEFAULT_RUN_DIR})")


def ask(options: argparse.Namespace, request: dict[str, Any], timeout_s: float) -> dict[str, Any] | Exit:
    """The daemon's answer, or the exit code after the reason was printed to stderr: 69 not running, 75 it is busy."""
    try:
        client = ControlClient(Path(options.run_dir) / "control")
    except ControlError as error:
        print(f"orind {options.command}: {error}; --run-dir names the run_dir of another daemon", file=sys.stderr)
        return Exit.UNAVAILABLE
    try:
        with client:
            answer = client.request(request, timeout_s)
    except ControlError as error:
        print(f"orind {options.command}: {error}", file=sys.stderr)
        return Exit.UNAVAILABLE
    if answer.get("ok") is False and "error" in answer:
        print(f"orind {options.command}: {answer['error']}", file=sys.stderr)
        return Exit.BUSY
    return answer
