"""What is asked for on the control socket: it reaches the steward, ends by itself, is refused where it may not be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stand_ins import S
from steward_link import SECTION, Link, told

from orind.daemon.power_link import RESPAWN_NS
from orind.daemon.power_requests import ASKS_MAX, ASKS_WITHIN_NS
from orind.ipc.control import Request


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
