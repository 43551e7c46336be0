"""Signals that would end this process wait until what it does is done.

Used by privileged.py around every request, by the command line also around its answer. Invariants: a handler notes and
never raises, so that nothing is cut in the middle and no program that runs is killed for it; every signal that came is
delivered afterwards, to whoever handled it before. Handlers and not a blocked mask, because programs that are started
inherit a mask, and of handlers only that a signal is ignored.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

DEFERRED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """May be nested. Does nothing outside the main thread, which alone runs handlers and is never cut by ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: set[int] = set()
    # one that is ignored (nohup) stays so, also for the programs
    before = {number: signal.signal(number, lambda caught, _: came.add(caught))
              for number in DEFERRED if signal.getsignal(number) not in (signal.SIG_IGN, None)}
    try:
        yield
    finally:
        # blocked meanwhile: one between the last look and the handler of before would be lost
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, DEFERRED)
        for number, handler in before.items():
            signal.signal(number, handler)
        for caught in came:
            signal.raise_signal(caught)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
