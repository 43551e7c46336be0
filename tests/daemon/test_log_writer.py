"""Log lines go through a thread: whoever does not read stderr stops nobody."""

from __future__ import annotations

import logging
import os
import time

import pytest

from orind.daemon import log_writer
from orind.daemon.log_writer import LogWriter


def logger_of(writer: LogWriter) -> logging.Logger:
    made = logging.Logger("test")
    made.addHandler(writer)
    return made


def test_lines_arrive_in_order_and_the_end_waits_for_them() -> None:
    out, into = os.pipe()
    writer = LogWriter(into)
    for n in range(100):
        logger_of(writer).warning("line %d \udc80", n)
    writer.close()
    os.close(into)
    with os.fdopen(out, "rb") as file:
        assert file.read().decode().splitlines() == [f"line {n} \\udc80" for n in range(100)]


def fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    try:
        while True:
            os.write(pipe, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(pipe, True)


def read_until(pipe: int, words: bytes) -> bytes:
    said, end = b"", time.monotonic() + 20
    while words not in said:
        assert time.monotonic() < end, said[-200:]
        said += os.read(pipe, 65_536)
    return said


def test_a_reader_that_stalls_stops_nobody_and_what_was_lost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "LINES_MAX", 4)
    out, into = os.pipe()
    fill(into)
    writer = LogWriter(into)
    log = logger_of(writer)
    for n in range(50):
        log.warning("line %d", n)  # returns although nobody reads
    read_until(out, b"line 3")
    while writer._lines.qsize():
        time.sleep(0.001)
    log.warning("again")
    assert b" log lines were lost: nobody read them in time\nagain\n" in read_until(out, b"again\n")
    writer.close()
    os.close(out)
    os.close(into)


def test_the_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "END_WAIT_S", 0.05)
    out, into = os.pipe()
    fill(into)
    writer = LogWriter(into)
    logger_of(writer).warning("nobody reads this")
    writer.close()
    assert writer._thread.is_alive()
    read_until(out, b"nobody reads this\n")
    writer._thread.join(20)
    os.close(out)
    os.close(into)


def test_a_stderr_that_is_gone_ends_nobody() -> None:
    out, into = os.pipe()
    os.close(out)
    writer = LogWriter(into)
    for n in range(10):
        logger_of(writer).warning("line %d", n)
    writer.close()
    os.close(into)
