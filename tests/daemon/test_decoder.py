"""A decode worker in this process: JPEG in one slot, planes in the other, refusals in words."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from orind.daemon import decoder
from orind.ipc import decode_messages as messages
from orind.ipc.channel import Channel
from orind.ipc.engine_messages import STATUS_ERROR, STATUS_OK
from orind.ipc.slots import SlotReader, SlotRing
from orind.kernels.pre import jpeg

PHOTOGRAPH = Path(__file__).parents[2] / "configs" / "frames" / "camera.jpg"
SLOT_BYTES = 2 << 20


class Desk:
    """Main's end of a worker."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(30)
        self.sock, self.theirs = ours, theirs
        self.ring = SlotRing(3, SLOT_BYTES)
        self.slots: SlotReader | None = None
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        self.slots = SlotReader(self.ring.writable_fd(), 3, SLOT_BYTES, writable=True)
        channel = Channel(self.theirs, blocking=True)
        self.thread = threading.Thread(target=decoder.serve, args=(channel, self.slots))
        self.thread.start()
        assert self.said() == messages.HELLO

    def said(self) -> messages.Decoded:
        return messages.unpack_decoded(self.sock.recv(65_536))

    def job(self, data: bytes, number: int = 1) -> messages.Decoded:
        source, target, other = self.ring.take(), self.ring.take(), self.ring.take()
        assert source is not None and target is not None and other is not None
        self.ring.view(source)[: len(data)] = data
        self.ring.view(other)[:] = before = bytes(SLOT_BYTES)
        order = messages.Decode(number, source.index, len(data), target.index)
        self.sock.send(messages.pack_decode(order))
        answer = self.said()
        self.planes = bytes(self.ring.view(target)[: answer.length])
        assert self.ring.view(other) == before, "it writes only into the slot that its job names"
        for slot in (source, target, other):
            self.ring.give(slot)
        return answer

    def close(self) -> None:
        self.sock.close()
        if self.thread is not None:
            self.thread.join(30)
        if self.slots is not None:
            self.slots.close()
        self.theirs.close()
        self.ring.close()


@pytest.fixture
def desk(no_fd_leak: None) -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


def test_planes_are_those_of_the_library(desk: Desk) -> None:
    desk.start()
    data = PHOTOGRAPH.read_bytes()
    answer = desk.job(data, 9)
    head = jpeg.header(data)
    assert (answer.job, answer.status, answer.text) == (9, STATUS_OK, "")
    assert (answer.width, answer.height, answer.encoding) == (head.width, head.height, head.encoding)
    expected = np.zeros(SLOT_BYTES, np.uint8)
    picture = jpeg.decode_planes(data, expected)
    assert answer.length == picture.check() and desk.planes == expected[: answer.length].tobytes()


@pytest.mark.parametrize("cut", [0, 3, 200, 5000])
def test_a_truncated_jpeg_is_refused_in_words_and_the_worker_goes_on(desk: Desk, cut: int) -> None:
    desk.start()
    data = PHOTOGRAPH.read_bytes()
    answer = desk.job(data[:cut])
    assert answer.status == STATUS_ERROR and answer.text and answer.length == 0
    assert desk.job(data, 2).status == STATUS_OK


def test_hostile_bytes_are_refused(desk: Desk) -> None:
    desk.start()
    rng = np.random.default_rng(1)
    data = PHOTOGRAPH.read_bytes()
    for n in range(20):
        hostile = bytearray(data[: 1 + int(rng.integers(len(data)))])
        for at in rng.integers(0, len(hostile), 20):
            hostile[at] = int(rng.integers(256))
        answer = desk.job(bytes(hostile), n)
        assert answer.status in (STATUS_OK, STATUS_ERROR) and bool(answer.text) == (answer.status == STATUS_ERROR)


def test_a_picture_larger_than_the_slot_is_refused(no_fd_leak: None) -> None:
    desk = Desk()
    desk.ring.close()
    data = PHOTOGRAPH.read_bytes()
    desk.ring = SlotRing(3, len(data))
    desk.slots = SlotReader(desk.ring.writable_fd(), 3, len(data), writable=True)
    slot, target = desk.ring.take(), desk.ring.take()
    assert slot is not None and target is not None
    desk.ring.view(slot)[:] = data
    said = decoder._decode(messages.Decode(1, slot.index, len(data), target.index), desk.slots)
    assert said.status == STATUS_ERROR and said.text == (
        f"the JPEG is 512x512 gray and needs {512 * 512} bytes, there are {len(data)}: send smaller frames or raise "
        "slots.bytes"
    )
    longer = said._replace(text=said.text.replace("512x512", "16384x16384").replace("262144", "8" * 9))
    assert messages.unpack_decoded(messages.pack_decoded(longer)) == longer, "it reaches main whole"
    desk.close()


def test_the_process_serves_until_main_is_gone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "begin_child", lambda: None)
    start = json.dumps({"slots": [3, SLOT_BYTES]})
    channel = Channel(desk.theirs, blocking=True)
    monkeypatch.setattr(decoder.Channel, "from_fd", lambda fd, blocking: channel)  # the process's end would close it
    monkeypatch.setattr(sys, "argv", ["decoder", str(channel.fileno()), str(desk.ring.writable_fd()), start])
    desk.sock.shutdown(socket.SHUT_WR)
    assert decoder.main() == 0
    assert desk.said() == messages.HELLO
