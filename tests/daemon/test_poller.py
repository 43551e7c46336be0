"""The poller: plain descriptors before ZeroMQ sockets, and callbacks that forget and watch others in the same turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import zmq

from orind.daemon.poller import Poller


@pytest.fixture
def pipes(no_fd_leak: None) -> Iterator[list[tuple[int, int]]]:
    made = [os.pipe() for _ in range(3)]
    for _, write in made:
        os.write(write, b"x")
    yield made
    for pair in made:
        for fd in pair:
            os.close(fd)


def noting(seen: list[str], name: str) -> Callable[[int], None]:
    return lambda now_ns: seen.append(f"{name}@{now_ns}")


def test_calls_what_is_ready_with_the_time_of_the_turn(pipes: list[tuple[int, int]]) -> None:
    poller, seen = Poller(), list[str]()
    os.read(pipes[2][0], 1)
    for n, (read, _) in enumerate(pipes):
        poller.watch(read, noting(seen, str(n)))
    for call in poller.wait(1_000_000):
        call(7)
    assert sorted(seen) == ["0@7", "1@7"]


def test_an_empty_turn_is_no_call(pipes: list[tuple[int, int]]) -> None:
    poller = Poller()
    assert poller.wait(1) == []
    poller.watch(pipes[0][0], lambda now_ns: None)
    poller.forget(pipes[0][0])
    poller.forget(pipes[0][0])
    assert poller.wait(1) == []


def test_what_was_forgotten_in_the_same_turn_is_not_called(pipes: list[tuple[int, int]]) -> None:
    poller, seen = Poller(), list[str]()
    first, second = pipes[0][0], pipes[1][0]

    def forget_other(me: str, other: int) -> Callable[[int], None]:
        def call(now_ns: int) -> None:
            seen.append(me)
            poller.forget(other)

        return call

    poller.watch(first, forget_other("first", second))
    poller.watch(second, forget_other("second", first))
    for call in poller.wait(0):
        call(0)
    assert len(seen) == 1


def test_a_number_that_was_given_to_somebody_else_in_the_same_turn_waits_for_the_next(
    pipes: list[tuple[int, int]],
) -> None:
    poller, seen = Poller(), list[str]()
    fd = pipes[0][0]
    poller.watch(fd, noting(seen, "old"))
    calls = poller.wait(0)
    poller.forget(fd)
    poller.watch(fd, noting(seen, "new"))
    for call in calls:
        call(0)
    assert seen == []
    for call in poller.wait(0):
        call(1)
    assert seen == ["new@1"]


def test_plain_descriptors_come_before_zeromq_sockets(pipes: list[tuple[int, int]]) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.bind("inproc://frames")
    push.connect("inproc://frames")
    push.send(b"frame")
    poller, seen = Poller(), list[str]()
    poller.watch(pull, noting(seen, "frames"))
    poller.watch(pipes[0][0], noting(seen, "engine"))
    for call in poller.wait(1_000_000):
        call(0)
    assert seen == ["engine@0", "frames@0"]
    pull.close()
    push.close()
    context.term()
