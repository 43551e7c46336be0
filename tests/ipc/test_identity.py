"""Identities: what is new, what is in flight, what is answered, and the window of 4,096."""

from __future__ import annotations

import pytest

from orind.ipc.identity import WINDOW, Identities


def test_new_then_in_flight_then_answered() -> None:
    recent = Identities()
    entry, new = recent.claim("a", "T1", 1, 100)
    assert new and entry.answer is None
    again, new = recent.claim("a", "T1", 2, 100)  # the trigger names it, whatever its seq
    assert again is entry and not new
    assert recent.attach(again, "client 2")
    assert recent.answer(entry, [b"res/a", b"{}"]) == ["client 2"]
    again, new = recent.claim("a", "T1", 1, 100)
    assert not new and again.answer == [b"res/a", b"{}"] and again.waiting == []


@pytest.mark.parametrize("other", [("b", "T1", 1, 100), ("a", "T2", 1, 100), ("a", "T1", 1, 101), ("a", None, 1, 100)])
def test_camera_trigger_and_stamp_all_count(other: tuple[str, str | None, int, int | None]) -> None:
    recent = Identities()
    recent.claim("a", "T1", 1, 100)
    assert recent.claim(*other)[1]


def test_without_a_trigger_the_seq_names_it_and_text_is_not_number() -> None:
    recent = Identities()
    assert recent.claim("a", None, 5, 1)[1] and not recent.claim("a", None, 5, 1)[1]
    assert recent.claim("a", "5", 9, 1)[1]


def test_without_a_stamp_nothing_is_a_repeat() -> None:
    recent = Identities()
    assert recent.claim("a", "T1", 1, None)[1] and recent.claim("a", "T1", 1, None)[1] and len(recent) == 0


def test_the_window() -> None:
    recent = Identities()
    first, _ = recent.claim("a", None, 0, 1)
    for seq in range(1, WINDOW):
        assert recent.claim("a", None, seq, 1)[1]
    assert recent.claim("a", None, 0, 1) == (first, False)
    assert recent.claim("a", None, WINDOW, 1)[1]  # the 4,097th pushes the oldest out
    assert len(recent) == WINDOW and not recent.claim("a", None, 1, 1)[1]
    assert recent.claim("a", None, 0, 1)[1]
    assert recent.claim("b", None, 1, 1)[1]  # a window of its own
    recent.forget("a")
    assert len(recent) == 1 and recent.claim("a", None, WINDOW, 1)[1]


def test_waiting_is_bounded() -> None:
    recent = Identities(waiting_max=2)
    entry, _ = recent.claim("a", None, 1, 1)
    assert [recent.attach(entry, n) for n in range(3)] == [True, True, False]
    with pytest.raises(ValueError, match="window"):
        Identities(window=0)
