"""jtop's real, unmodified service (jetson-stats, a process of its own) sees on a simulated board what orind reads.

`scripts/test tests/jtop -s` prints the tables.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from boards import Board
from comparison import NOT_COMPARED, Comparison
from service import Jtop, JtopError

from orind.power.sensors import Sensors

TWICE = "VDDQ_VDD2_1V8AO"  # hangs off VIN_SYS_5V0; jtop adds it to that


@pytest.fixture(params=[("agx-orin", "6"), ("orin-nx", "6"), ("agx-orin", "5")],
                ids=lambda p: f"{p[0]}, JetPack {p[1]}")
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Board:
    name, jetpack = request.param
    return Board(tmp_path / "board", name, jetpack)


def _agree(found: Comparison) -> None:
    """All fields are the same; powers to the milliwatt that jtop's floating point loses; but AGX Orin's total is the
    sum with one rail twice, which is exactly what it is off by."""
    watts = {row.field.removesuffix(", mW"): (row.jtop, row.orind) for row in found.rows if row.field.endswith(", mW")}
    lost = 0
    for label, (theirs, ours) in watts.items():
        assert isinstance(theirs, int) and isinstance(ours, int)
        if label != "total":
            assert 0 <= ours - theirs <= 1, f"{label}: {theirs} and {ours}"
            lost += ours - theirs
    if "total" in watts:
        (theirs, ours), (_, twice) = watts["total"], watts[TWICE]
        assert theirs - ours == twice - lost and twice > 100, "the rail that jtop counts twice, to the milliwatt"
    different = [row for row in found.rows if not row.same and not row.field.endswith(", mW")]
    assert different == []
    assert found.left == {}, "fields of jtop that nobody compares"
    assert found.used == set(NOT_COMPARED), "a reason for a field that jtop does not show"


def test_every_field_of_jtop_is_what_orind_reads(board: Board) -> None:
    board.run(20, 0.6)
    with Jtop(board.plant.root) as jtop:
        found = board.compare(jtop)
        _agree(found)
        assert len(found.rows) > 120 and not next(row.jtop for row in found.rows if row.field == "jetson_clocks")
        # live: another mode, pinned clocks, full load, which both see without being told
        with jtop.standing_still():
            board.call("nvpmodel", "-m", "3")
            board.call("jetson_clocks")
        board.run(30, 1.0)
        moved = board.compare(jtop)
        _agree(moved)
        before, after = ({row.field: row.jtop for row in seen.rows} for seen in (found, moved))
        assert after["jetson_clocks"] is True and after["mode, id"] == 3 and after["GPU load, %"] == 100.0
        assert {"GPU cap, kHz", "zone tj-thermal, C", "fan, rpm"} <= {
            name for name in before if before[name] != after[name]
        }


def test_a_board_with_cores_offline_and_a_lower_memory_clock(tmp_path: Path) -> None:
    board = Board(tmp_path / "board", "agx-orin", "6")
    (board.plant.root / "var/lib/nvpmodel/status").write_text("pmode:0001 fmode:quiet\n")
    board.plant.reboot()
    board.run(5, 1.0)
    with Jtop(board.plant.root) as jtop:
        found = board.compare(jtop)
        _agree(found)
        shown = {row.field: row.jtop for row in found.rows}
        assert (shown["mode"], shown["EMC clock, kHz"]) == ("MODE_15W", 2_133_000)
        assert [shown[f"CPU {cpu}: online"] for cpu in range(12)] == [True] * 4 + [False] * 8
        # the CPUs' load: from times since the last sample, so that the board has to have moved
        for _ in range(10):
            board.run(1, 1.0)
            cpu = jtop.sample()["cpu"]["cpu"][0]
            if cpu["idle"]:
                break
        share = 100 * board.plant.model.busy_cores(1.0) / 4
        assert cpu["user"] == pytest.approx(share, abs=2) and cpu["idle"] == pytest.approx(100 - share, abs=2)


def test_what_jtop_cannot_read_is_lost_for_orind_as_well(tmp_path: Path) -> None:
    board = Board(tmp_path / "board", "orin-nx", "6")
    with Jtop(board.plant.root) as jtop:
        board.plant.faults.missing.add("tj")
        board.plant.faults.missing.add("VDD_IN")
        board.run(1, 0.5)
        sample = jtop.sample()
    seen = Sensors(board.plant.root, board.facts).read()
    assert seen.tj_mc is None and seen.board_mw is None and len(seen.faults) == 2
    assert sample["temperature"]["tj"] == {"temp": -256, "online": False}
    assert sample["power"]["tot"]["power"] < 15_000, "the sum of what is left: jtop does not say that its total is lost"



def test_a_folder_without_a_board_is_said(tmp_path: Path) -> None:
    with pytest.raises(JtopError, match="did not start"), Jtop(tmp_path / "no/board"):
        pass
