"""`power.source: jtop` over jtop's real service: the daemon's reader in a process of its own, in the namespaces."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from boards import Board
from service import Jtop

from orind.daemon.jtop_source import JtopSource
from orind.power.sensors import Readings, Sensors


def _until(source: JtopSource, holds: Callable[[Readings], bool]) -> Readings:
    end = time.monotonic() + 60
    while not holds(seen := source.read()):
        assert time.monotonic() < end, seen
        time.sleep(0.02)
    return seen


@pytest.mark.parametrize("name", ["agx-orin", "orin-nx"])
def test_readings_are_those_of_sysfs_and_a_death_is_lost_sensors(name: str, tmp_path: Path) -> None:
    board = Board(tmp_path / "board", name, "6")
    board.run(20, 0.6)
    with Jtop(board.plant.root, client=False) as jtop:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\nexec {' '.join(jtop.inside())} \"$@\"\n")
        python.chmod(0o755)
        source = JtopSource(str(python), board.facts)
        try:
            source.wait_for_first()
            seen = _until(source, lambda seen: seen.faults == ())
            direct = Sensors(board.plant.root, board.facts).read()
            assert direct.board_mw is not None and direct.oc_count is not None
            for field in ("board_mw", "rails_mw", "tj_mc", "zones_mc", "gpu_hz", "gpu_busy_permille", "cpu_khz"):
                assert getattr(seen, field) == getattr(direct, field), field
            assert seen.fan_pwm == direct.fan_pwm and seen.oc_count is None, "jtop has no over-current events"

            board.run(5, 1.0)
            moved = Sensors(board.plant.root, board.facts).read()
            assert moved.board_mw != direct.board_mw
            _until(source, lambda seen: seen.board_mw == moved.board_mw and seen.tj_mc == moved.tj_mc)

            board.plant.faults.missing.add("tj")
            board.plant.faults.forced["gpu"] = -256_000
            board.run(1, 1.0)
            seen = _until(source, lambda seen: "zone tj: jtop cannot read it" in seen.faults)
            assert seen.tj_mc is None and "gpu" not in seen.zones_mc and seen.board_mw is not None

            jtop.kill_service()
            seen = _until(source, lambda seen: seen.board_mw is None and len(seen.faults) > 1)
            assert seen.faults[0].startswith("jtop: ") and seen.tj_mc is None
        finally:
            source.close()
