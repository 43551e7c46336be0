"""scripts/soak in small: twenty seconds of it, and that each kind of trouble would be seen. No time is judged."""

from __future__ import annotations

import csv
import dataclasses
import mmap
import os
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hostile
import pytest
import soak
import soak_plot
import soak_schedule
import soak_watch
from hostile import Told
from soak_cameras import Seen
from soak_watch import Process, Sample

from orind.ipc.answer import Result


def test_twenty_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = soak.main(["--minutes", "0.334", "--seed", "5", "--output", str(tmp_path)])
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    assert "verdict: pass" in said.out and "books exact in" in said.out
    picture = ElementTree.fromstring((tmp_path / "soak.svg").read_text())
    assert picture.tag.endswith("svg") and len(list(picture.iter())) > 50
    with (tmp_path / "samples.csv").open(newline="") as file:
        sampled = list(csv.DictReader(file))
    assert len(sampled) > 50
    assert {row["role"] for row in sampled if row["slots_kib"] != "0"} >= {"engine"}, "it reads frames where they lie"
    assert "serving" in (tmp_path / "orind.log").read_text()


# -- the schedule --------------------------------------------------------------------------------------------------


def test_a_schedule_is_its_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak_schedule.draw(1200, 7) == soak_schedule.draw(1200, 7) != soak_schedule.draw(1200, 8)
    assert soak.main(["--minutes", "20", "--seed", "7", "--schedule"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(event) for event in soak_schedule.draw(1200, 7)]


def test_every_kind_comes_equally_often_and_in_time() -> None:
    events = soak_schedule.draw(1200, 3)
    counts = Counter(event.kind for event in events)
    assert set(counts) == set(soak_schedule.KINDS) and max(counts.values()) - min(counts.values()) <= 1
    assert events == sorted(events, key=lambda event: event.at_s)
    assert events[-1].at_s < 1200 - soak_schedule.CALM_S


def test_every_kind_can_be_acted() -> None:
    names = {f"_{kind.replace('-', '_')}" for kind in soak_schedule.KINDS}
    assert all(callable(getattr(soak.Events, name)) for name in names)
    assert set(soak_schedule.KINDS) >= soak_schedule.FAULTS | soak_schedule.RELOADS


def test_too_short_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        soak.main(["--minutes", "0.1"])
    assert "at least 0.2" in capsys.readouterr().err


# -- the verdict ---------------------------------------------------------------------------------------------------


def frames(received: int) -> dict[str, Any]:
    return {"frames": {"received": received, "repeated": 0}}


def good() -> Any:
    """A soak of one camera and one misbehaving sender in which nothing was wrong."""
    keys = [("line1", n, 100 + n) for n in range(3)]
    camera = SimpleNamespace(camera="line1", pattern="dealer", sent=keys, replies=Counter(keys), surplus=0, error="")
    told = Told(sure=[("trouble", 1, 5)], maybe=[("trouble", 2, 6)], nameless=1)
    events = SimpleNamespace(told=[told], wrong=[], counts=Counter({"kill": 1}), done=[(1.0, "kill")])
    seen = [Seen(0.5, key, "ok", "", 10.0) for key in [*keys, ("trouble", 1, 5)]]
    seen.append(Seen(0.6, (None, None, None), "rejected", "garbage", 0.0))
    return soak.Soak(30.0, {"line1": camera}, events, seen, [], frames(10), frames(15), [])  # type: ignore[dict-item]


def test_a_good_soak_passes() -> None:
    assert soak.judge(good()) == []


def _lose(made: Any) -> None:
    made.cameras["line1"].sent.append(("line1", 3, 103))
    made.cameras["line1"].replies[("line1", 3, 103)] = 1


def _double(made: Any) -> None:
    made.seen.append(made.seen[0])
    made.last = frames(16)


def _invent(made: Any) -> None:
    made.seen.append(Seen(1.0, ("line1", 99, 0), "ok", "", 1.0))
    made.last = frames(16)


def _reply_twice(made: Any) -> None:
    made.cameras["line1"].replies[("line1", 0, 100)] = 2


def _miscount(made: Any) -> None:
    made.last = frames(17)


def _end_wrongly(made: Any) -> None:
    made.seen[0] = dataclasses.replace(made.seen[0], outcome="error", reason="the engine's answer cannot be used")


def _hold_where_not_allowed(made: Any) -> None:
    made.seen[0] = dataclasses.replace(made.seen[0], outcome="degraded")


def _poison_without_a_fault(made: Any) -> None:
    made.events.counts.clear()
    made.seen[0] = dataclasses.replace(made.seen[0], outcome="error", reason="2 engines died of it")


def _lose_with_a_decoder(made: Any) -> None:
    made.seen[0] = dataclasses.replace(made.seen[0], outcome="error", reason="2 decode workers died of it")


def _fail_camera(made: Any) -> None:
    made.cameras["line1"].error = "NobodyThere: takes no frame"


def _fail_event(made: Any) -> None:
    made.events.wrong.append("1.0 s: kill: ServiceError: no recovery")


def _serve_nothing(made: Any) -> None:
    made.seen[:3] = [dataclasses.replace(seen, outcome="expired") for seen in made.seen[:3]]


def _tell_wrong(made: Any) -> None:
    made.events.told[0].wrong.append("3 triggers, 2 answers")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_lose, "1 of 5 triggers have no result"), (_double, "1 triggers have several results"),
        (_invent, "1 results are of no trigger"), (_reply_twice, "1 triggers without exactly one reply"),
        (_miscount, "7 frames received, 5 results"), (_end_wrongly, "error, the engine's answer"),
        (_hold_where_not_allowed, "degraded"), (_poison_without_a_fault, "2 engines died of it"),
        (_lose_with_a_decoder, "2 decode workers died"),
        (_fail_camera, "takes no frame"), (_serve_nothing, "camera line1: only 0 of 3 triggers were served"),
         (_fail_event, "no recovery"), (_tell_wrong, "3 triggers, 2 answers"),
    ],
)
def test_each_kind_of_trouble_fails_it(spoil: Callable[[Any], None], words: str) -> None:
    made = good()
    spoil(made)
    wrong = soak.judge(made)
    assert wrong and any(words in text for text in wrong), wrong


def test_poison_is_an_end_where_engines_were_killed() -> None:
    made = good()
    made.seen[0] = dataclasses.replace(made.seen[0], outcome="error", reason="2 engines died of it, at last")
    assert soak.judge(made) == []


def samples(seconds: float, rss: Callable[[float], float], fds: Callable[[float], int] = lambda _: 40) -> list[Sample]:
    return [
        Sample(at / 2, "serving", 0, 0, 0, 0, 0, None, (Process(1, "main", int(rss(at / 2)), fds(at / 2), 3),))
        for at in range(int(seconds * 2))
    ]


def test_memory_that_grows_fails_it_and_memory_that_settles_does_not() -> None:
    assert soak_watch.trends(samples(1200, lambda at: 60_000 + min(at, 500) * 40), {})[0] == []
    wrong, _, unjudged = soak_watch.trends(samples(1200, lambda at: 60_000 + at * 15), {})
    assert len(wrong) == 1 and wrong[0].startswith("main: RSS grew") and unjudged == []
    assert soak_watch.trends(samples(1200, lambda at: 60_000 + (at % 7) * 500), {})[0] == []


@pytest.mark.parametrize("role", ["engine", "decoder"])
def test_slots_that_become_resident_as_they_are_read_are_no_growth(role: str) -> None:
    def made(slots: int) -> list[Sample]:
        of_role = [Process(1, role, 60_000 + at * 8, 12, 1, slots * at * 8) for at in range(2400)]
        return [dataclasses.replace(s, processes=(p,)) for s, p in zip(samples(1200, float), of_role, strict=True)]

    assert soak_watch.trends(made(slots=1), {})[0] == []
    assert soak_watch.trends(made(slots=0), {})[0] != [], "growth of anything else, shared or not, is growth"


def test_only_the_slots_are_told_apart() -> None:
    before = soak_watch.slots_kib(Path("/proc/self/smaps").read_text())  # of other tests in this process
    with ExitStack() as held:
        for name, pages in (("orind-slots", 5), ("orind-plan-1", 7), ("orind-slots", 2)):
            fd = os.memfd_create(name)
            held.callback(os.close, fd)
            os.truncate(fd, 16 * mmap.PAGESIZE)
            mapping = held.enter_context(mmap.mmap(fd, 16 * mmap.PAGESIZE))
            for page in range(pages):
                mapping[page * mmap.PAGESIZE] = 1
        smaps = Path("/proc/self/smaps").read_text()
    assert soak_watch.slots_kib(smaps) - before == (5 + 2) * mmap.PAGESIZE // 1024


def test_memory_that_main_takes_for_answers_that_it_keeps_is_known() -> None:
    kept = {"slow": [n * 0.5 for n in range(2400)], "quick": [n * 0.01 for n in range(120_000)]}
    assert soak_watch.filling_kib(kept, 600, 1200) == soak_watch.KEPT_KIB * 1200, "the quick one's window is full"
    grown = samples(1200, lambda at: 60_000 + at * 8)
    assert soak_watch.trends(grown, {})[0] != [] and soak_watch.trends(grown, kept)[0] == []


def test_memory_of_a_short_soak_is_not_judged_and_that_is_said() -> None:
    wrong, rows, unjudged = soak_watch.trends(samples(60, lambda at: 60_000 + at * 100), {})
    assert wrong == [] and unjudged == ["RSS of main: less than 480 s were seen"] and len(rows) == 3


def test_descriptors_that_grow_fail_it() -> None:
    wrong, _, _ = soak_watch.trends(samples(60, lambda _: 60_000, lambda at: 40 + int(at / 10)), {})
    assert wrong == ["main: descriptors grew from 40 to 44"]
    assert soak_watch.trends(samples(60, lambda _: 60_000, lambda at: 40 + (20 if at % 10 < 2 else 0)), {})[0] == []


def test_fragmentation_that_nobody_tells_is_no_pass() -> None:
    assert soak_watch.fragmented(samples(2, lambda _: 1))[0] == ["no engine ever told its fragmentation"]


def test_fragmentation_is_the_worst_of_the_engines_that_tell_it() -> None:
    told = [{"memory": {"fragmentation_percent": 1.0}}, {"memory": None}, {"memory": {"fragmentation_percent": 4.0}}]
    assert soak_watch.fragmentation(told) == 0.04
    assert soak_watch.fragmentation([]) is None and soak_watch.fragmentation([{"memory": None}]) is None
    few = [dataclasses.replace(s, fragmentation=0.05) for s in samples(2, lambda _: 1)]
    assert soak_watch.fragmented(few) == (["fragmentation reached 5.0%"], "at most 5.0% of 4 samples")


# -- what misbehaving senders claim --------------------------------------------------------------------------------


def result(seq: int | None, **more: Any) -> Result:
    return Result("trouble", seq, None, None if seq is None else 9, "monotonic", "ok", None, **more)


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ([result(1)], "2 triggers, 1 answers for 1 of them"),
        ([result(1), result(2), result(2)], "2 triggers, 3 answers for 2 of them"),
        ([result(1), result(3)], "2 triggers, 2 answers"),
        ([result(1), result(2), result(2, repeated=True)], "0 repeats and 0 unreadable messages were sent, 1 and 0"),
        ([result(1), result(2), result(None)], "0 and 1 answered"),
    ],
)
def test_a_sender_notices_answers_that_are_missing_or_too_many(replies: list[Result], words: str) -> None:
    told = Told(sure=[("trouble", 1, 9), ("trouble", 2, 9)], replies=replies)
    assert any(words in text for text in told.judge_replies().wrong)
    assert hostile.Told(sure=told.sure, replies=[result(1), result(2)]).judge_replies().wrong == []


def test_a_picture_of_nothing_is_still_a_picture() -> None:
    assert ElementTree.fromstring(soak_plot.draw("a <soak>", 20.0, [], [], [])).tag.endswith("svg")
