"""Signals arrive as bytes in a pipe, in order, each once a turn; nothing else happens in their handlers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from orind.daemon.signals import HANDLED, SignalInbox


@pytest.fixture
def inbox() -> Iterator[SignalInbox]:
    before = {number: signal.getsignal(number) for number in HANDLED}
    made = SignalInbox.install_early()
    yield made
    made.close()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_are_taken_in_order_each_once(inbox: SignalInbox) -> None:
    assert inbox.take() == []
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR2):
        os.kill(os.getpid(), number)
    assert inbox.take() == [signal.SIGUSR2, signal.SIGTERM] and inbox.take() == []


def test_the_inbox_is_installed_once(inbox: SignalInbox) -> None:
    assert SignalInbox.install_early() is inbox


def test_other_signals_are_not_ours(inbox: SignalInbox) -> None:
    before = signal.signal(signal.SIGWINCH, lambda *_: None)
    os.kill(os.getpid(), signal.SIGWINCH)
    os.kill(os.getpid(), signal.SIGHUP)
    assert inbox.take() == [signal.SIGHUP]
    signal.signal(signal.SIGWINCH, before)
