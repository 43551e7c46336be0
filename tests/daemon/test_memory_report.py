"""What an engine tells of its memory: whole sums, bounded text; when it is worn, what health says, how it is drawn."""

from __future__ import annotations

import json
import xml.dom.minidom
from collections.abc import Callable
from typing import Any

import pytest

from orind.daemon import memory_map
from orind.daemon.engine_memory import EngineMemory, worn
from orind.daemon.memory_report import from_text, in_words, to_text
from orind.daemon.sections import Memory
from orind.ipc.message_text import TEXT_BYTES_MAX
from orind.kernels.memory.reservation import HostReservation, Reservation

MB = 1 << 20
LIMITS = Memory()


def reservation(*owners: str, size: int = 64 * MB, nbytes: int = MB) -> HostReservation:
    memory = HostReservation(size, 8 * MB)
    for owner in owners:
        memory.take(nbytes, owner)
    return memory


def pieces(percent: float, used: int = 0) -> str:
    """A report of which so much of 1,000 MiB is in pieces."""
    fields = json.loads(to_text(reservation("m: weights")))
    largest = round((1000 - 10 * percent) * MB)
    return json.dumps({**fields, "free": 1000 * MB, "largest_free": largest, "reserve_used": used})


def test_everything_is_told_where_there_is_room() -> None:
    memory = reservation("parts: weights", "parts: batch 1")
    told = from_text(to_text(memory))
    assert [block[:3] for block in told["blocks"]] == [[0, MB, "parts: weights"], [MB, MB, "parts: batch 1"]]
    assert told["blocks"][0][3] == memory.pool.blocks[0].born_ns // 1_000_000
    assert (told["size"], told["used"], told["free"], told["device_free"]) == (64 * MB, 2 * MB, 54 * MB, None)
    assert in_words(told) == (
        "2.0 MiB of 64.0 MiB used in 2 blocks, 54.0 MiB free, fragmentation 0.0 %; emergency reserve 8.0 MiB"
    )


def test_the_reserve_in_use_is_said() -> None:
    memory = reservation("m: weights", size=9 * MB)
    memory.take(2 * MB, "preprocessing: lines")
    told = from_text(to_text(memory))
    assert (told["reserve_used"], told["emergencies"]) == (2 * MB, 1)
    assert in_words(told).endswith("emergency reserve 8.0 MiB, 2.0 MiB of it in use")


@pytest.mark.parametrize("count", [40, 150, 2000])
def test_many_blocks_are_told_together_and_their_sums_whole(count: int) -> None:
    memory = reservation(*(f"{'é' * 48}{n // 8}: batch {n}" for n in range(count)), size=256 * MB, nbytes=70_000)
    text = to_text(memory)
    told = from_text(text)
    assert len(text) <= TEXT_BYTES_MAX and 0 < len(told["blocks"]) < count
    assert (told["blocks_total"], told["used"]) == (count, memory.pool.used)
    if count == 40:
        assert sum(block[1] for block in told["blocks"]) == told["used"] and len(told["blocks"]) == 5
    assert told["blocks"] == sorted(told["blocks"])


@pytest.mark.parametrize(
    "change",
    [
        lambda f: [], lambda f: {}, lambda f: {**f, "more": 1}, lambda f: {**f, "size": -1},
        lambda f: {**f, "used": 1.5}, lambda f: {**f, "free": True}, lambda f: {**f, "what": 7},
        lambda f: {**f, "device_free": "x"}, lambda f: {**f, "largest_free": f["free"] + 1},
        lambda f: {**f, "reserve": f["size"] + 1}, lambda f: {**f, "blocks": {}}, lambda f: {**f, "blocks": [7]},
        lambda f: {**f, "blocks": [[0, 1, "x"]]}, lambda f: {**f, "blocks": [[0, "1", "x", 0]]},
        lambda f: {**f, "blocks": [[-1, 5, "x", 0]]}, lambda f: {**f, "blocks": [[0, f["size"] + 1, "x", 0]]},
    ],
)
def test_what_is_no_report_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    text = json.dumps(change(json.loads(to_text(reservation("m: weights")))))
    with pytest.raises(ValueError, match="reservation"):
        from_text(text)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        from_text("")


@pytest.mark.parametrize(
    ("first", "percent", "reason"),
    [
        (0.0, 7.9, ""), (0.0, 8.0, "8.0 % of its free memory is in pieces, 0.0 % when it was new"),
        (9.0, 9.0, ""), (9.0, 9.5, "9.5 % of its free memory is in pieces, 9.0 % when it was new"), (9.0, 3.0, ""),
    ],
)
def test_an_engine_is_worn_above_the_limit_and_above_what_it_began_with(
    first: float, percent: float, reason: str
) -> None:
    said = worn(first, from_text(pieces(percent)), LIMITS)
    assert said.startswith(reason) and bool(said) == bool(reason)


def test_a_few_kilobytes_in_pieces_are_no_reason_for_an_alarm() -> None:
    """A small engine that fits to the byte has next to nothing free, in two places."""
    table = json.loads(pieces(0))
    memory = EngineMemory(LIMITS)
    memory.note(1, json.dumps({**table, "free": 65_024, "largest_free": 33_000}))
    assert memory.problems() == []


def test_engines_are_judged_by_their_own_first_report_and_forgotten() -> None:
    memory = EngineMemory(LIMITS)
    assert memory.note(1, pieces(0)) == "" and memory.note(2, pieces(20)) == ""
    assert memory.note(1, pieces(16)).startswith("16.0 %") and memory.note(2, pieces(20)) == ""
    assert memory.problems() == [
        "engine 1: 16.0 % of its free memory is in pieces, the limit is 15 %",
        "engine 2: 20.0 % of its free memory is in pieces, the limit is 15 %",
    ]
    memory.forget(2)
    memory.forget(7)
    memory.note(1, pieces(14.9, used=MB))
    assert memory.problems() == ["engine 1: 1.0 MiB of its emergency reserve of 8.0 MiB are in use"]
    assert memory.table(2) is None and memory.table(1) is not None


def engine(epoch: int, memory: Reservation | None, device: str = "cpu") -> dict[str, Any]:
    table = None if memory is None else from_text(to_text(memory))
    place = {"device": device, "device_name": ""}
    return {"epoch": epoch, "role": "active", **place, "pid": 7, "memory": table}


PROCESSES = [{"name": "engine (pid 7)", "pid": 7, "private": 50 * MB}, {"name": "device cuda", "device_free": 1}]


def texts(picture: str) -> list[str]:
    document = xml.dom.minidom.parseString(picture)
    return ["".join(n.data for n in t.childNodes) for t in document.getElementsByTagName("text")]


def test_the_map_shows_every_block_what_is_free_and_the_reserve() -> None:
    memory = reservation("parts: weights", "<b>&: weights", "preprocessing: lines")
    engines = [engine(1, memory), engine(2, None, "<cuda>")]
    picture = memory_map.render(engines, PROCESSES, memory.pool.blocks[0].born_ns)
    said = texts(picture)
    assert "engine 1, active, on cpu (pid 7, 50.0 MiB of private memory in all)" in said
    assert "<b>" not in picture and "<cuda>" not in picture, "names are escaped"
    for text in ("parts: weights, 1.0 MiB, 0 s old", "<b>&: weights, 1.0 MiB, 0 s old", "emergency reserve, 8.0 MiB",
                 "free, 53.0 MiB, the largest piece 53.0 MiB", "It has not told yet."):
        assert text in said
    rects = xml.dom.minidom.parseString(picture).getElementsByTagName("rect")
    widths = [float(r.getAttribute("width")) for r in rects if r.getAttribute("height") == "46"]
    # the whole: free below everything, reserve, three blocks; then the part in use, enlarged
    assert widths == pytest.approx([1100, 1100 / 8, *[1100 / 64] * 3, 1100, *[1100 / 3] * 3], abs=0.01)
    assert "prefers-color-scheme: dark" in picture


@pytest.mark.parametrize(("age_s", "said"), [(59, "59 s"), (61, "1 min"), (7201, "2 h"), (200_000, "2 d")])
def test_ages_are_readable(age_s: int, said: str) -> None:
    memory = reservation("m: weights")
    born_ns = memory.pool.blocks[0].born_ns
    picture = memory_map.render([engine(1, memory)], [], born_ns + age_s * 1_000_000_000)
    assert f"m: weights, 1.0 MiB, {said} old" in texts(picture)


def test_a_map_of_no_engine_and_of_an_empty_one() -> None:
    assert "No engine runs." in texts(memory_map.render([], [], 0))
    empty = memory_map.render([engine(1, HostReservation(0, 0))], [], 0)
    assert "free, 0.0 MiB, the largest piece 0.0 MiB" in texts(empty)
