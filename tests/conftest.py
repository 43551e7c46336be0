"""SIGTERM and SIGHUP end a run of the tests as Ctrl-C does: with every fixture, and so with all daemons."""

from __future__ import annotations

import signal

ENDS = (signal.SIGTERM, signal.SIGHUP)


def pytest_configure() -> None:
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    for each in ENDS:
        signal.signal(each, lambda number, frame: None)  # a second one would cut the fixtures short
    raise KeyboardInterrupt(signal.Signals(number).name)
