"""The power helper over real sockets and a simulated board: a fixed set of requests, and nothing else gets through."""

from __future__ import annotations

import grp
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orind.daemon import cli, mode_command, power_helper
from orind.daemon.power_helper import may_ask, passed_socket, serve
from orind.ipc.control import CLIENTS_MAX, REQUEST_BYTES_MAX, ControlClient, ControlServer
from orind.ipc.errors import ControlError
from orind.ipc.exit_codes import Exit
from orind.power import privileged
from orind.power.plant.modules import AGX_ORIN, JETPACKS
from orind.power.plant.tree import Layout, build_tree
from orind.power.privileged import REQUESTS, Privileged
from orind.power.sysfs import Sysfs

STATUS, FAULT = "var/lib/nvpmodel/status", ".nvpmodel-fault"
NAMES = "a name has 1 to 64 letters, digits and _ . + -"


@pytest.fixture
def board(tmp_path: Path) -> Path:
    build_tree(tmp_path / "board", Layout(AGX_ORIN, JETPACKS["6"], 0))
    return tmp_path / "board"


class Helper:
    """`serve` in a thread, on a listening socket as systemd would pass it."""

    def __init__(self, folder: Path, board: Path, silent_s: float = 20.0) -> None:
        self.path, self.board, self.permitted = folder / "power.sock", board, True
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self._listener.listen(CLIENTS_MAX)
        self._server = ControlServer(self.path, fd=self._listener.fileno(), admit=lambda _: self.permitted)
        privileged = Privileged(board, folder / "power-state.json")
        self._thread = threading.Thread(target=serve, args=(self._server, privileged, 0.2, silent_s))
        self._thread.start()

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(20)
        sock.connect(str(self.path))
        return sock

    def raw(self, data: bytes) -> dict[str, Any]:
        with self.connect() as sock:
            sock.send(data)
            answer: dict[str, Any] = json.loads(sock.recv(65_536))
            return answer

    def ask(self, **fields: Any) -> dict[str, Any]:
        return self.raw(json.dumps(fields).encode())

    def close(self) -> None:
        """It ends by itself: nobody is there any more."""
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._server.close()
        self._listener.close()


@pytest.fixture
def helper(tmp_path: Path, board: Path, no_fd_leak: None) -> Iterator[Helper]:
    made = Helper(tmp_path, board)
    yield made
    made.close()


def _files(board: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in board.rglob("*") if path.is_file()}


def test_every_request_that_there_is(helper: Helper) -> None:
    assert set(REQUESTS) == {"mode", "stage", "fan", "emc"}
    assert helper.ask(op="mode", name="MODE_50W") == {"ok": True, "done": "MODE_50W is active"}
    assert helper.ask(op="emc") == {"ok": True, "emc_hz": 3_199_000_000, "emc_percent": 0}
    assert helper.ask(op="fan", profile="quiet") == {"ok": True, "done": "fan profile quiet is active"}
    said = helper.ask(op="stage", name="MODE_15W")
    assert said["done"] == "MODE_15W waits for the next boot, which is yours to start; nothing else was changed"
    assert (helper.board / STATUS).read_text() == "pmode:0001 fmode:cool\n"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "unknown request: op is one of mode, stage, fan, emc"),
    ({"op": "reboot"}, "unknown request"), ({"op": None}, "unknown request"), ({"op": ["mode"]}, "unknown request"),
    ({"op": "status"}, "unknown request"), ({"op": "MODE", "name": "MAXN"}, "unknown request"),
    ({"op": "mode"}, "mode takes name and nothing else"), ({"op": "emc", "path": "/etc"}, "emc takes nothing and"),
    ({"op": "mode", "name": "MAXN", "force": True}, "mode takes name and nothing else"),
    ({"op": "mode", "profile": "quiet"}, "mode takes name and nothing else"),
    ({"op": "mode", "name": 3}, NAMES), ({"op": "mode", "name": ""}, NAMES), ({"op": "mode", "name": "M" * 65}, NAMES),
    ({"op": "mode", "name": "MAXN\n"}, NAMES), ({"op": "mode", "name": "MAXN MODE_50W"}, NAMES),
    ({"op": "mode", "name": "$(reboot)"}, NAMES), ({"op": "stage", "name": "../../etc/passwd"}, NAMES),
    ({"op": "fan", "profile": "quiet\nFAN_DEFAULT_PROFILE x"}, NAMES), ({"op": "mode", "name": "MAXN\u0000"}, NAMES),
    ({"op": "mode", "name": "0"}, "no mode '0' (known: MAXN, MODE_15W"), ({"op": "mode", "name": "-m"}, "no mode '-m'"),
    ({"op": "mode", "name": "--force"}, "no mode '--force'"), ({"op": "stage", "name": ".."}, "no mode '..'"),
    ({"op": "fan", "profile": "loud"}, "no fan profile 'loud' (known: cool, quiet)"),
    ({"op": "fan", "profile": "FAN_PROFILE"}, "no fan profile"),
    ({"op": "mode", "name": "MODE_30W"}, "MODE_30W needs a reboot (TPC mask 0 -> 240); nothing was changed"),
    ({"op": "stage", "name": "MODE_50W"}, "MODE_50W needs no reboot")]
NO_REQUESTS = [
    (b"mode MAXN", "message is not JSON"), (b"\xff\xfe", "message is not JSON"), (b"[1]", "message is not a JSON obj"),
    (b"[" * 4000, "message is not JSON"), (b'{"op": "emc"} {"op": "emc"}', "message is not JSON"),
    (b'{"op": "emc", "x": "' + b"a" * REQUEST_BYTES_MAX + b'"}', "message of more than 4096 bytes")]


def test_everything_else_is_refused_and_changes_nothing(helper: Helper) -> None:
    before = _files(helper.board)
    for fields, said in REFUSED:
        answer = helper.ask(**fields)
        assert answer["ok"] is False and len(answer["errors"]) == 1 and said in answer["errors"][0], fields
    for data, said in NO_REQUESTS:
        assert said in helper.raw(data)["error"], data
    assert helper.ask(op="emc")["ok"], "and the next one is served"
    assert _files(helper.board) == before


def test_a_board_that_cannot_is_said(helper: Helper) -> None:
    (helper.board / FAULT).write_text("refused")
    answer = helper.ask(op="mode", name="MODE_50W")
    assert answer["kind"] == "failed" and "MODE_50W was not entered: " in answer["errors"][0]
    (helper.board / "sys/kernel/debug/bpmp/debug/clk/emc/rate").unlink()
    assert helper.ask(op="emc")["kind"] == "file"
    (helper.board / "etc/nvpmodel.conf").write_text("stray\n" * 40)
    answer = helper.ask(op="mode", name="MAXN")
    assert answer["kind"] == "conf" and len(answer["errors"]) == 21 and answer["errors"][20] == "and 22 more"
    (helper.board / "etc/nvfancontrol.conf").unlink()
    assert helper.ask(op="fan", profile="quiet")["kind"] == "file"


def test_two_at_once_are_served_one_after_the_other(helper: Helper) -> None:
    with helper.connect() as first, helper.connect() as second:
        first.send(b'{"op": "mode", "name": "MODE_50W"}')
        second.send(b'{"op": "mode", "name": "MAXN"}')
        assert json.loads(first.recv(65_536))["ok"] and json.loads(second.recv(65_536))["ok"]
    assert (helper.board / STATUS).read_text().startswith("pmode:000")


def test_silent_and_flooding_clients_keep_nobody_waiting(helper: Helper) -> None:
    with helper.connect() as silent, helper.connect() as flood, helper.connect() as leaver:
        leaver.send(b'{"op": "emc"}')
        leaver.close()
        flood.setblocking(False)
        for _ in range(400):  # never reads: its answers fill the queue, and it is dropped
            try:
                flood.send(b'{"op": "emc"}')
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                break
        assert helper.ask(op="emc")["ok"]
        silent.send(b'{"op": "emc"}')
        assert json.loads(silent.recv(65_536))["ok"]


def test_one_client_too_many_is_told(helper: Helper) -> None:
    held = [helper.connect() for _ in range(CLIENTS_MAX)]
    for sock in held:
        sock.send(b'{"op": "emc"}')
        assert json.loads(sock.recv(65_536))["ok"]
    with helper.connect() as more:
        assert "busy: 16 clients" in json.loads(more.recv(65_536))["error"]
    for sock in held:
        sock.close()


def test_who_asks_nothing_gives_its_place_to_others(tmp_path: Path, board: Path, no_fd_leak: None) -> None:
    helper = Helper(tmp_path, board, silent_s=0.2)
    silent = [helper.connect() for _ in range(CLIENTS_MAX)]
    for sock in silent:
        assert sock.recv(65_536) == b"", "closed"
        sock.close()
    helper.close()


def test_who_waits_for_another_s_request_is_not_silent(tmp_path: Path, board: Path, no_fd_leak: None,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, answer = threading.Event(), threading.Event(), Privileged.answer

    def slow(self: Privileged, fields: dict[str, Any]) -> dict[str, Any]:
        if fields["op"] == "mode":
            begun.set()
            assert go_on.wait(20)
            time.sleep(0.5)
        return answer(self, fields)

    monkeypatch.setattr(Privileged, "answer", slow)
    helper = Helper(tmp_path, board, silent_s=0.3)
    with helper.connect() as steward, helper.connect() as person:
        steward.send(b'{"op": "emc"}')
        assert json.loads(steward.recv(65_536))["ok"]
        person.send(b'{"op": "mode", "name": "MODE_50W"}')
        assert begun.wait(20)
        steward.send(b'{"op": "emc"}')
        go_on.set()
        assert json.loads(person.recv(65_536))["ok"]
        assert json.loads(steward.recv(65_536))["ok"]
    helper.close()


def test_a_state_that_cannot_be_looked_for_may_be_there(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    privileged = Privileged(board, board / "state")
    cap = board / Layout(AGX_ORIN, JETPACKS["6"], 0).max_freq

    def forbidden(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    assert privileged.answer({"op": "mode", "name": "MODE_50W"})["ok"]
    (board / FAULT).write_text("container")  # nvpmodel does nothing; a daemon holds a lower cap
    cap.write_text("408000000\n")
    assert not privileged.answer({"op": "mode", "name": "MODE_50W"})["ok"]
    with monkeypatch.context() as patch:
        patch.setattr(power_helper.Path, "exists", forbidden)
        assert privileged._governed()


def test_a_client_who_may_not_ask_is_told_and_closed(helper: Helper) -> None:
    helper.permitted = False
    with helper.connect() as sock:
        assert json.loads(sock.recv(65_536)) == {"ok": False, "error": "not permitted"}
        assert sock.recv(65_536) == b""
    helper.permitted = True


# -- who may ask ---------------------------------------------------------------------------------------------------

CONNECT = """
import os, socket, sys
os.setgroups([int(g) for g in sys.argv[4].split(",") if g]); os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[2]))
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); sock.connect(sys.argv[1]); sock.recv(1)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize(("uid", "gid", "groups", "may"), [
    (0, 0, "", True), (1234, 4321, "", True), (1234, 1234, "7,4321", True), (1234, 1234, "7", False),
    (1234, 1234, "", False), (1234, 0, "0", False)])
def test_root_and_members_of_the_group_may_ask(uid: int, gid: int, groups: str, may: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        Path(folder).chmod(0o755)  # where anybody can go
        path = Path(folder) / "sock"
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        listener.settimeout(20)
        command = [sys.executable, "-ISc", CONNECT, str(path), str(uid), str(gid), groups]
        with subprocess.Popen(command) as peer:
            sock, _ = listener.accept()
            with sock:
                assert may_ask(sock, 4321) is may
        assert peer.returncode == 0


def test_a_kernel_that_does_not_tell_the_groups_means_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_helper, "_SO_PEERGROUPS", 9999)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        monkeypatch.setattr(power_helper.struct, "unpack", lambda *_: (1, 1234, 1234))
        assert may_ask(ours, 4321) is False


# -- the process ---------------------------------------------------------------------------------------------------

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
        assert (board / STATUS).read_text().startswith("pmode:0003")


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


# -- the command line ----------------------------------------------------------------------------------------------


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
