"""The steward as main sees it, and the steward process itself over a plant's tree."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from stand_ins import MS, Processes, S, turn

from orind.daemon import power_command, steward
from orind.daemon.poller import Poller
from orind.daemon.power_link import RESPAWN_NS, SILENT_NS, UNMEASURED, PowerLink
from orind.daemon.power_requests import ASKS_MAX, ASKS_WITHIN_NS
from orind.daemon.sections import Camera
from orind.ipc.channel import Channel
from orind.ipc.control import ControlServer, Request
from orind.ipc.errors import ChannelError
from orind.ipc.stats_page import StatsWriter
from orind.power.energy import PowerSample
from orind.power.limits import Limits
from orind.power.plant.board import PlantBoard
from orind.power.plant.model import PlantModel

CONFIGS = Path(__file__).parents[2] / "configs"
SECTION: dict[str, Any] = {
    "board": yaml.safe_load((CONFIGS / "boards" / "agx-orin.yaml").read_text()),
    "mode": "",
    "policy": {"budget_w": 30, "lowest_pace_hz": 5, "tick_ms": 20},
}


class Link:
    """Main's side, and a steward that the test plays."""

    def __init__(self, folder: Path) -> None:
        self.now = 10 * S
        self.poller, self.processes, self.stats = Poller(), Processes(), StatsWriter()
        self.link = PowerLink(self.processes, self.poller, self.stats, folder)

    def steward(self) -> socket.socket:
        started = self.processes.of("steward")[-1]
        sock = socket.socket(fileno=started.fds.pop(0))
        started.close()
        return sock

    def turn(self, passed_ns: int = 0) -> None:
        self.now += passed_ns
        turn(self.poller, self.now)
        self.link.tick(self.now)

    def close(self) -> None:
        self.link.close()
        self.processes.close()
        self.stats.close()


@pytest.fixture
def link(tmp_path: Path, no_fd_leak: None) -> Iterator[Link]:
    made = Link(tmp_path)
    yield made
    made.close()


def limits(expires_ns: int) -> bytes:
    return json.dumps({"limits": Limits(expires_ns, 4, 25.0, "warm", "hot day").to_json()}).encode()


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


# -- what is asked for on the control socket -----------------------------------------------------------------------


def told(steward: socket.socket) -> dict[str, Any]:
    found = json.loads(steward.recv(65_536))
    assert isinstance(found, dict)
    return found


def asking(**given: Any) -> Request:
    return Request(5, "power", False, 42, 1000, given)


AMBIENT = {"ambient": [{"ambient_c": 25, "budget_w": 30}, {"ambient_c": 45, "budget_w": 20}]}


def test_what_is_asked_for_while_nobody_governs_is_taken_and_said(link: Link) -> None:
    link.link.configure(SECTION, "/plant")
    link.turn()
    link.steward().close()
    link.turn()
    assert link.link.ask(asking(budget_w=18, for_s=600), link.now) == {
        "ok": True, "result": "taken, but the governor does not run: it has ended"}


def test_a_budget_that_is_asked_for_reaches_the_steward_and_ends_by_itself(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    link.link.configure(SECTION, "/plant")
    link.turn()
    steward = link.steward()
    told(steward)
    assert link.link.ask(asking(budget_w=18, for_s=600), link.now) == {"ok": True, "result": "taken"}
    wanted = [18_000, link.now + 600 * S, "uid 1000 (pid 42)"]
    assert told(steward) == {"asked": {"budget": wanted, "ambient": None}}
    steward.close()
    link.turn()
    link.processes.of("steward")[0].child.status = -9
    link.turn(RESPAWN_NS)
    with link.steward() as second:
        assert told(second)["asked"]["budget"] == wanted, "a new steward is told as well"
    link.turn(600 * S)
    said = [r.getMessage() for r in caplog.records if "budget of" in r.getMessage()]
    assert said == ["power: budget of 18 W for 600 s, asked for by uid 1000 (pid 42)",
                    "power: budget of 18 W, asked for by uid 1000 (pid 42), ended: its time is over"]


def test_what_a_steward_with_a_full_queue_missed_is_told_when_it_reads_again(link: Link) -> None:
    link.link.configure(SECTION, "/plant")
    link.turn()
    with link.steward() as steward:
        told(steward)
        asked_ns = link.now
        while not link.link._untold:
            asked_ns += S
            assert link.link.ask(asking(budget_w=28, for_s=600), asked_ns)["ok"]
        assert link.link.ask(asking(budget_w=18, for_s=600), asked_ns + S)["ok"]
        link.turn()
        assert link.link._untold, "it has not read yet"
        steward.setblocking(False)
        with pytest.raises(BlockingIOError):
            while json.loads(steward.recv(65_536))["asked"]["budget"][0] == 28_000:
                pass
        link.turn()
        assert json.loads(steward.recv(65_536))["asked"]["budget"][0] == 18_000
        link.turn()
        with pytest.raises(BlockingIOError):
            steward.recv(65_536)


def test_a_storm_of_requests_is_refused_and_said_once(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    link.link.configure(SECTION, "/plant")
    for n in range(300):
        taken = link.link.ask(asking(budget_w=20 if n % 2 else 99, for_s=600), link.now)
        assert taken["ok"] is (n < ASKS_MAX and n % 2 == 1), n
    assert taken["result"] == "refused: more than 20 requests within 10 s are refused"
    assert len(caplog.records) == ASKS_MAX + 1
    assert caplog.records[-1].getMessage().startswith("power: more than 20 requests within 10 s are refused; the last")
    assert link.link.ask(asking(budget_w=18, for_s=600), link.now + ASKS_WITHIN_NS)["ok"]


def test_what_was_asked_for_ends_on_request_and_where_a_new_policy_forbids_it(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    link.link.configure({**SECTION, "policy": {"budget_w": 30, **AMBIENT}}, "/plant")
    for given in ({"budget_w": 28, "for_s": 60}, {"ambient_c": 41.5, "for_s": 60}, {"budget_w": None},
                  {"budget_w": 26, "for_s": 60}):
        assert link.link.ask(asking(**given), link.now)["ok"], given
    link.link.configure({**SECTION, "policy": {"budget_w": 20}}, "/plant")
    ended = [r.getMessage().partition("ended: ")[2] for r in caplog.records if "ended: " in r.getMessage()]
    assert ended == ["uid 1000 (pid 42) ended it", "it is above the new policy's highest budget",
                     "the new policy has no ambient table"]


@pytest.mark.parametrize(("given", "refusal"), [
    ({}, "send budget_w or ambient_c, with for_s"),
    ({"budget_w": 20, "ambient_c": 20, "for_s": 5}, "send budget_w or ambient_c, with for_s"),
    ({"budget_w": 20, "for_s": 5, "by": "me"}, "send budget_w or ambient_c, with for_s"),
    ({"budget_w": 31, "for_s": 5}, "budget_w must lie in 10.88 to 30 W (idle power to the policy's highest budget)"),
    ({"budget_w": 5, "for_s": 5}, "budget_w must lie in 10.88 to 30 W"),
    ({"budget_w": True, "for_s": 5}, "budget_w must lie in 10.88 to 30 W"),
    ({"budget_w": float("nan"), "for_s": 5}, "budget_w must lie in 10.88 to 30 W"),
    ({"budget_w": "20", "for_s": 5}, "budget_w must lie in 10.88 to 30 W"),
    ({"budget_w": 20}, "for_s must lie in 1 to 86400, not None"),
    ({"budget_w": 20, "for_s": 90_000}, "for_s must lie in 1 to 86400, not 90000"),
    ({"ambient_c": 90, "for_s": 5}, "ambient_c must lie in -40 to 85 C"),
    ({"ambient_c": 30, "for_s": 5}, "the policy has no ambient table"),
])
def test_a_request_out_of_bounds_is_refused_and_logged(
    link: Link, given: dict[str, Any], refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    link.link.configure(SECTION, "/plant")
    answer = link.link.ask(asking(**given), link.now)
    assert not answer["ok"] and answer["result"].startswith(f"refused: {refusal}")
    assert caplog.records[-1].getMessage().startswith(f"power: what uid 1000 (pid 42) asked for is refused: {refusal}")


def test_nothing_can_be_asked_for_where_power_is_not_governed(link: Link) -> None:
    answer = link.link.ask(asking(budget_w=20, for_s=5), link.now)
    assert answer == {"ok": False, "result": "refused: power is not governed, the configuration has no power section"}


# -- the process ---------------------------------------------------------------------------------------------------


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    PlantBoard(tmp_path / "board", PlantModel(seed=1)).advance(0.1, 0.0)
    return tmp_path / "board"


def run_steward(
    monkeypatch: pytest.MonkeyPatch, stats: StatsWriter, section: dict[str, Any], talk: Any
) -> tuple[int, list[dict[str, Any]]]:
    """The process's main here; `talk(sock, said)` plays main in a thread and closes its end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30)
    channel = Channel(theirs, blocking=False)
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(steward, "begin_child", lambda: None)
    monkeypatch.setattr(steward.Channel, "from_fd", lambda fd, blocking: channel)
    monkeypatch.setattr(sys, "argv", ["steward", "0", str(stats.readonly_fd()), json.dumps(section)])
    main = threading.Thread(target=talk, args=(ours, said))
    main.start()
    code = steward.main()
    channel.close()
    main.join(30)
    ours.close()
    return code, said


@pytest.mark.parametrize(("quiet", "told"), [(True, ("quiet", "cool")), (False, ("", None))])
def test_a_report_has_the_fan_profile_that_is_meant_and_the_active_one(
    plant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool, told: tuple[str, str | None]
) -> None:
    stats, policy = StatsWriter(), {"budget_w": 30, "quiet": {
        "budget_w": 20, "tj_warn_c": 60, "tj_limit_c": 65, "fan_profile": "quiet"}}
    if quiet:
        always = {"name": "always", "from": "00:00", "to": "00:00", "quiet": True}
        policy |= {"schedule": {"time_zone": "UTC", "windows": [always]}}

    def talk(sock: socket.socket, said: list[dict[str, Any]]) -> None:
        while not any("report" in message for message in said):
            said.append(json.loads(sock.recv(65_536)))
        sock.close()

    section = {**SECTION, "policy": policy, "root": str(plant), "state": str(tmp_path / "power-state.json")}
    code, said = run_steward(monkeypatch, stats, section, talk)
    report = next(message["report"] for message in said if "report" in message)
    assert code == 0 and (report["fan_profile"], report["fan_profile_active"]) == told
    stats.close()


def test_the_steward_sends_limits_and_reports_then_puts_the_clocks_back(
    plant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = StatsWriter()
    stats.write_counters(5 * MS, 10 * S, 1)
    caps = [p for p in plant.rglob("max_freq") if "devfreq" in str(p)]
    before = [p.read_text() for p in caps]
    during: list[str] = []

    def talk(sock: socket.socket, said: list[dict[str, Any]]) -> None:
        while sum("report" in message for message in said) < 3:
            said.append(json.loads(sock.recv(65_536)))
        during.extend(p.read_text() for p in caps)
        asked = {"budget": [18_000, time.monotonic_ns() + 60 * S, "uid 7 (pid 8)"], "ambient": None}
        for message in ({"asked": asked}, {"policy": {"budget_w": 25, "tick_ms": 20}}):
            sock.send(json.dumps(message).encode())
        while said[-1].get("report", {}).get("budget_w") != 18:
            said.append(json.loads(sock.recv(65_536)))
        sock.send(json.dumps({"asked": {"budget": None}}).encode())
        while said[-1].get("report", {}).get("budget_w") != 25:
            said.append(json.loads(sock.recv(65_536)))
        stats._words[1] += 1  # main stands still in the middle of a write: no reading, no exception
        said.append(json.loads(sock.recv(65_536)))
        sock.close()

    section = {**SECTION, "root": str(plant), "state": str(tmp_path / "power-state.json")}
    code, said = run_steward(monkeypatch, stats, section, talk)
    assert code == 0 and caps
    sent = [Limits.from_json(m["limits"]) for m in said if "limits" in m]
    assert sent and sent[0].expires_ns is not None
    report = next(m["report"] for m in said if "report" in m)
    samples = [PowerSample.from_json(m["sample"]) for m in said if "sample" in m]
    assert all(sample.board_mw and 8_000 < sample.idle_mw < 14_000 for sample in samples) and len(samples) > 2
    assert [s.now_ns for s in samples] == sorted({s.now_ns for s in samples})
    assert report["budget_w"] == 30 and report["board_w"] > 0 and report["gpu_cap_hz"] > 0
    assert [p.read_text() for p in caps] == before and during != before
    stats.close()


def test_main_hears_of_the_end_before_the_clocks_go_up(
    plant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats, heard, seen = StatsWriter(), threading.Event(), []
    (cap,) = (p for p in plant.rglob("max_freq") if "devfreq" in str(p))
    restore = steward.Steward.close

    def close(self: steward.Steward) -> tuple[str, ...]:
        seen.append((heard.wait(10), int(cap.read_text())))
        return restore(self)

    def talk(sock: socket.socket, said: list[dict[str, Any]]) -> None:
        while not any("report" in message for message in said):
            said.append(json.loads(sock.recv(65_536)))
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65_536):
            pass
        heard.set()

    monkeypatch.setattr(steward.Steward, "close", close)
    section = {**SECTION, "root": str(plant), "state": str(tmp_path / "power-state.json")}
    code, _ = run_steward(monkeypatch, stats, section, talk)
    assert code == 0 and len(seen) == 1
    told_first, capped_hz = seen[0]
    assert told_first and capped_hz < int(cap.read_text()) == 1_300_500_000
    stats.close()


def test_a_board_that_is_not_there_is_said_and_ends_the_steward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = StatsWriter()
    (tmp_path / "empty").mkdir()
    section = {**SECTION, "root": str(tmp_path / "empty"), "state": str(tmp_path / "power-state.json")}
    code, said = run_steward(
        monkeypatch, stats, section, lambda sock, said: said.append(json.loads(sock.recv(65_536)))
    )
    assert code == 1 and said[0]["error"]
    stats.close()


def run_restore(folder: Path) -> int:
    import argparse

    parser = argparse.ArgumentParser()
    power_command.add_arguments(parser)
    return power_command.run(parser.parse_args(["restore", "--run-dir", str(folder)]))


def test_restore_without_anything_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_restore(tmp_path) == 0 and capsys.readouterr().out == "nothing to restore\n"


def test_restore_beside_a_daemon_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "power-state.json").write_text("kept")
    server = ControlServer(tmp_path / "control")
    assert run_restore(tmp_path) == 1
    assert "a daemon runs in" in capsys.readouterr().err and (tmp_path / "power-state.json").read_text() == "kept"
    server.close()


def test_restore_of_a_damaged_file_fails_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "power-state.json").write_text("{")
    assert run_restore(tmp_path) == 1
    assert capsys.readouterr().err.startswith("orind power: ")


def test_restore_writes_back_what_was_saved(
    tmp_path: Path, plant: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cap,) = (p for p in plant.rglob("max_freq") if "devfreq" in str(p))
    saved = cap.read_text().strip()
    path = f"sys/class/devfreq/{cap.parent.name}/max_freq"
    state = {"version": 1, "root": str(plant), "values": {path: int(saved)}, "mode": None, "mode_values": {}}
    (tmp_path / "power-state.json").write_text(json.dumps(state))
    cap.write_text("1\n")
    assert run_restore(tmp_path) == 0
    assert cap.read_text().strip() == saved and path in capsys.readouterr().out
