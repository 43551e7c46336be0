"""The command `orind`: one sub-command a module, imported only when it is the one that was asked for.

Invariant: errors go to stderr as one sentence without a traceback, and the exit code says what kind. Ctrl-C is answered
here alone, so that it is the same for every command.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import suppress

from ..ipc.exit_codes import Exit, table
from . import version
from .blas import prefer_one_thread
from .streams import StreamFault, watched_streams

COMMANDS = {
    "serve": ("orind.daemon.serve", "run the daemon"),
    "check": ("orind.daemon.check_command", "check a configuration and all that it names"),
    "build": ("orind.daemon.build_command", "make a plan from an ONNX model"),
    "inspect": ("orind.daemon.inspect_command", "show what is in a plan"),
    "verify": ("orind.daemon.verify_command", "verify a plan: hash, golden answers, comparison with its ONNX model"),
    "publish": ("orind.daemon.publish_command", "send images as a camera would"),
    "listen": ("orind.ipc.listen", "print results as they come"),
    "status": ("orind.daemon.status_command", "ask the running daemon how it is"),
    "reload": ("orind.daemon.reload_command", "have the daemon load its configuration anew"),
    "rollback": ("orind.daemon.rollback_command", "have the daemon go back to what served before its last reload"),
    "drain": ("orind.daemon.drain_command", "have the daemon finish what it has and stop"),
    "power": ("orind.daemon.power_command", "show what the governor does; show and enter power modes; restore clocks"),
    "simulate": ("orind.daemon.simulate_command", "predict what a power policy does to a simulated board under a load"),
    "doctor": ("orind.daemon.doctor", "check the machine before the daemon starts"),
}


def main(arguments: list[str] | None = None) -> int:
    argv = sys.argv[1:] if arguments is None else arguments
    prefer_one_thread()
    if argv[:1] == ["serve"]:
        # before anything heavy is imported: the default action of SIGUSR2 is death
        from .signals import SignalInbox

        SignalInbox.install_early()
        return _run(argv)  # a log that cannot be written must not end it
    with watched_streams() as streams:
        try:
            code = _run(argv)
            streams.flush()
        except StreamFault as fault:
            streams.give_up(fault)
            return Exit.FAILED
    return code


def _run(argv: list[str]) -> int:
    command = None
    try:
        parser, chosen, command = _parser(argv)
        options, unknown = parser.parse_known_args(argv)
        if unknown:
            (chosen or parser).error(f"unrecognized arguments: {' '.join(unknown)}")
        if options.version:
            print(f"orind {version.installed()}")
            return Exit.DONE
        if command is None:
            parser.print_help()
            return Exit.USAGE
        code = int(importlib.import_module(COMMANDS[command][0]).run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(f"orind{f' {command}' if command else ''}: ended by Ctrl-C", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # the reader of our output has gone, as in `orind listen | head`
        for stream in (sys.stdout, sys.stderr):
            with suppress(BrokenPipeError):
                stream.close()
        return 0


def _parser(argv: list[str]) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser | None, str | None]:
    """The whole command line's parser, the chosen sub-command's and its name; only that one's module is imported."""
    parser = argparse.ArgumentParser(
        prog="orind",
        description="Edge inference daemon for NVIDIA Jetson Orin: every trigger answered in time, or told why not.",
        epilog=f"exit codes:\n{table()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    wanted = next((a for a in argv if not a.startswith("-")), None)
    chosen = None
    for name, (module, text) in COMMANDS.items():
        sub = subparsers.add_parser(
            name, help=text, description=text, epilog=None, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name == wanted:
            chosen = sub
            importlib.import_module(module).add_arguments(sub)
    return parser, chosen, wanted if wanted in COMMANDS else None


if __name__ == "__main__":
    sys.exit(main())
