"""`orind listen`: print every result that the daemon publishes, for people or (--json) as JSON lines.

Called by the command line, which answers Ctrl-C.
Invariant: ends with 0 when it has shown what it was asked for, as many results as --count says or as the reader wanted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from .client import Subscriber
from .errors import IpcError
from .exit_codes import Exit
from .publish import count_of, positive
from .result_text import result_line

ALONE_S = 2.0  # without a daemon at the other end before it is said
HINT = "is orind serving with results there? (--endpoint names another place)"
DEFAULT_ENDPOINT = "ipc:///run/orind/results"
EXAMPLE = (
    "example: orind listen --camera line1 --json | jq .outcome\n"
    "exit code 0: --count results came, or some and then none for --timeout, or the reader left; 1: --timeout passed "
    "before that; 2: bad endpoint or camera; 130: ended by Ctrl-C"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-parser of `orind listen`."""
    parser.epilog = EXAMPLE
    parser.add_argument("--endpoint", default=DEFAULT_ENDPOINT, help=f"where the daemon publishes ({DEFAULT_ENDPOINT})")
    parser.add_argument("--camera", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, as published")
    parser.add_argument("--count", type=count_of, default=None, metavar="N", help="end after N results")
    parser.add_argument("--timeout", type=positive, default=None, metavar="S", help="end when none came for S seconds")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0; 1 when --timeout passed before --count results (or any) came; 2 bad endpoint or camera."""
    heard = 0
    try:
        with Subscriber(args.endpoint, args.camera, timeout_s=args.timeout) as results:
            if sys.stderr.isatty():
                print(f"listening on {args.endpoint} until Ctrl-C", file=sys.stderr)
            if not results.wait_connected(min(ALONE_S, args.timeout or ALONE_S)):
                print(f"orind listen: nobody publishes at {args.endpoint} so far; {HINT}", file=sys.stderr)
            for result in results:
                print(json.dumps(result.raw) if args.json else result_line(result), flush=True)
                heard += 1
                if heard == args.count:
                    return Exit.DONE
    except BrokenPipeError:
        # `| head` went away; the interpreter would complain once more when it flushes stdout at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except IpcError as error:
        print(f"orind listen: {error}", file=sys.stderr)
        return Exit.USAGE
    if heard and args.count is None:
        return Exit.DONE
    print(f"orind listen: {heard} results came, then none for {args.timeout:g} s", file=sys.stderr)
    return Exit.FAILED
