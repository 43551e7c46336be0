"""Signals that wait until what is under way is done, and programs that know nothing of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orind.power.deferred_signals import DEFERRED, deferred_signals
from orind.power.programs import PROGRAMS, run
from orind.power.sysfs import Sysfs


@pytest.fixture
def came() -> Iterator[list[int]]:
    """Whom the handlers of before were told of."""
    seen: list[int] = []
    before = {number: signal.signal(number, lambda caught, _: seen.append(caught)) for number in DEFERRED}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_is_delivered_once_at_the_outermost_end(came: list[int]) -> None:
    with deferred_signals():
        with deferred_signals():
            for number in (*DEFERRED, signal.SIGTERM):
                os.kill(os.getpid(), number)
            assert came == []
        assert came == []
    assert sorted(came) == sorted(DEFERRED)
    os.kill(os.getpid(), signal.SIGTERM)
    assert len(came) == 4 and signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {*DEFERRED} == set()


def test_what_is_raised_within_passes_and_the_signal_too(came: list[int]) -> None:
    with pytest.raises(KeyError), deferred_signals():
        os.kill(os.getpid(), signal.SIGHUP)
        raise KeyError
    assert came == [signal.SIGHUP]


def test_one_that_is_ignored_stays_ignored_and_programs_block_none(tmp_path: Path, came: list[int]) -> None:
    program = tmp_path / PROGRAMS["nvpmodel"]
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nfor line in open('/proc/self/status'):\n"
                       "    if line[:6] in ('SigBlk', 'SigIgn'): print(*line.split())\n")
    program.chmod(0o755)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with deferred_signals():
        os.kill(os.getpid(), signal.SIGHUP)
        words = run(Sysfs(tmp_path), "nvpmodel", [], 20).words.replace("|", "").split()
    ignored = {n for n in DEFERRED if int(words[3], 16) >> (n - 1) & 1}
    assert (words[0], int(words[1], 16), words[2]) == ("SigBlk:", 0, "SigIgn:") and ignored == {signal.SIGHUP}
    assert came == []


def test_outside_the_main_thread_it_leaves_handlers_alone(came: list[int]) -> None:
    seen: list[object] = []

    def act() -> None:
        with deferred_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(20)
    assert seen == [before]
