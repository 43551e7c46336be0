"""Messages to systemd: over a real datagram socket where the library is installed, refused where it is missing."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import S

from orind.daemon.notify import NotifyError, ServiceManager, connect, passed_sockets


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
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    said: list[str] = []
    manager = ServiceManager(said.append)
    for now_ns in (1, S, S + 1, S + S // 2, 2 * S + 1):
        manager.alive(now_ns)
    assert said == ["WATCHDOG=1"] * 3


class Systemd:
    """A socket of systemd's that can be gone."""

    def __init__(self) -> None:
        self.gone = False
        self.said: list[str] = []

    def __call__(self, state: str) -> None:
        if self.gone:
            raise ConnectionRefusedError("gone")
        self.said.append(state)


def test_a_systemd_that_stops_listening_is_told_later_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    systemd = Systemd()
    manager = ServiceManager(systemd)
    manager.ready("serving")
    systemd.gone = True
    manager.reloading()
    manager.ready("generation 2")
    for second in range(1, 5):
        manager.alive(second * S)
    assert systemd.said == ["READY=1\nSTATUS=serving"] and len(caplog.records) == 1
    systemd.gone = False
    manager.alive(5 * S)
    assert [text.partition("\n")[0] for text in systemd.said[1:]] == ["RELOADING=1", "READY=1", "WATCHDOG=1"]
    systemd.gone = True
    for _ in range(9):
        manager.stopping("draining")
    assert len(caplog.records) == 2 and len(manager._unsent) == 2


def test_a_systemd_that_cannot_be_told_of_the_start_is_an_error() -> None:
    systemd = Systemd()
    systemd.gone = True
    with pytest.raises(NotifyError, match="cannot be told that orind is ready"):
        ServiceManager(systemd).ready("serving")


def test_a_status_can_neither_forge_lines_nor_be_too_long() -> None:
    systemd = Systemd()
    ServiceManager(systemd).ready("a\nWATCHDOG=trigger\n" + "b" * 300_000)
    assert systemd.said[0].startswith("READY=1\nSTATUS=a WATCHDOG=trigger bb")
    assert systemd.said[0].count("\n") == 1 and len(systemd.said[0]) == 515


@pytest.mark.parametrize("text", ["soon", "-5", "1e6", "", "9" * 30])
def test_a_watchdog_interval_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", text)
    with pytest.raises(NotifyError, match="WATCHDOG_USEC"):
        ServiceManager(Systemd())


@pytest.mark.parametrize("text", ["1", "999999"])
def test_a_watchdog_that_a_loaded_machine_would_miss_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", text)
    with pytest.raises(NotifyError, match=r"WatchdogSec is .* s: .*set WatchdogSec=1 or more"):
        ServiceManager(Systemd())
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    ServiceManager(Systemd())


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


def test_sockets_that_systemd_passes_without_the_library_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LISTEN_FDS", raising=False)
    assert passed_sockets().unclaimed([]) == []
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setitem(sys.modules, "systemd", None)
    with pytest.raises(NotifyError, match=r"systemd passes sockets, but .*orind\[systemd\]"):
        passed_sockets()


def test_sockets_are_taken_by_the_protocol_and_not_passed_on(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES='frames')\n"
        "from orind.daemon.notify import passed_sockets\n"
        "where, fd = passed_sockets().take('systemd:frames')\n"
        "print(where, fd, os.get_inheritable(fd), 'LISTEN_FDS' in os.environ)\n"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        fd = listener.fileno()
        done = subprocess.run(
            ["bash", "-c", f'exec 3<&{fd}; exec "$0" -c "$1"', sys.executable, code],
            pass_fds=[fd], capture_output=True, text=True, check=True,
        )
    assert done.stdout == f"ipc://{tmp_path}/s 3 False False\n"
