"""The memory's clock in the report: from the board's files, from the helper, or not known; never old and never waited
for."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orind.daemon.memory_clock import AGAIN_NS, EVERY_NS, STALE_NS, UNKNOWN, MemoryClock
from orind.power.errors import SysfsError
from orind.power.plant.modules import JETPACKS, ORIN_NX_SUPER
from orind.power.plant.tree import EMC, EMC_ACTIVITY, Layout, build_tree
from orind.power.sysfs import Sysfs

GOOD = b'{"ok": true, "emc_hz": 2133000000, "emc_percent": 31}'
SEEN = {"emc_hz": 2_133_000_000, "emc_percent": 31}


@pytest.fixture
def no_debugfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As user orind finds it."""

    def refuse(_: Sysfs) -> tuple[int, int | None]:
        raise SysfsError(EMC, "cannot be read: EACCES (Permission denied)")

    monkeypatch.setattr(Sysfs, "read_emc", refuse)


class Helper:
    """Plays the power helper: what it answers, and when, is the test's."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(20)
        self._listener.bind(str(path))
        self._listener.listen()
        self.client: socket.socket | None = None

    def accept(self) -> socket.socket:
        if self.client is not None:
            self.client.close()
        self.client, _ = self._listener.accept()
        self.client.settimeout(20)
        return self.client

    def close(self) -> None:
        self._listener.close()
        if self.client is not None:
            self.client.close()


@pytest.fixture
def helper(tmp_path: Path, no_fd_leak: None) -> Iterator[Helper]:
    made = Helper(tmp_path / "sock")
    yield made
    made.close()


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[MemoryClock]:
    made = MemoryClock(Path("/"), tmp_path / "sock")
    yield made
    made.close()


def test_a_simulated_board_is_read_itself(tmp_path: Path) -> None:
    root = tmp_path / "board"
    build_tree(root, Layout(ORIN_NX_SUPER, JETPACKS["6"], 0))
    clock = MemoryClock(root, tmp_path / "sock")
    assert clock.look(EVERY_NS) == {"emc_hz": 3_199_000_000, "emc_percent": 0}
    (root / EMC / "rate").write_text("2133000000\n")
    (root / EMC_ACTIVITY).write_text(f"{31 * 2_133_000}\n")
    assert clock.look(2 * EVERY_NS - 1)["emc_hz"] == 3_199_000_000, "once a second"
    assert clock.look(2 * EVERY_NS) == SEEN
    (root / EMC_ACTIVITY).unlink()
    assert clock.look(3 * EVERY_NS) == {"emc_hz": 2_133_000_000, "emc_percent": None}
    (root / EMC / "rate").unlink()
    assert clock.look(3 * EVERY_NS + STALE_NS) == UNKNOWN, "and nobody is asked: the helper's board is another one"


def test_the_helper_is_asked_and_not_waited_for(no_debugfs: None, helper: Helper, clock: MemoryClock) -> None:
    assert clock.look(EVERY_NS) == UNKNOWN
    peer = helper.accept()
    assert peer.recv(4096) == b'{"op":"emc"}'
    assert clock.look(EVERY_NS + 1) == UNKNOWN, "no answer yet"
    peer.send(GOOD)
    assert clock.look(EVERY_NS + 2) == SEEN
    assert clock.look(2 * EVERY_NS) == SEEN and peer.recv(4096) == b'{"op":"emc"}'
    assert clock.look(EVERY_NS + 2 + STALE_NS) == UNKNOWN, "it has been busy for too long"


@pytest.mark.parametrize("answer", [b"nonsense", b"[]", b'{"ok": false, "errors": ["x"]}', b'{"ok": true}',
                                    b'{"ok": true, "emc_hz": "fast"}'])
def test_nonsense_is_not_known(no_debugfs: None, helper: Helper, clock: MemoryClock, answer: bytes) -> None:
    clock.look(EVERY_NS)
    helper.accept().send(answer)
    assert clock.look(EVERY_NS + 1) == UNKNOWN


@pytest.mark.parametrize("lose", [lambda peer: peer.close(), lambda peer: peer.shutdown(socket.SHUT_RDWR)])
def test_a_helper_that_ends_is_asked_anew(no_debugfs: None, helper: Helper, clock: MemoryClock,
                                          lose: Callable[[socket.socket], None]) -> None:
    clock.look(EVERY_NS)
    lose(helper.accept())
    assert clock.look(2 * EVERY_NS) == UNKNOWN
    peer = helper.accept()
    peer.send(GOOD)
    assert clock.look(2 * EVERY_NS + 1) == SEEN


def test_without_a_helper_it_is_tried_now_and_then(no_debugfs: None, tmp_path: Path, clock: MemoryClock) -> None:
    assert clock.look(EVERY_NS) == UNKNOWN
    helper = Helper(tmp_path / "sock")
    assert clock.look(EVERY_NS + AGAIN_NS) == UNKNOWN
    helper.accept().send(GOOD)
    assert clock.look(EVERY_NS + AGAIN_NS + 1) == SEEN
    helper.close()
