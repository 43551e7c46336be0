"""The power helper as a process, and the commands that ask it."""

from __future__ import annotations

import grp
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from served_helper import Helper

from orind.daemon import cli, mode_command, power_helper
from orind.daemon.power_helper import passed_socket
from orind.ipc.control import ControlClient
from orind.ipc.errors import ControlError
from orind.ipc.exit_codes import Exit
from orind.power import privileged
from orind.power.privileged import Privileged
from orind.power.sysfs import Sysfs

# what systemd does: the socket as descriptor 3, and the process id that it has after exec
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, "-m", "orind.daemon.power_helper", *sys.argv[2:]])
"""


def test_the_process_serves_and_imports_nothing_heavy(tmp_path: Path, board: Path) -> None:
    path = tmp_path / "power.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        command = [sys.executable, "-c", ACTIVATE, str(listener.fileno()), "--root", str(board), "--group", "root",
                   "--state", str(tmp_path / "state")]
        with subprocess.Popen(command, pass_fds=[listener.fileno()]) as process:
            with ControlClient(path) as client:
                assert client.request({"op": "mode", "name": "MODE_50W"}, 30)["ok"]
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                assert "numpy" not in maps and "zmq" not in maps and "yaml" not in maps and "pydantic" not in maps
            process.terminate()


@pytest.mark.parametrize(("environment", "said"), [
    ({}, "is started by orind-power.socket"), ({"LISTEN_PID": "1", "LISTEN_FDS": "1"}, "is started by orind-power"),
    ({"LISTEN_PID": "own", "LISTEN_FDS": "2"}, "passes it one socket"),
    ({"LISTEN_PID": "own", "LISTEN_FDS": "1"}, "another socket than ListenSequentialPacket= makes")])
def test_without_its_socket_it_says_who_starts_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                                  environment: dict[str, str], said: str) -> None:
    for name in ("LISTEN_PID", "LISTEN_FDS"):
        monkeypatch.delenv(name, raising=False)
        if name in environment:
            monkeypatch.setenv(name, environment[name].replace("own", str(os.getpid())))
    with socket.socket() as stream:
        monkeypatch.setattr(power_helper, "FIRST_PASSED_FD", stream.fileno())
        with pytest.raises(ValueError, match=said):
            passed_socket()
        assert power_helper.main(["--group", "root"]) == 69
        assert said in capsys.readouterr().err
    assert power_helper.main(["--group", "nobodys-group"]) == 69


def _slowed(board: Path, program: str) -> Path:
    """Have a program of the board log when it begins and ends, and take its time; -> the log."""
    real, log = board / program, board / "log"
    real.rename(real.with_name(f"{real.name}.real"))
    real.write_text(f'#!/bin/sh\necho begin $1 >>{log}\nsleep 0.4\n"$0.real" "$@"; code=$?\necho end $1 >>{log}\n'
                    "exit $code\n")
    real.chmod(0o755)
    return log


def _begun(log: Path, what: str, process: subprocess.Popen[Any]) -> None:
    end_s = time.monotonic() + 30
    while not (log.exists() and f"begin {what}" in log.read_text()):
        assert time.monotonic() < end_s and process.poll() is None, f"{what} was never begun"
        time.sleep(0.02)


CUTS = [({"op": "fan", "profile": "quiet"}, "usr/bin/systemctl", "stop"),
        ({"op": "fan", "profile": "quiet"}, "usr/bin/systemctl", "start"),
        ({"op": "mode", "name": "MODE_50W"}, "usr/sbin/nvpmodel", "-m")]


def _is_done(board: Path, request: dict[str, str], log: Path) -> None:
    lines = log.read_text().splitlines()
    assert len(lines) >= 2 and lines[-1] == lines[-2].replace("begin", "end"), "the last program ended by itself"
    if request["op"] == "fan":
        assert not (board / ".nvfancontrol-stopped").exists(), "the fan turns"
        assert "FAN_DEFAULT_PROFILE quiet" in (board / "etc/nvfancontrol.conf").read_text()
    else:
        assert (board / "var/lib/nvpmodel/status").read_text().startswith("pmode:0003")


def test_a_handler_that_raises_does_so_after_the_request(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def choose(sysfs: Sysfs, profile: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        done.append(profile)

    def end(*_: object) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(privileged, "choose", choose)
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(SystemExit):
            Privileged(board, board / "state").answer({"op": "fan", "profile": "quiet"})
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done == ["quiet"]


@pytest.mark.parametrize(("request_", "program", "at"), CUTS)
def test_a_helper_that_is_ended_in_between_answers_first(board: Path, tmp_path: Path, request_: dict[str, str],
                                                         program: str, at: str) -> None:
    log, path = _slowed(board, program), tmp_path / "power.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(1)
        passed = 'exec 3<&"$0"; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'  # as systemd does
        command = ["bash", "-c", passed, str(listener.fileno()), sys.executable, "-m", "orind.daemon.power_helper",
                   "--root", str(board), "--group", grp.getgrgid(os.getgid()).gr_name]
        helper = subprocess.Popen(command, pass_fds=[listener.fileno()])
    with helper, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(30)
        sock.connect(str(path))
        sock.send(json.dumps(request_).encode())
        _begun(log, at, helper)
        helper.terminate()
        assert json.loads(sock.recv(65_536))["ok"]
        assert helper.wait(30) == 0
    _is_done(board, request_, log)


def _orind(*arguments: str) -> int:
    return cli.main(["power", *arguments])


def test_the_commands_on_a_simulated_board(board: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ["--root", str(board), "--run-dir", str(tmp_path)]
    assert _orind("fan", "quiet", *there) == 0 and capsys.readouterr().out == "fan profile quiet is active\n"
    assert _orind("fan", "loud", *there) == 2 and "no fan profile 'loud'" in capsys.readouterr().err
    assert _orind("mode", "MODE_30W", "--stage", *there) == 0
    assert capsys.readouterr().out.startswith("MODE_30W waits for the next boot")
    assert _orind("modes", "--root", str(board)) == 0
    assert "active: 2 MODE_30W, which waits for a boot" in capsys.readouterr().out


@pytest.mark.parametrize(("number", "code"), [
    (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP), (signal.SIGINT, Exit.INTERRUPTED)])
@pytest.mark.parametrize(("request_", "program", "at"), CUTS[::2])
def test_a_signal_to_the_terminal_ends_a_command_after_its_answer(
    board: Path, request_: dict[str, str], program: str, at: str, number: signal.Signals, code: int
) -> None:
    log = _slowed(board, program)
    command = [sys.executable, "-m", "orind.daemon.cli", "power", *request_.values(), "--root", str(board)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          start_new_session=True) as process:
        _begun(log, at, process)
        os.killpg(process.pid, number)  # as a terminal does: whoever runs in the foreground gets it
        said, _ = process.communicate(timeout=30)
    assert process.returncode == code and said.endswith(" is active\n")
    _is_done(board, request_, log)


def test_who_is_not_root_asks_the_helper(helper: Helper, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setattr(mode_command, "SOCKET", helper.path)
    assert _orind("mode", "MODE_50W") == 0 and capsys.readouterr().out == "MODE_50W is active\n"
    assert _orind("mode", "50W") == 2 and "no mode '50W' (known: MAXN" in capsys.readouterr().err
    helper.permitted = False
    assert _orind("mode", "MAXN") in (1, 69), "told, or closed before it could ask"
    assert "orind power: " in capsys.readouterr().err
    helper.permitted = True
    monkeypatch.setattr(mode_command, "SOCKET", helper.path.with_name("absent"))
    assert _orind("mode", "MAXN") == 69
    assert "systemctl enable --now orind-power.socket" in capsys.readouterr().err


def test_a_helper_that_does_not_answer_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        mute.bind(str(path))
        mute.listen()
        begin = time.monotonic()
        with ControlClient(path, 5.0) as client, pytest.raises(ControlError, match="no answer within"):
            client.request({"op": "emc"}, 0.1)
        assert time.monotonic() - begin < 20
