"""The bound of descriptors: refused at start, doors shut before the last are gone, opened again with a margin."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest
from stand_ins import MS, S, config

from orind.daemon import descriptors
from orind.daemon.descriptors import Descriptors, LimitTooLow, count_open, needed, raise_limit, reserve

LIMIT = 1024


class Doors:
    def __init__(self) -> None:
        self.is_shut = self.stuck = False
        self.calls = 0

    def shut(self) -> None:
        self.calls += 1
        if self.stuck:
            raise OSError(errno.EACCES, "Permission denied")
        self.is_shut = True

    def reopen(self) -> None:
        self.is_shut = False


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of descriptors that are said to be open; the test sets it."""
    held = [50]
    monkeypatch.setattr(descriptors, "count_open", lambda: held[0])
    return held


def test_what_is_open_is_counted_with_either_kind_of_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = count_open()
    more = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
    assert count_open() - before == 5
    for fd in more:
        os.close(fd)

    class Older(type(tmp_path)):  # type: ignore[misc]
        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            return os.stat_result((0,) * 10)

    monkeypatch.setattr(descriptors, "OPEN", Older("/proc/self/fd"))
    assert abs(count_open() - before) <= 1


def test_a_limit_below_what_is_needed_is_refused_with_the_number() -> None:
    made = config()
    least = needed(made)
    Descriptors(made, Doors(), least)
    with pytest.raises(LimitTooLow, match=f"is {least - 1}, this configuration needs at least {least}") as refused:
        Descriptors(made, Doors(), least - 1)
    assert refused.value.errno == errno.EMFILE
    sources = [{"name": f"s{n}", "endpoint": f"ipc:///x/{n}"} for n in range(20)]
    with pytest.raises(OSError, match="needs at least"):
        Descriptors(made, Doors(), LIMIT).check(config(sources=sources))


def test_plans_of_all_generations_that_can_exist_at_once_have_room() -> None:
    """Two that drain, the one that serves, the next one; what is kept for a rollback, and what will be next."""
    one, more = config(), config(models={f"m{n}": {"plan": "p"} for n in range(8)} | {"m": {"plan": "p"}})
    assert (needed(more) - needed(one)) * 7 // 8 in range(8 * 6 - 1, 8 * 6 + 2)


def test_a_reload_is_refused_where_what_is_open_leaves_no_room_for_it(used: list[int]) -> None:
    made = config()
    held = Descriptors(made, Doors(), LIMIT)
    more = descriptors.GENERATION + 8  # two sockets
    used[0] = LIMIT - more
    held.afford(made)
    used[0] += 1
    words = f"{used[0]} of {LIMIT} descriptors are in use, .* need about {more}: "
    with pytest.raises(OSError, match=words) as refused:
        held.afford(made)
    assert refused.value.errno == errno.EMFILE
    with pytest.raises(OSError, match="this configuration needs at least"):
        held.afford(config(sources=[{"name": f"s{n}", "endpoint": f"ipc:///x/{n}"} for n in range(20)]))


def test_the_least_limit_leaves_room_for_cameras() -> None:
    for count in (1, 2, 9):
        made = config(sources=[{"name": f"s{n}", "endpoint": f"ipc:///x/{n}"} for n in range(count)])
        least = needed(made)
        assert least - reserve(made, least) >= descriptors.OWN + 4 * descriptors.GENERATION + 16


def test_doors_are_shut_near_the_limit_and_opened_with_a_margin(
    used: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    doors = Doors()
    bound = Descriptors(config(), doors, LIMIT)
    most = LIMIT - reserve(config(), LIMIT)
    used[0] = most
    bound.tick(1 * S)
    assert not doors.is_shut and bound.problem == ""
    used[0] = most + 1
    bound.tick(1 * S + 4 * MS)
    assert not doors.is_shut, "counted every 5 ms at most"
    bound.tick(1 * S + 5 * MS)
    assert doors.is_shut and bound.problem == (
        f"no further connections are taken: {most + 1} of {LIMIT} descriptors are in use"
    )
    used[0] = most - LIMIT // 16
    bound.tick(2 * S)
    assert doors.is_shut and bound.problem
    used[0] -= 1
    bound.tick(3 * S)
    assert not doors.is_shut and bound.problem == ""
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_door_that_sticks_is_said_and_tried_again(used: list[int]) -> None:
    doors = Doors()
    doors.stuck = True
    bound = Descriptors(config(), doors, LIMIT)
    used[0] = LIMIT
    for second in (1, 2):
        bound.tick(second * S)
    assert doors.calls == 2 and "the endpoints stay as they are: [Errno 13]" in bound.problem


def test_it_counts_rarely_while_much_is_free(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(descriptors, "count_open", lambda: counted.append(1) or used[0])
    bound = Descriptors(config(), Doors(), 65_536)
    for ms in range(0, 3000, 5):
        bound.tick(S + ms * MS)
    assert len(counted) == 3


def test_the_soft_limit_becomes_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        assert raise_limit() == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == raise_limit()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
