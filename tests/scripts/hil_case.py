"""A scenario of hil that is good, to be spoilt by the tests."""

from __future__ import annotations

from pathlib import Path

from hil_figures import Sample

ROOT = Path(__file__).parents[2]
GOOD = """\
title: a test
board: orin-nx
policy: POLICY
seconds: 4
cameras:
  line1: {rate_hz: 15, deadline_ms: 10000}
steps:
  - {at_s: 1, phase: late, mode_behind: 25W}
limits:
  - lost == 0
"""
SAMPLE = Sample(0.0, 10.0, 50.0, 918.0, 1020.0, 80, 0.5, 20.0, "serving", True, 0, 0, 1, ())


def write(folder: Path, old: str = "", new: str = "", text: str = GOOD) -> Path:
    assert old in text
    path = folder / "scenario.yaml"
    path.write_text(text.replace(old, new, 1).replace("POLICY", str(ROOT / "configs/power/orin-nx-20w.yaml")))
    return path
