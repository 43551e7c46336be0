"""`orind rollback [--wait]`: back to the configuration and plans that served before the last good reload."""

from __future__ import annotations

import argparse

from .reload_command import add_waiting, request

EPILOG = (
    "example: orind rollback --wait   (the file stays as it is: mend it before the next reload or restart loads it)\n"
    "exit code 1: refused, with the reason; nothing has changed then"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_waiting(parser, "return when what served before serves again or the rollback was refused")


def run(options: argparse.Namespace) -> int:
    return request(options, "rollback")
