"""`orind reload [--wait]`: load the configuration anew. `orind rollback` asks and is answered in the same way."""

from __future__ import annotations

import argparse
import sys

from ..ipc.exit_codes import Exit
from .control_options import add_run_dir, ask

# Longer than any reload: the checker has 60 s, then comes engine.ready_timeout_s, an hour at most. In ExecReload= it is
# TimeoutStartSec that ends it, which is held against that key; a bound of its own here would contradict both.
DEFAULT_TIMEOUT_S = 3700.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: orind reload --wait   (as in ExecReload=, so that `systemctl reload` returns when it is done)"
    )
    add_waiting(parser, "return when the new configuration serves or was refused")


def add_waiting(parser: argparse.ArgumentParser, text: str) -> None:
    add_run_dir(parser)
    parser.add_argument("--wait", action="store_true", help=text)
    parser.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="S", help="seconds to wait at most")


def run(options: argparse.Namespace) -> int:
    return request(options, "reload")


def request(options: argparse.Namespace, op: str) -> int:
    """Ask for it and say what came of it."""
    answer = ask(options, {"op": op, "wait": options.wait}, options.timeout)
    if isinstance(answer, Exit):
        return answer
    for problem in answer.get("problems", []):
        print(problem, file=sys.stderr)
    for note in answer.get("notes", []):
        print(f"note: {note}", file=sys.stderr)
    print(answer["result"])
    return Exit.DONE if answer["ok"] else Exit.FAILED
