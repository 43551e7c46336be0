"""The control socket in the poller: requests, late replies, clients that leave, numbers that are used again."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins import turn

from orind.daemon.control_desk import IDLE_NS, WAITING_MAX, ControlDesk, Reply
from orind.daemon.poller import Poller
from orind.ipc.control import CLIENTS_MAX, Request
from orind.ipc.errors import ControlError


class Desk:
    """A desk whose requests are kept for the test to answer."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "control"
        self.poller = Poller()
        self.asked: list[tuple[Request, Reply]] = []
        self.desk = ControlDesk(self.path, self.poller, lambda request, reply, _: self.asked.append((request, reply)))
        self.clients: list[socket.socket] = []

    def client(self, *requests: dict[str, Any]) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(5)
        sock.connect(str(self.path))
        for request in requests:
            sock.send(json.dumps(request).encode())
        self.clients.append(sock)
        return sock

    def settle(self) -> None:
        while turn(self.poller, 5):
            pass

    def close(self) -> None:
        for sock in self.clients:
            sock.close()
        self.desk.close()


@pytest.fixture
def desk(no_fd_leak: None, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


def said(sock: socket.socket) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(sock.recv(65_536))
    return fields


def test_a_request_reaches_the_handler_and_the_reply_its_client(desk: Desk) -> None:
    one, two = desk.client({"op": "status"}), desk.client({"op": "reload", "wait": True})
    desk.settle()
    (first, reply_first), (second, reply_second) = desk.asked
    assert (first.op, first.wait, second.op, second.wait) == ("status", False, "reload", True)
    reply_second({"n": 2})  # turns later and in another order
    reply_first({"n": 1})
    assert said(one) == {"n": 1} and said(two) == {"n": 2}


def test_what_is_no_request_is_answered_with_the_reason(desk: Desk) -> None:
    sock = desk.client({"op": "explode"})
    desk.settle()
    assert "unknown request" in said(sock)["error"] and not desk.asked


def test_one_client_may_ask_again(desk: Desk) -> None:
    sock = desk.client({"op": "status"})
    desk.settle()
    desk.asked[0][1]({"n": 1})
    sock.send(b'{"op": "status"}')
    desk.settle()
    desk.asked[1][1]({"n": 2})
    assert (said(sock), said(sock)) == ({"n": 1}, {"n": 2})


def test_a_client_that_left_is_forgotten(desk: Desk) -> None:
    sock = desk.client({"op": "reload", "wait": True})
    desk.settle()
    sock.close()
    desk.settle()
    desk.asked[0][1]({"n": 1})  # nobody there
    assert turn(desk.poller, 0) == 0


def test_a_late_reply_never_reaches_the_next_client_with_the_same_number(desk: Desk) -> None:
    first = desk.client({"op": "reload", "wait": True})
    desk.settle()
    first.close()
    desk.settle()
    second = desk.client({"op": "status"})
    desk.settle()
    (old, reply_old), (new, reply_new) = desk.asked
    assert old.client == new.client, "the kernel gives the lowest free number again"
    reply_old({"to": "first"})
    reply_new({"to": "second"})
    assert said(second) == {"to": "second"}
    second.send(b'{"op": "status"}')
    desk.settle()
    assert len(desk.asked) == 3  # still watched


def test_a_late_reply_never_ends_the_watch_of_whoever_has_the_number_now(desk: Desk) -> None:
    spare = os.open("/dev/null", os.O_RDONLY)  # so that the pipe's writing end below does not get the number
    first = desk.client({"op": "reload", "wait": True})
    desk.settle()
    number = desk.asked[0][0].client
    first.close()
    desk.settle()
    os.close(spare)
    read, write = os.pipe()
    os.write(write, b"x")
    if read != number:  # an engine's channel gets the number, say
        os.dup2(read, number)
        os.close(read)
    seen: list[int] = []
    desk.poller.watch(number, seen.append)
    desk.asked[0][1]({"to": "first"})
    turn(desk.poller, 9)
    assert seen == [9]
    desk.poller.forget(number)
    for fd in (write, number):
        os.close(fd)


def test_silent_clients_make_room_after_a_while_and_those_who_wait_keep_their_place(desk: Desk) -> None:
    waiting = desk.client({"op": "reload", "wait": True})
    desk.settle()
    silent = []
    while len(silent) < CLIENTS_MAX - 1:
        silent.append(desk.client())
        desk.settle()
    desk.desk.tick(5 + IDLE_NS)
    assert len(desk.desk._visit_of) == CLIENTS_MAX
    desk.desk.tick(5 + IDLE_NS + 1)
    assert [sock.recv(100) for sock in silent] == [b""] * len(silent)
    asking = desk.client({"op": "status"})
    desk.settle()
    desk.asked[1][1]({"n": 1})
    assert said(asking) == {"n": 1}
    desk.asked[0][1]({"n": 2})
    assert said(waiting) == {"n": 2}
    desk.desk.tick(100 * IDLE_NS)
    assert waiting.recv(100) == b"", "it has been answered, and asks nothing more"


def test_a_client_waits_for_one_reply_at_most_and_only_some_may_wait(desk: Desk) -> None:
    first = desk.client({"op": "reload", "wait": True}, {"op": "reload", "wait": True}, {"op": "status"})
    desk.settle()
    assert "this client waits" in said(first)["error"] and [r.op for r, _ in desk.asked] == ["reload", "status"]
    for _ in range(WAITING_MAX - 1):
        desk.client({"op": "reload", "wait": True})
        desk.settle()
    late = desk.client({"op": "reload", "wait": True})
    desk.settle()
    assert f"{WAITING_MAX} clients wait" in said(late)["error"] and len(desk.asked) == WAITING_MAX + 1
    first.close()
    desk.settle()
    late.send(b'{"op": "reload", "wait": true}')
    desk.settle()
    assert len(desk.asked) == WAITING_MAX + 2, "one that left does not count"


def test_too_many_clients_are_told_so(desk: Desk) -> None:
    for _ in range(CLIENTS_MAX):
        desk.client()
        desk.settle()
    last = desk.client()
    desk.settle()
    assert "busy" in said(last)["error"]


def test_a_place_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="cannot be made"):
        ControlDesk(tmp_path / "no" / "folder", Poller(), lambda request, reply, now_ns: None)
