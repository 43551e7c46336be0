"""`orind power budget W --for TIME`, `orind power ambient C --for TIME`: ask the running daemon for another budget, or
tell it how warm the cabinet is; both end by themselves. `off` in place of the number ends what stands."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from ..ipc.exit_codes import Exit
from .control_options import add_run_dir, ask
from .power_requests import UNITS

TIMEOUT_S = 5.0
ENDED = {"budget": "the policy's holds", "ambient": "none is given any more"}  # true also where nothing stood
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def add_actions(actions: Any) -> None:
    """`actions`: the sub-parsers of `orind power`."""
    help_of = {"budget": "hold another budget for a while", "ambient": "say how warm it is around the board"}
    for name, (_, unit) in UNITS.items():
        parser = actions.add_parser(
            name, help=help_of[name], description=f"{help_of[name]}, by asking the running daemon",
            epilog=f"examples: orind power {name} {18 if name == 'budget' else 41} --for 10m\n"
            f"          orind power {name} off\n"
            "exit code 0: taken; 1: refused, with the reason; 2: wrong usage; 69: no daemon answers",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("value", metavar=unit, type=_value, help=f"in {unit}, or off")
        parser.add_argument("--for", dest="for_s", type=seconds, metavar="TIME",
                            help="such as 90s, 10m, 8h; a day at most")
        add_run_dir(parser)


def run(options: argparse.Namespace) -> int:
    key, unit = UNITS[options.action]
    if (options.value is None) != (options.for_s is None):
        what = "off ends it now, without --for" if options.value is None else "say with --for how long, such as 10m"
        print(f"orind power {options.action}: {what}", file=sys.stderr)
        return Exit.USAGE
    given = {key: options.value} if options.value is None else {key: options.value, "for_s": options.for_s}
    answer = ask(options, {"op": "power", **given}, TIMEOUT_S)
    if isinstance(answer, Exit):
        return answer
    if not answer["ok"]:
        print(f"orind power {options.action}: {answer['result']}", file=sys.stderr)
        return Exit.FAILED
    print(f"{options.action}: {ENDED[options.action]}" if options.value is None
          else f"{options.action} of {options.value:g} {unit} for {options.for_s:g} s")
    if answer["result"] != "taken":
        print(f"orind power {options.action}: {answer['result']}", file=sys.stderr)
    return Exit.DONE


def seconds(text: str) -> float:
    """A length of time with its unit. Raises ArgumentTypeError, a usage error."""
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smh])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time: such as 90s, 10m, 8h")
    return float(found[1]) * _SECONDS[found[2]]


def _value(text: str) -> float | None:
    try:
        return None if text == "off" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, nor off") from None
