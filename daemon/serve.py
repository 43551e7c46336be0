"""`orind serve CONFIG`: lock, check, wire, run. Read it once and you know how the daemon starts and ends."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import signal
import sys
import time
from pathlib import Path

from ..ipc.bounded_text import bound_text, bound_texts
from ..ipc.errors import EndpointError, IpcError
from ..ipc.exit_codes import Exit
from . import named_inputs
from .config_check import ConfigCheck
from .daemon import Daemon
from .descriptors import LimitTooLow, raise_limit
from .log_line import LINE_CHARS_MAX, log_through
from .log_writer import LogWriter
from .notify import NotifyError, ServiceManager, connect, passed_sockets
from .nursery_client import NurseryClient, NurseryDied
from .poller import Poller
from .realtime import RealtimeError
from .run_directory import RunDirectory
from .signals import SignalInbox

log = logging.getLogger("orind")
STDERR = 2
CHECK_TURN_NS = 100_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: orind serve /etc/orind/orind.yaml"
    parser.add_argument("config", metavar="CONFIG", type=Path, help="configuration file (YAML)")


def run(options: argparse.Namespace) -> int:
    if missing := named_inputs.refused("serve", [options.config]):
        return missing
    handler = LogWriter(STDERR)
    log_through(handler)
    signals = SignalInbox.install_early()
    log.info("orind starts: pid %d, checks %s", os.getpid(), options.config)
    try:
        manager = ServiceManager(connect(), passed_sockets())
        raise_limit()  # before the nursery, whose children have the limit that it has
        nursery = NurseryClient()
    except NotifyError as error:
        return _refuse(str(error), Exit.UNAVAILABLE)
    except OSError as error:
        return _refuse(f"the nursery cannot be started: {error.strerror or error}", Exit.FAILED)
    poller = Poller()
    try:
        check = _check(options.config, nursery, poller, signals)
        if check is None:
            log.info("ended before it served anything: asked to stop")
            return Exit.DONE
        answer = check.answer
        assert answer is not None
        if answer["problems"]:
            print("\n".join(bound_texts(answer["problems"])), file=sys.stderr)
            return Exit.FAILED if answer["passing"] else Exit.CONFIGURATION
        candidate = check.take()
        config = candidate.config
        log.info("the configuration is good: run_dir %s, engines on %s", config.run_dir, config.engine.device)
        for note in config.notes():
            log.warning("note: %s", note)
        with RunDirectory(Path(config.run_dir)) as run_dir:
            daemon = Daemon(str(options.config.resolve()), candidate, signals, nursery, poller, manager)
            run_dir.keep()
            try:
                return daemon.run()
            finally:
                daemon.close()
    except EndpointError as error:
        return _refuse(str(error), Exit.BUSY)
    except (IpcError, RealtimeError, NurseryDied, NotifyError) as error:
        return _refuse(str(error), Exit.FAILED)
    except LimitTooLow as error:
        return _refuse(str(error.strerror), Exit.UNAVAILABLE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = Exit.BUSY if error.errno == errno.EADDRINUSE else Exit.FAILED
        return _refuse(f"{where}{error.strerror or error}", code)
    finally:
        nursery.close()
        signals.close()
        handler.close()


def _check(path: Path, nursery: NurseryClient, poller: Poller, signals: SignalInbox) -> ConfigCheck | None:
    """Run the checker and wait for it; nothing else is going on yet. None where a signal ends that."""
    poller.watch(nursery.channel.fileno(), lambda _: nursery.on_readable())
    check = ConfigCheck(nursery, poller, str(path), time.monotonic_ns())
    for_later: set[signal.Signals] = set()
    while check.answer is None:
        for call in poller.wait(CHECK_TURN_NS):
            call(time.monotonic_ns())
        for_later.update(signals.take())
        if {signal.SIGTERM, signal.SIGINT} & for_later:
            check.close()
            return None
        check.tick(time.monotonic_ns())
    for number in for_later:
        signal.raise_signal(number)  # a reload that was asked for meanwhile: the loop hears of it
    return check


def _refuse(text: str, code: int) -> int:
    print(f"orind serve: {bound_text(text, LINE_CHARS_MAX)}", file=sys.stderr)
    return code
