"""Standing back while another process serves: in a child of its own, since a priority that was lowered may stay so."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from orind.daemon import priority

STEPS = """
import os
from orind.daemon.priority import StandingBack, stand_back
said = [os.nice(0)]
alone = StandingBack(others_serve=False)
said.append(os.nice(0))
alone.come_back()
first = StandingBack(others_serve=True)
said.append(os.nice(0))
first.come_back()
said.append(os.nice(0))
first.come_back()
stand_back()
said.append(os.nice(0))
print(*said)
"""


def test_it_stands_back_and_comes_back_where_it_may() -> None:
    own, alone, back, again, for_good = map(int, subprocess.check_output([sys.executable, "-c", STEPS]).split())
    may = priority._may_return_to(os.nice(0))
    assert own == alone == again == os.nice(0)
    assert back == (min(19, own + priority.STEPS) if may else own)
    assert for_good == min(19, own + priority.STEPS)


@pytest.mark.parametrize(
    ("limit", "capability", "may"),
    [(0, False, False), (19, False, False), (20, False, True), (30, False, True), (0, True, True),
     (resource.RLIM_INFINITY, False, True)],
)
def test_who_could_not_come_back_does_not_stand_back(
    monkeypatch: pytest.MonkeyPatch, limit: int, capability: bool, may: bool
) -> None:
    lowered: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    monkeypatch.setattr(priority, "_has_capability", lambda: capability)
    monkeypatch.setattr(os, "getpriority", lambda which, who: 0)
    monkeypatch.setattr(os, "setpriority", lambda which, who, nice: lowered.append(nice))
    made = priority.StandingBack(others_serve=True)
    made.come_back()
    assert lowered == ([priority.STEPS, 0] if may else [])
