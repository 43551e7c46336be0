"""The power helper over real sockets and a simulated board: a fixed set of requests, and nothing else gets through."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from served_helper import Helper

from orind.daemon import power_helper
from orind.ipc.control import CLIENTS_MAX, REQUEST_BYTES_MAX
from orind.power.plant.modules import AGX_ORIN, JETPACKS
from orind.power.plant.tree import Layout
from orind.power.privileged import REQUESTS, Privileged

STATUS, FAULT = "var/lib/nvpmodel/status", ".nvpmodel-fault"
NAMES = "a name has 1 to 64 letters, digits and _ . + -"


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
