"""The steward as main sees it: limits that hold until they expire, faults said once, a steward that is replaced."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from stand_ins import MS, Processes, S
from steward_link import SECTION, Link, limits, told

from orind.daemon.power_link import RESPAWN_NS, SILENT_NS, UNMEASURED
from orind.daemon.sections import Camera
from orind.ipc.errors import ChannelError
from orind.power.energy import PowerSample
from orind.power.limits import Limits


def test_without_a_section_nothing_is_governed(link: Link) -> None:
    link.turn()
    assert link.processes.started == [] and link.link.limits(link.now) is None and not link.link.problem
    assert link.link.report["budget_w"] is None


def test_until_the_steward_speaks_the_lowest_pacing_holds(link: Link) -> None:
    link.link.configure(SECTION, "/plant")
    assert link.link.problem
    link.turn()
    assert not link.link.problem and link.link.report["budget_w"] == 30
    held = link.link.limits(link.now)
    assert held is not None and held.pace_hz == 5 and held.level == "lowest"
    section = json.loads(link.processes.of("steward")[0].arguments[0])
    assert section["root"] == "/plant" and section["state"].endswith("power-state.json")


def test_limits_hold_until_they_expire(link: Link) -> None:
    link.link.configure(SECTION, "/plant")
    link.turn()
    with link.steward() as sock:
        sock.send(limits(link.now + 100))
        sock.send(json.dumps({"report": {"board_w": 21.0, "gpu_cap_hz": 5}}).encode())
        link.turn()
        held = link.link.limits(link.now + 99)
        assert held is not None and (held.batch_max, held.pace_hz) == (4, 25.0)
        assert link.link.report == {"board_w": 21.0, "gpu_cap_hz": 5}
        held = link.link.limits(link.now + 100)
        assert held is not None and held.level == "lowest"
        link.turn(99)
        assert link.link.report["board_w"] == 21
        link.turn(1)
        assert [link.link.report[name] for name in ("board_w", "tj_c", "gpu_cap_hz")] == [None, None, 5]
        assert (link.link.report["level"], link.link.report["reason"]) == ("lowest", "no word from the steward")
        assert link.link.told_energy()["reason"] == "board power cannot be read, or was not yet"
        sock.send(json.dumps({"report": {"board_w": 22.0}}).encode())
        link.turn()
        assert link.link.report == {"board_w": 22.0}, "it speaks again"


def _closed(link: Link, sock: socket.socket) -> None:
    sock.close()
    link.turn()


def _nonsense(link: Link, sock: socket.socket) -> None:
    sock.send(b"hot")
    link.turn()


def _silent(link: Link, sock: socket.socket) -> None:
    link.turn(SILENT_NS + 1)


@pytest.mark.parametrize("end", [_closed, _nonsense, _silent])
def test_what_a_steward_allowed_ends_with_it(link: Link, end: Callable[[Link, socket.socket], None]) -> None:
    """Its clocks go up as it ends: main must not go on unpaced until the limits of before expire."""
    link.link.configure(SECTION, "/plant")
    link.turn()
    with link.steward() as sock:
        free = Limits(link.now + 10 * S, 8, None, "free", "all is well").to_json()
        sock.send(json.dumps({"limits": free}).encode())
        sock.send(json.dumps({"report": {"board_w": 21.0, "gpu_cap_hz": 5, "level": "free"}}).encode())
        link.turn()
        held = link.link.limits(link.now)
        assert held is not None and held.pace_hz is None
        end(link, sock)
    held = link.link.limits(link.now)
    assert held is not None and (held.level, held.pace_hz, held.batch_max) == ("lowest", 5, 1)
    report = link.link.report
    assert (report["level"], report["board_w"], report["gpu_cap_hz"]) == ("lowest", None, 5)


@pytest.mark.parametrize(("status", "saved", "told"), [(1, True, True), (1, False, False), (None, True, False)])
def test_caps_that_nobody_puts_back_are_said_at_the_end(
    link: Link, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int | None, saved: bool, told: bool
) -> None:
    link.link.configure(SECTION, "/plant")
    link.turn()
    link.processes.of("steward")[-1].child.status = status
    if saved:
        (tmp_path / "power-state.json").write_text("kept")
    link.link.close()
    said = [record.getMessage() for record in caplog.records if "still lowered" in record.getMessage()]
    assert len(said) == told
    assert not told or ("`orind power restore`" in said[0] and f"{tmp_path}/power-state.json" in said[0])


def test_samples_are_booked_and_what_cannot_be_measured_is_said(link: Link) -> None:
    assert link.link.told_energy()["reason"] == UNMEASURED and link.link.told_energy()["board_joules"] is None
    cameras = {"cam": Camera(model={"net": 1}, deadline_ms=50)}
    link.link.configure(SECTION, "/plant", cameras)
    assert link.link.told_energy()["reason"] == "the power governor does not run: the steward has not been started yet"
    link.turn()
    with link.steward() as sock:
        assert link.link.told_energy()["reason"] == "board power cannot be read, or was not yet"
        sock.send(json.dumps({"report": {"board_w": 21.0}}).encode())
        for n in range(12):
            if n:
                link.link.energy.ran("net", ["cam"], MS)
            sock.send(json.dumps({"sample": PowerSample(link.now, 21_000, 11_000, n > 0).to_json()}).encode())
            link.turn(S)
    told = link.link.told_energy()
    assert (told["reason"], told["board_joules"], told["inference_joules"]) == ("", 210, 100)
    assert told["models"]["net"]["cameras"]["cam"] == {"joules": 100, "frames": 10, "joules_per_frame": 10}
    link.turn(6 * S)
    assert link.link.told_energy()["unknown_s"] >= 6, "the steward is gone"
    link.link.configure(None, "/", cameras)
    told = link.link.told_energy()
    assert (told["reason"], told["board_joules"]) == (UNMEASURED, 231)


def test_faults_are_said_once_when_they_come_and_when_they_go(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    link.link.configure(SECTION, "/plant")
    link.turn()
    lost, told = ["zone tj: lost"], ("ERROR", "power: zone tj: lost")

    def said(sock: socket.socket, *reports: list[str]) -> list[tuple[str, str]]:
        """After these, a second apart."""
        for faults in reports:
            sock.send(json.dumps({"report": {"board_w": 21.0, "faults": faults}}).encode())
            link.turn(S)
        return [(r.levelname, r.getMessage()) for r in caplog.records if r.getMessage().startswith("power: ")]

    with link.steward() as sock:
        assert said(sock, [], lost, lost) == [told]
        # one that comes and goes is the same one: the journal is not filled by it
        assert said(sock, *([[], lost] * 5), [], [], [], []) == [told]
        assert said(sock, []) == [told, ("WARNING", "power: sensors and clock caps are well again")]
        assert said(sock, [], lost)[2:] == [told], "and the next is told"


def test_what_others_changed_is_said_when_the_steward_says_it(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    link.link.configure(SECTION, "/plant")
    link.turn()
    note = "the power mode was changed from MAXN to MODE_50W; its caps hold from now on"
    with link.steward() as sock:
        for notes in ([], [note], []):
            sock.send(json.dumps({"report": {"board_w": 21.0, "faults": [], "notes": notes}}).encode())
        link.turn()
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [f"power: {note}"]
    assert link.processes.board_root == "/plant", "where the nursery looks which CPUs are online"


def test_a_stewards_error_is_in_the_report(link: Link) -> None:
    link.link.configure(SECTION, "/plant")
    link.turn()
    with link.steward() as sock:
        sock.send(b'{"error": "no rail VDD_GPU_SOC"}')
        link.turn()
    assert link.link.report["reason"] == "no rail VDD_GPU_SOC"


@pytest.mark.parametrize("garbage", [
    b"nonsense", b'{"limits": "{}"}', b'{"sample": "{}"}', b"{}", b"5", b"[]", b"null", b'{"report": 5}',
    b'{"report": {"notes": 5}}', b'{"report": {"faults": [7]}}', b'{"report": {"gpu_cap_hz": "x"}}', b'{"limits": 5}',
    b'{"sample": []}', b'{"error": 5}', b"[" * 50_000,
])
def test_garbage_ends_the_connection_and_a_new_steward_comes_when_the_old_one_has_ended(
    link: Link, garbage: bytes
) -> None:
    link.link.configure(SECTION, "/plant")
    link.turn()
    with link.steward() as sock:
        sock.send(garbage)
        link.turn()
    assert link.link.problem
    link.turn(RESPAWN_NS)
    assert len(link.processes.of("steward")) == 1, "the old one may still put the clocks back"
    link.processes.of("steward")[0].child.status = 0
    link.turn()
    assert len(link.processes.of("steward")) == 2


def test_a_dead_steward_is_replaced_after_a_while(link: Link) -> None:
    link.link.configure(SECTION, "/plant")
    link.turn()
    link.steward().close()
    link.turn()
    assert link.link.problem
    link.processes.of("steward")[0].child.status = -9
    link.turn(RESPAWN_NS - 1)
    assert len(link.processes.of("steward")) == 1
    link.turn(1)
    assert len(link.processes.of("steward")) == 2


def test_a_silent_steward_is_killed_and_replaced(link: Link) -> None:
    link.link.configure(SECTION, "/")
    link.turn()
    first = link.steward()
    link.turn(SILENT_NS)
    assert not link.link.problem and not link.processes.started[-1].killed
    link.turn(MS)
    assert link.link.problem and link.processes.started[-1].killed
    link.processes.started[-1].child.status = -9
    link.turn(RESPAWN_NS)
    assert len(link.processes.of("steward")) == 2
    assert link.link.problem == "it was silent", "health says so until the new one governs"
    with link.steward() as second:
        second.send(limits(link.now + 100))
        link.turn()
        assert not link.link.problem
    first.close()


def test_a_steward_that_never_governs_is_tried_ever_more_rarely_and_its_last_words_are_said(link: Link) -> None:
    link.link.configure(SECTION, "/")
    waits = []
    for n in range(1, 8):
        waited = 0
        while len(link.processes.of("steward")) < n:
            link.turn(RESPAWN_NS)
            waited += 1
        waits.append(waited)
        with link.steward() as sock:
            sock.send(b'{"error": "no rail\\u0000 VDD"}')
        link.processes.of("steward")[-1].child.status = 1
        link.turn()
    assert waits == [1, 1, 2, 4, 8, 10, 10] and link.link.problem == "no rail  VDD"


def test_a_steward_that_cannot_be_asked_for_is_a_reason_not_an_end(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.link.configure({**SECTION, "note": "x" * 70_000}, "/")
    with monkeypatch.context() as real:
        real.setattr(Processes, "spawn", lambda self, role, fds, arguments, **_: _too_long(arguments))
        link.turn()
        assert "65536" in link.link.problem
        link.turn(RESPAWN_NS)
    with monkeypatch.context() as none_left:
        none_left.setattr("orind.daemon.power_link.make_pair", _no_descriptor)
        link.turn(2 * RESPAWN_NS)
        assert "Too many open files" in link.link.problem


def _too_long(arguments: list[str]) -> NoReturn:
    raise ChannelError(f"message of {len(arguments[0])} bytes with 2 descriptors: 65536 and 32")


def _no_descriptor() -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_another_policy_is_told_to_the_steward_another_board_starts_a_new_one(link: Link) -> None:
    link.link.configure(SECTION, "/plant")
    link.turn()
    steward = link.steward()
    assert told(steward) == {"asked": {"budget": None, "ambient": None}}
    link.link.configure(dict(SECTION), "/plant")
    link.link.configure({**SECTION, "policy": {"budget_w": 20, "lowest_pace_hz": 3}}, "/plant")
    assert told(steward)["policy"] == {"budget_w": 20, "lowest_pace_hz": 3} and not link.link.problem
    held = link.link.limits(link.now)
    assert held is not None and held.pace_hz == 3, "until it speaks, under the new policy's lowest pacing"
    link.link.configure({**SECTION, "policy": {"budget_w": 20}, "board": {**SECTION["board"], "title": "x"}}, "/plant")
    assert link.link.problem and link.link.report["budget_w"] == 20
    link.link.configure(None, "/")
    assert not link.link.problem and link.link.limits(link.now) is None
    steward.close()


def test_a_policy_that_the_steward_cannot_be_told_starts_a_new_one(link: Link) -> None:
    link.link.configure(SECTION, "/plant")
    link.turn()
    link.steward().close()
    link.link.configure({**SECTION, "policy": {"budget_w": 20}}, "/plant")
    assert link.link.problem
