"""Misbehaving camera programs against the real daemon: every trigger is answered once, and nobody else is harmed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import built_plans
import harness
import hostile
import pytest
from hostile import Frame, Told

from orind.ipc.answer import Result
from orind.ipc.client import Subscriber
from orind.ipc.source import OVERSIZE_LEAST, OVERSIZE_ROOM

PIXELS = built_plans.identity_tensor(4)
FRAME = Frame({"encoding": "tensor", "dtype": "uint8", "shape": list(PIXELS.shape)}, PIXELS.tobytes())
SLOTS = 16
SETTLE_S = 20.0


@pytest.fixture(scope="module")
def service() -> Iterator[harness.Service]:
    """One daemon for all: what one test does to it must not show in the next."""
    path = Path(tempfile.mkdtemp(prefix="orind-"))
    config = {
        "models": {"m": {"plan": str(built_plans.identity_plan(4))}},
        "cameras": {
            "line1": {"model": "m", "deadline_ms": 20_000},
            "limited": {"model": "m", "deadline_ms": 20_000, "rate_limit_hz": 5, "rate_burst": 4},
        },
        "slots": {"count": SLOTS, "bytes": 1 << 16},
        "results": {"endpoint": "ipc://{run_dir}/results", "send_queue": 100},
        "degradation": {"enter_after_ms": 600_000},
    }
    with harness.Service(path, config) as made:
        yield made
    shutil.rmtree(path)


@pytest.fixture
def books(service: harness.Service) -> Iterator[Callable[[], dict[str, Any]]]:
    """Call it for the status once nothing is in flight; after the test all slots are free and a good frame is ok."""

    def settled() -> dict[str, Any]:
        status = service.wait_for(lambda s: s["frames"]["in_flight"] == 0, "end of what is in flight", SETTLE_S)
        assert harness.account_gap(status) == 0
        return status

    before = settled()["frames"]["received"]
    yield settled
    status = settled()
    assert status["slots"]["free"] == SLOTS and status["state"] == "serving" and status["failovers"] == 0
    with service.client() as camera:
        camera.send(PIXELS, "tensor")
        assert [r.outcome for r in camera.wait_all(20)] == ["ok"], "the daemon goes on"
    assert settled()["frames"]["received"] > before


def test_a_flood_is_answered_once_each(service: harness.Service, books: Callable[[], dict[str, Any]]) -> None:
    told = hostile.flood(service.endpoint, "line1", FRAME, 10_000, 600)
    assert told.wrong == []
    outcomes = Counter(r.outcome for r in told.replies)
    assert outcomes["dropped"] > 0 and outcomes["ok"] > 0 and set(outcomes) <= {"ok", "dropped"}
    assert {r.reason for r in told.replies if r.outcome == "dropped"} == {
        "every frame slot is in use: the engine cannot keep up"
    }


def test_several_floods_at_once(service: harness.Service, books: Callable[[], dict[str, Any]]) -> None:
    before = books()["frames"]["received"]
    told: list[Told] = []

    def flood(n: int) -> None:
        told.append(hostile.flood(service.endpoint, "line1", FRAME, 20_000 + 1000 * n, 200))

    threads = [threading.Thread(target=flood, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [t.wrong for t in told] == [[]] * 3 and books()["frames"]["received"] == before + 600


def test_answers_to_a_sender_that_left_are_counted(
    service: harness.Service, books: Callable[[], dict[str, Any]]
) -> None:
    """Where the sender is slow to leave, its answers may all still reach it: then another floods and leaves."""
    before = books()
    received = before["frames"]["received"]
    for first in range(30_000, 31_000, 100):
        told = hostile.flood_and_leave(service.endpoint, "line1", FRAME, first, 100)
        received += len(told.maybe)
        service.wait_for(lambda s, total=received: s["frames"]["received"] == total, "all that was sent", SETTLE_S)
        after = books()
        assert after["frames"]["received"] == received
        if after["unroutable"] > before["unroutable"]:
            return
    pytest.fail("ten senders left, and every answer had a receiver")


def test_repeats_get_the_outcome_of_their_trigger(
    service: harness.Service, books: Callable[[], dict[str, Any]]
) -> None:
    before = books()["frames"]
    told = hostile.repeat(service.endpoint, "line1", FRAME, 40_000, 30)
    after = books()["frames"]
    assert told.wrong == [] and len(told.replies) == 31
    assert (after["received"], after["repeated"]) == (before["received"] + 1, before["repeated"] + 30)


@pytest.mark.parametrize("how", ["reorder", "jump_seq", "jump_time"])
def test_numbers_and_stamps_that_jump(
    service: harness.Service, books: Callable[[], dict[str, Any]], how: str
) -> None:
    before = books()
    if how == "reorder":
        told = hostile.reorder(service.endpoint, "line1", FRAME, 50_000, SLOTS - 4, random.Random(1))
    else:
        told = getattr(hostile, how)(service.endpoint, "line1", FRAME, 51_000 if how == "jump_seq" else 52_000)
    assert told.wrong == [] and {r.outcome for r in told.replies} == {"ok"}
    if how == "jump_time":
        replaced = {r.ts_ns for r in told.replies if r.clock == "arrival"}
        assert len(replaced) == 4, "an hour ahead, an hour back, the beginning and the end of time"
        assert books()["clock_replaced"] == before["clock_replaced"] + 4


def test_garbage_is_refused_to_its_sender(service: harness.Service, books: Callable[[], dict[str, Any]]) -> None:
    before = books()["frames"]["rejected"]
    told = hostile.garbage(service.endpoint, "line1", FRAME, random.Random(2))
    assert told.wrong == [] and len(told.replies) == told.nameless
    assert books()["frames"]["rejected"] == before + told.nameless


def test_a_sender_that_comes_back_under_its_name_is_answered(
    service: harness.Service, books: Callable[[], dict[str, Any]]
) -> None:
    for n in range(4):
        told = hostile.reconnect(service.endpoint, "line1", FRAME, 60_000 + 1000 * n, 200)
        assert told.wrong == []


def test_a_sender_that_dies_within_a_message_has_sent_nothing(
    service: harness.Service, books: Callable[[], dict[str, Any]]
) -> None:
    path = str(service.run_dir / "triggers")
    before = books()
    descriptors = count_fds(service)
    for seq in range(10):
        hostile.die_within(path, "line1", FRAME, 70_000 + seq)
    told = hostile.flood(service.endpoint, "line1", FRAME, 71_000, 5)
    assert told.wrong == []
    after = books()
    assert after["frames"]["received"] == before["frames"]["received"] + 5
    assert after["frames"]["rejected"] == before["frames"]["rejected"]
    end = time.monotonic() + SETTLE_S
    while count_fds(service) > descriptors and time.monotonic() < end:
        time.sleep(0.05)
    assert count_fds(service) <= descriptors, "its connections are closed"


def count_fds(service: harness.Service) -> int:
    return len(list(Path(f"/proc/{service.pid}/fd").iterdir()))


def test_a_sender_that_stalls_within_a_message_holds_up_nobody(
    service: harness.Service, books: Callable[[], dict[str, Any]]
) -> None:
    path = str(service.run_dir / "triggers")
    before = books()["frames"]["received"]
    with hostile.stall_within(path, "line1", FRAME, 1), hostile.stall_within(path, "line1", FRAME, 2):
        told = hostile.flood(service.endpoint, "line1", FRAME, 80_000, 10)
        assert told.wrong == []
    assert books()["frames"]["received"] == before + 10


def test_subscribers_that_never_read_cost_no_answer_and_no_memory(
    service: harness.Service, books: Callable[[], dict[str, Any]]
) -> None:
    """Each is held `send_queue` results; what is beyond is dropped for it alone."""
    results = service.results_endpoint
    with (
        hostile.deaf_subscriber(results),
        hostile.deaf_subscriber(results),
        Subscriber(results, ["line1"], hwm=10_000) as reader,
    ):
        seq = 90_000
        while reader.receive(0.1) is None:
            assert hostile.flood(service.endpoint, "line1", FRAME, seq, 1).wrong == []
            seq += 1
        begin = resident_kib(service)
        for n in range(15):
            assert hostile.flood(service.endpoint, "line1", FRAME, 91_000 + 100 * n, 100).wrong == []
        seen = Counter(r.seq for r in iter(lambda: reader.receive(1.0), None) if (r.seq or 0) >= 91_000)
        assert len(seen) == 1500 and set(seen.values()) == {1}, "who reads gets every result once"
    kept = 1500 * 2048  # what main keeps of each for a repeat, generously
    assert resident_kib(service) - begin < (kept >> 10) + 4096


def resident_kib(service: harness.Service) -> int:
    text = Path(f"/proc/{service.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


def test_slots_that_are_exhausted_are_said_and_come_back(
    service: harness.Service, books: Callable[[], dict[str, Any]]
) -> None:
    active = service.active_pid()
    os.kill(active, signal.SIGSTOP)
    try:
        with hostile.Dealer(service.endpoint) as dealer:
            for seq in range(3 * SLOTS):
                dealer.send(*hostile.message("line1", FRAME, 95_000 + seq, time.monotonic_ns()))
            early = dealer.receive(2 * SLOTS)
            assert {r.outcome for r in early} == {"dropped"}
            status = service.status()
            assert status["slots"]["free"] == 0 and status["frames"]["in_flight"] == SLOTS
            os.kill(active, signal.SIGCONT)
            late = dealer.receive(SLOTS)
    finally:
        os.kill(active, signal.SIGCONT)
    assert Counter(r.outcome for r in late) == {"ok": SLOTS}
    assert {r.seq for r in early + late} == set(range(95_000, 95_000 + 3 * SLOTS))


def test_a_flood_of_one_camera_costs_another_none_of_its_tokens(
    service: harness.Service, books: Callable[[], dict[str, Any]]
) -> None:
    begin = time.monotonic()
    first = hostile.flood(service.endpoint, "limited", FRAME, 96_000, 100)
    other = hostile.flood(service.endpoint, "line1", FRAME, 96_000, 8)
    again = hostile.flood(service.endpoint, "limited", FRAME, 97_000, 100)
    elapsed = time.monotonic() - begin
    assert first.wrong == other.wrong == again.wrong == []
    assert "rejected" not in {r.outcome for r in other.replies}
    passed = [r for r in first.replies + again.replies if r.outcome != "rejected"]
    assert 4 <= len(passed) <= 4 + 5 * elapsed
    refused = {r.reason for r in first.replies if r.outcome == "rejected"}
    assert refused == {"camera triggers above its rate_limit_hz"}


def test_a_monstrous_message_costs_only_its_sender(
    service: harness.Service, books: Callable[[], dict[str, Any]]
) -> None:
    before = books()["frames"]["received"]
    monster = Frame(FRAME.fields, bytes(OVERSIZE_LEAST + OVERSIZE_ROOM + 1))
    with hostile.Dealer(service.endpoint) as dealer:
        dealer.send(*hostile.message("line1", monster, 1, time.monotonic_ns()))
        assert dealer.receive(1, 0.5) == [], "its connection is closed"
    large = Frame(FRAME.fields, bytes(OVERSIZE_LEAST))
    with hostile.Dealer(service.endpoint) as dealer:
        dealer.send(*hostile.message("line1", large, 2, time.monotonic_ns()))
        assert [r.outcome for r in dealer.receive(1)] == ["rejected"], "above the slot, below the limit"
    assert books()["frames"]["received"] == before + 1


def test_held_results_while_the_engine_stands_still_and_none_when_it_is_back() -> None:
    """From overload to the last level and back, as a client, the status, health and metrics see it."""
    path = Path(tempfile.mkdtemp(prefix="orind-"))
    config = {
        "models": {"m": {"plan": str(built_plans.identity_plan(4))}},
        "cameras": {
            "counter": {"model": "m", "deadline_ms": 300, "degraded": "held", "held_age_max_ms": 60_000},
            "sorter": {"model": "m", "deadline_ms": 300},
        },
        "degradation": {"enter_after_ms": 100, "leave_after_s": 1},
        "http": {"port": 0},
    }
    with harness.Service(path, config) as service, service.client("counter") as counter:
        counter.send(PIXELS, "tensor", trigger="first", deadline_ms=300)
        [first] = counter.wait_all(20)
        assert first.outcome == "ok" and first.held is None
        active = service.active_pid()
        os.kill(active, signal.SIGSTOP)
        try:
            answers: list[Result] = []
            with hostile.Dealer(service.endpoint) as dealer:
                for n in range(160):  # in 4 s, below the batch watchdog
                    for camera in ("counter", "sorter"):
                        dealer.send(*hostile.message(camera, FRAME, n, time.monotonic_ns()))
                    answers += dealer.receive(100, 0.025)
                    if any(r.outcome == "degraded" for r in answers):
                        break
            status, shown, tries = service.status(), False, 0
            while not shown and tries < 20:
                tries += 1
                time.sleep(0.05)
                with urllib.request.urlopen(f"{status['http']}/metrics", timeout=10) as page:
                    shown = b"\norind_degradation_level 3.0\n" in page.read()
        finally:
            os.kill(active, signal.SIGCONT)
        held = [r for r in answers if r.outcome == "degraded"]
        assert held and {r.camera for r in held} == {"counter"} and not any(r.ok for r in held)
        assert held[0].held is not None and held[0].held["trigger"] == "first" and held[0].held["age_ms"] > 0
        assert held[0].tensor is not None and first.tensor is not None
        assert held[0].tensor.tolist() == first.tensor.tolist()
        assert status["degradation"]["level"] == 3 and status["health"]["ok"]
        assert any("overload, level 3" in r or "nothing more to leave out" in r for r in status["health"]["reasons"])
        assert shown, "the page of the metrics is written four times a second"
        calm = service.wait_for(lambda s: s["degradation"]["level"] == 0, "end of the degradation", SETTLE_S)
        counter.send(PIXELS, "tensor")
        assert [r.outcome for r in counter.wait_all(20)] == ["ok"]
        assert harness.account_gap(calm) == 0 and "overload" not in " ".join(calm["health"]["reasons"])
        text = service.log(200)
        assert "degradation: level 3, held results" in text and "level 1 is skipped: no camera is optional" in text
        assert "degradation: level 0, nothing is left out" in text
    shutil.rmtree(path)
