"""The waiting frames: rank before arrival, only the newest best-effort frame of a camera, nothing lost."""

from __future__ import annotations

import random

from orind.daemon.queues import ModelQueue, Queues
from orind.daemon.trigger import RANKS, Trigger


def frame(seq: int, priority: str = "normal", camera: str = "cam", model: str = "m", deadline_ns: int = 100) -> Trigger:
    made = Trigger(camera, seq, None, None, "arrival", 0)
    made.rank, made.model, made.deadline_ns = RANKS[priority], model, deadline_ns
    return made


def seqs(frames: list[Trigger]) -> list[int | None]:
    return [f.seq for f in frames]


def test_critical_before_normal_before_best_effort_each_in_order() -> None:
    queue = ModelQueue()
    assert queue.head() is None and not len(queue)
    for n, priority in enumerate(["best_effort", "normal", "critical", "normal", "critical"]):
        assert queue.push(frame(n, priority)) is None
    head = queue.head()
    assert head is not None and head.seq == 2 and len(queue) == 5
    assert seqs(queue.first(3)) == [2, 4, 1] and seqs(queue.first(0)) == [] and len(queue) == 5
    assert seqs(queue.take(4)) == [2, 4, 1, 3] and seqs(queue.take(9)) == [0] and seqs(queue.take(1)) == []


def test_a_newer_best_effort_frame_supersedes_only_its_own_cameras() -> None:
    queue = ModelQueue()
    queue.push(frame(1, "best_effort", "a"))
    queue.push(frame(2, "best_effort", "b"))
    queue.push(frame(3, "normal", "a"))
    old = queue.push(frame(4, "best_effort", "a"))
    assert old is not None and old.seq == 1
    assert queue.push(frame(5, "normal", "a")) is None
    assert seqs(list(queue)) == [3, 5, 2, 4]


def test_discard_takes_out_exactly_those() -> None:
    queue = ModelQueue()
    frames = [frame(n) for n in range(5)]
    for one in frames:
        queue.push(one)
    queue.discard([frames[1], frames[4]])
    assert seqs(list(queue)) == [0, 2, 3]


def test_models_in_turn_by_rank_then_deadline_of_their_heads() -> None:
    queues = Queues()
    assert queues.in_turn() == [] and len(queues) == 0 and queues.first_deadline_ns() == 0
    queues.push(frame(1, "normal", model="slow", deadline_ns=50))
    queues.push(frame(2, "critical", model="safety", deadline_ns=900))
    queues.push(frame(3, "normal", model="fast", deadline_ns=20))
    assert queues.in_turn() == ["safety", "fast", "slow"] and len(queues) == 3
    assert queues.first_deadline_ns() == 20
    queues.retry.append(frame(4, deadline_ns=5))
    assert queues.first_deadline_ns() == 5 and len(queues) == 4


def test_late_frames_are_taken_out_wherever_they_wait() -> None:
    queues = Queues()
    for n in range(4):
        queues.push(frame(n, model=f"m{n % 2}", deadline_ns=n))
    queues.retry += [frame(10, deadline_ns=0), frame(11, deadline_ns=9)]
    late = queues.take_late(lambda f: "too late" if f.deadline_ns < 2 else "")
    assert sorted((f.seq or 0, reason) for f, reason in late) == [(0, "too late"), (1, "too late"), (10, "too late")]
    assert len(queues) == 3 and queues.take_late(lambda f: "") == []


def test_take_all_gives_the_retries_first_and_leaves_nothing() -> None:
    queues = Queues()
    queues.push(frame(1))
    queues.push(frame(2, model="other"))
    queues.retry.append(frame(3))
    assert seqs(queues.take_all()) == [3, 1, 2] and len(queues) == 0


def test_nothing_is_lost_or_doubled_in_a_random_schedule() -> None:
    rng = random.Random(3)
    queues, inside, out = Queues(), set(), []
    for n in range(6000):
        choice = rng.random()
        if choice < 0.5:
            one = frame(n, rng.choice(list(RANKS)), rng.choice("abc"), rng.choice(["m", "k"]), rng.randrange(1000))
            inside.add(n)
            superseded = queues.push(one)
            out += [superseded] if superseded is not None else []
        elif choice < 0.8 and queues.in_turn():
            out += queues.models[queues.in_turn()[0]].take(rng.randint(1, 4))
        elif choice < 0.99:
            limit = rng.randrange(100)
            out += [f for f, _ in queues.take_late(lambda f: "x" if f.deadline_ns < limit else "")]  # noqa: B023 used at once
        else:
            out += queues.take_all()
        assert len(out) + len(queues) == len(inside)
    assert len({f.seq for f in out}) == len(out)


def test_while_power_is_scarce_named_cameras_come_first_within_their_rank() -> None:
    queues = Queues()
    for n, (camera, priority) in enumerate([("c", "normal"), ("x", "critical"), ("b", "normal"), ("a", "normal"),
                                            ("c", "critical"), ("b", "normal")]):
        queues.push(frame(n, priority, camera))
    queue = queues.models["m"]
    assert seqs(list(queue)) == [1, 4, 0, 2, 3, 5]
    queues.places.update({"a": 0, "b": 1})
    assert seqs(list(queue)) == [1, 4, 3, 2, 5, 0], "c and x are not named: behind, in the order of their coming"
    assert seqs(queue.take(3)) == [1, 4, 3] and seqs(queue.first(9)) == [2, 5, 0] and len(queue) == 3
    queues.places.clear()
    assert seqs(queue.take(9)) == [0, 2, 5]


def test_while_power_is_scarce_the_model_of_a_named_camera_is_in_turn_first() -> None:
    queues = Queues()
    queues.push(frame(1, "normal", "cam", "early", deadline_ns=10))
    queues.push(frame(2, "normal", "line", "late", deadline_ns=90))
    assert queues.in_turn() == ["early", "late"]
    queues.places["line"] = 0
    assert queues.in_turn() == ["late", "early"]
    queues.push(frame(3, "critical", "cam", "early", deadline_ns=10))
    assert queues.in_turn() == ["early", "late"], "rank counts more"
