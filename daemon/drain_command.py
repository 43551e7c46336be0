"""`orind drain`: finish what has been received, then stop, as SIGTERM does."""

from __future__ import annotations

import argparse

from ..ipc.exit_codes import Exit
from .control_options import add_run_dir, ask

TIMEOUT_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: orind drain"
    add_run_dir(parser)


def run(options: argparse.Namespace) -> int:
    answer = ask(options, {"op": "drain"}, TIMEOUT_S)
    if isinstance(answer, Exit):
        return answer
    print(answer["result"])
    return Exit.DONE
