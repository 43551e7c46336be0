"""Messages to systemd: over a real datagram socket where the library is installed, refused where it is missing."""

from __future__ import annotations

import importlib.util
import socket
import sys
from pathlib import Path

import pytest

from orind.daemon.notify import NotifyError, ServiceManager, connect


def test_without_systemd_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    assert connect() is None
    manager = ServiceManager(None)
    manager.ready("x")
    manager.alive(10**18)


def test_systemd_without_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setitem(sys.modules, "systemd", None)
    with pytest.raises(NotifyError, match=r"orind\[systemd\]"):
        connect()


def test_what_is_said_at_each_turn_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    said: list[str] = []
    manager = ServiceManager(said.append)
    manager.ready("serving generation 1")
    manager.reloading()
    manager.stopping("draining, 3 frames without an answer")
    manager.alive(10**18)
    assert said[0] == "READY=1\nSTATUS=serving generation 1"
    assert said[1].startswith("RELOADING=1\nMONOTONIC_USEC=") and said[1].rpartition("=")[2].isdigit()
    assert said[2:] == ["STOPPING=1\nSTATUS=draining, 3 frames without an answer"]


def test_the_watchdog_is_pinged_at_half_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    said: list[str] = []
    manager = ServiceManager(said.append)
    for now_ns in (1, 1_000_000, 1_000_001, 1_500_000, 2_000_001):
        manager.alive(now_ns)
    assert said == ["WATCHDOG=1"] * 3


def test_a_real_socket_is_reached_or_the_missing_library_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        if importlib.util.find_spec("systemd.daemon") is None:
            with pytest.raises(NotifyError):
                connect()
            return
        ServiceManager(connect()).ready("serving")
        assert listener.recv(4096) == b"READY=1\nSTATUS=serving"
