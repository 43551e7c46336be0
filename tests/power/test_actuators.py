"""Clock caps over a tree: rounding, the mode's envelope, refusals, and restoring after a crash."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orind.power.actuators import Caps, restore_saved
from orind.power.board import BoardFacts
from orind.power.errors import PowerError, SysfsError
from orind.power.nvpmodel import read_mode_id
from orind.power.plant.board import PlantBoard
from orind.power.sysfs import Sysfs

TOP, MHZ = 1_300_500_000, 1_000_000


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "power-state.json"


def _max(plant: PlantBoard) -> int:
    return int((plant.root / plant.layout.max_freq).read_text())


def _set_mode(plant: PlantBoard, mode: int) -> None:
    (plant.root / "var/lib/nvpmodel/status").write_text(f"pmode:{mode:04d} fmode:quiet\n")


@pytest.mark.parametrize(("asked_mhz", "step_mhz"), [(612, 612), (700, 612), (1300.4, 1224), (9999, 1300.5), (1, 306)])
def test_caps_are_steps_of_the_table(plant: PlantBoard, agx: BoardFacts, state: Path, asked_mhz: float,
                                     step_mhz: float) -> None:
    caps = Caps(plant.root, agx, state)
    assert len(caps.gpu_table_hz) == 11
    assert caps.set_gpu_max(round(asked_mhz * MHZ), "test") == round(step_mhz * MHZ) == _max(plant) == caps.gpu_cap_hz()


def test_the_mode_is_the_envelope(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    caps = Caps(plant.root, agx, state)
    assert caps.gpu_clocks_hz()[-1] == TOP
    _set_mode(plant, 3)
    assert caps.gpu_clocks_hz()[-1] == 816 * MHZ
    assert caps.set_gpu_max(TOP, "test") == 816 * MHZ
    _set_mode(plant, 99)
    assert caps.gpu_clocks_hz()[-1] == 816 * MHZ, "in no file: no higher than in the mode before"
    assert caps.notes() == ("the power mode was changed from MAXN to MODE_50W; its caps hold from now on",
                            "the power mode was changed from MODE_50W to mode 99; what that caps is not known, so no "
                            "cap goes up")
    assert caps.notes() == () and caps.mode() == ("mode 99", None)
    _set_mode(plant, 0)
    assert caps.gpu_clocks_hz()[-1] == TOP


@pytest.mark.parametrize("status", [None, "", "pmode:0099 fmode:quiet\n"], ids=["no file", "empty", "in no file"])
def test_where_the_mode_is_not_known_no_cap_is_higher_than_the_one_that_was_found(
    plant: PlantBoard, agx: BoardFacts, state: Path, status: str | None
) -> None:
    """An integrator's mode, whose nvpmodel.conf has a line that is refused."""
    conf, cap = plant.root / "etc/nvpmodel.conf", plant.root / plant.layout.max_freq
    conf.write_text(conf.read_text().replace("ID=3 NAME=MODE_50W", "ID=99 NAME=OURS") + "< OURS >\n")
    if status is None:
        (plant.root / "var/lib/nvpmodel/status").unlink()
    else:
        (plant.root / "var/lib/nvpmodel/status").write_text(status)
    cap.write_text(f"{510 * MHZ}\n")
    cpus = [plant.root / policy / "scaling_max_freq" for policy in plant.layout.cpu_policies()]
    for path in cpus:
        path.write_text("1497600\n")
    Caps(plant.root, agx, state).set_gpu_max(408 * MHZ, "then it was killed")
    caps = Caps(plant.root, agx, state)
    assert caps.set_gpu_max(TOP, "test") == 510 * MHZ == _max(plant), "the board's own, not what the crash left"
    assert caps.gpu_clocks_hz()[-1] == 510 * MHZ and caps.permitted().cpu_clocks_khz[-1] == 1_497_600
    caps.set_cpu_max(729_600)
    assert caps.permitted().cpu_clocks_khz[-1] == 1_497_600, "not what is ours by now"
    caps.restore()
    assert _max(plant) == 510 * MHZ and {path.read_text() for path in cpus} == {"1497600\n"}
    cpus[0].write_text("soon\n")
    lost = Caps(plant.root, agx, state)
    cpus[0].write_text("1497600\n")
    assert lost.permitted().cpu_clocks_khz == (), "what was found is not known: the CPUs are left alone"


def test_a_mode_is_what_the_board_s_own_file_says(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    caps = Caps(plant.root, agx, state)
    conf = plant.root / "etc/nvpmodel.conf"
    conf.write_text(conf.read_text().replace("ID=3 NAME=MODE_50W", "ID=7 NAME=OURS").replace("GPU MAX_FREQ 816000000",
                                                                                              "GPU MAX_FREQ 510000000"))
    _set_mode(plant, 7)
    assert caps.gpu_clocks_hz()[-1] == 510 * MHZ and caps.mode() == ("OURS", None), "read again at a change"
    conf.write_text("nothing")
    _set_mode(plant, 3)
    assert caps.gpu_clocks_hz()[-1] == 816 * MHZ and caps.mode() == ("MODE_50W", None), "our facts, where it has none"


def test_a_mode_that_waits_for_a_boot_is_no_envelope(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    _set_mode(plant, 3)
    (plant.root / plant.layout.max_freq).write_text(f"{816 * MHZ}\n")
    caps = Caps(plant.root, agx, state)
    assert caps.set_gpu_max(612 * MHZ, "test") == 612 * MHZ
    _set_mode(plant, 2)
    assert caps.gpu_clocks_hz()[-1] == 816 * MHZ, "the one before it holds"
    assert caps.mode() == ("MODE_50W", "MODE_30W")
    assert caps.notes() == ("power mode MODE_30W waits for a boot; until then MODE_50W holds",)
    assert caps.restore() and _max(plant) == 816 * MHZ, "not what the waiting one would have"
    fresh = Caps(plant.root, agx, state)
    assert fresh.gpu_clocks_hz()[-1] == 816 * MHZ and fresh.mode() == (None, "MODE_30W"), "the cap that was found"
    plant.reboot()
    assert fresh.gpu_clocks_hz()[-1] == 612 * MHZ and fresh.mode() == ("MODE_30W", None)
    assert fresh.notes()[-1] == "power mode MODE_30W does not wait for a boot any more"


def test_others_who_touch_cap_and_table_are_noticed(plant: PlantBoard, agx: BoardFacts, state: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = [10**12]
    monkeypatch.setattr("orind.power.actuators.time.monotonic_ns", lambda: now_ns[0])
    caps = Caps(plant.root, agx, state)
    caps.set_gpu_max(612 * MHZ, "test")
    said = []
    for passed_s in (0, 1, 61):
        now_ns[0] += passed_s * 10**9
        (plant.root / plant.layout.max_freq).write_text(f"{TOP}\n")
        assert caps.set_gpu_max(612 * MHZ, "test") == 612 * MHZ
        said.append(len(caps.notes()))
    assert said == [1, 0, 1], "somebody who does it again and again is not said again and again"
    (plant.root / plant.layout.max_freq).write_text(f"{306 * MHZ}\n")
    caps.set_gpu_max(612 * MHZ, "test")
    assert caps.notes() == (), "lowering it is what the kernel does against heat"
    (plant.root / plant.layout.devfreq / "available_frequencies").write_text(f"{306 * MHZ} {408 * MHZ}\n")
    assert caps.set_gpu_max(612 * MHZ, "test") == 408 * MHZ
    assert caps.notes() == ("the board's table of GPU clocks has changed: it ends at 408 MHz, no longer at 1300.5",)


@pytest.mark.parametrize("crash", [False, True])
def test_what_is_put_back_while_a_mode_waits_is_what_the_mode_that_holds_allows(
    plant: PlantBoard, agx: BoardFacts, state: Path, crash: bool
) -> None:
    """MAXN when the cap was taken, MODE_50W since, and a mode of other masks is staged."""
    status = plant.root / "var/lib/nvpmodel/status"
    caps = Caps(plant.root, agx, state)
    for mode in (0, 3, 2):
        status.write_text(f"pmode:{mode:04} fmode:quiet\n")
        top_hz = caps.gpu_clocks_hz()[-1]
        caps.set_gpu_max(min(top_hz, 612_000_000), "test")
    assert caps.mode() == ("MODE_50W", "MODE_30W") and top_hz == 816_000_000
    restore_saved(state) if crash else caps.restore()
    assert int((plant.root / plant.layout.max_freq).read_text()) == 816_000_000


@pytest.mark.parametrize(("text", "mode"), [("pmode:0002", 2), ("pmode:0003 fmode:cool", 3), ("pmode:", None),
                                            ("fmode:quiet", None)])
def test_mode_file(plant: PlantBoard, text: str, mode: int | None) -> None:
    (plant.root / "var/lib/nvpmodel/status").write_text(text + "\n")
    assert read_mode_id(Sysfs(plant.root)) == mode
    assert read_mode_id(Sysfs(plant.root / "sys")) is None


def test_restore_puts_back_what_was_found(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    (plant.root / plant.layout.max_freq).write_text(f"{1020 * MHZ}\n")
    caps = Caps(plant.root, agx, state)
    assert caps.restore() == () and _max(plant) == 1020 * MHZ, "nothing changed, nothing to restore"
    caps.set_gpu_max(408 * MHZ, "test")
    caps.set_gpu_max(306 * MHZ, "test")
    assert caps.restore() == (f"{plant.root}/sys/class/devfreq/17000000.gpu/max_freq: {1020 * MHZ}",)
    assert _max(plant) == 1020 * MHZ and not state.exists()
    caps.set_gpu_max(510 * MHZ, "a second life")
    assert restore_saved(state) and _max(plant) == 1020 * MHZ


def test_after_a_crash_the_board_s_own_value_is_kept(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    Caps(plant.root, agx, state).set_gpu_max(408 * MHZ, "then it was killed")
    assert state.exists() and _max(plant) == 408 * MHZ
    again = Caps(plant.root, agx, state)
    assert _max(plant) == TOP, "the next start puts it back first"
    again.set_gpu_max(306 * MHZ, "test")
    again.restore()
    assert _max(plant) == TOP


def test_a_saved_state_that_somebody_removed_is_saved_again(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    caps = Caps(plant.root, agx, state)
    caps.set_gpu_max(408 * MHZ, "test")
    restore_saved(state)  # `orind power restore` beside a steward that goes on
    caps.set_gpu_max(306 * MHZ, "the next tick")
    assert _max(plant) == 306 * MHZ
    assert restore_saved(state) and _max(plant) == TOP, "as if all had been killed"
    caps.set_gpu_max(306 * MHZ, "the next tick")
    state.unlink()
    assert caps.restore() and _max(plant) == TOP, "the end, before another tick"


def test_a_mode_change_in_between_wins_over_the_saved_value(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    Caps(plant.root, agx, state).set_gpu_max(408 * MHZ, "test")
    _set_mode(plant, 3)
    restore_saved(state)
    assert _max(plant) == 816 * MHZ, "what nvpmodel would have written"


def test_a_plant_that_is_gone_needs_no_restoring(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    Caps(plant.root, agx, state).set_gpu_max(408 * MHZ, "test")
    shutil.rmtree(plant.root)
    assert restore_saved(state) == () and not state.exists()


def test_a_restore_that_fails_keeps_the_file(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    Caps(plant.root, agx, state).set_gpu_max(408 * MHZ, "test")
    (plant.root / "sys/class/devfreq/17000000.gpu").unlink()
    with pytest.raises(PowerError, match=r"not restored, .* kept: /sys/class/devfreq"):
        restore_saved(state)
    assert state.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "root": 3}',
                                  '{"version": 1, "root": "/", "values": 3}', "[" * 100_000,
                                  '{"version": 1, "root": "", "values": {}}', '{"version": 1, "root": "x\\u0000"}'])
def test_a_damaged_file_is_named(state: Path, text: str) -> None:
    state.write_text(text)
    with pytest.raises(PowerError, match=r"power-state\.json: the saved clock caps cannot be read"):
        restore_saved(state)


@pytest.mark.parametrize(("path", "value"), [
    ("etc/passwd", 1), ("sys/class/devfreq/../../../etc/passwd", 1), ("sys/class/devfreq/gpu/governor", 1),
    ("sys/class/devfreq/gpu/max_freq", 0), ("sys/class/devfreq/gpu/max_freq", 1e400),
    ("sys/class/devfreq/gpu/max_freq", "612000000"), ("sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq", True)])
def test_a_restore_writes_clocks_and_nothing_else(tmp_path: Path, state: Path, path: str, value: object) -> None:
    for name in ("etc/passwd", "sys/class/devfreq/gpu/max_freq"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("as it was")
    state.write_text(json.dumps({"version": 1, "root": str(tmp_path), "mode": None, "values": {path: value}}))
    with pytest.raises(PowerError, match=r"cannot be read \(.*(is no clock's cap|is no clock)\)"):
        restore_saved(state)
    assert (tmp_path / "etc/passwd").read_text() == (tmp_path / "sys/class/devfreq/gpu/max_freq").read_text()


def test_a_restore_follows_no_link_to_another_file(tmp_path: Path, state: Path) -> None:
    cap = tmp_path / "sys/class/devfreq/gpu/max_freq"
    cap.parent.mkdir(parents=True)
    (tmp_path / "passwd").write_text("as it was")
    cap.symlink_to(tmp_path / "passwd")
    state.write_text(json.dumps({"version": 1, "root": str(tmp_path), "mode": None, "mode_values": {},
                                 "values": {"sys/class/devfreq/gpu/max_freq": 612 * MHZ}}))
    with pytest.raises(PowerError, match=r"kept: /sys/class/devfreq/gpu/max_freq: leads to another file"):
        restore_saved(state)
    assert state.exists() and (tmp_path / "passwd").read_text() == "as it was"


def _somebody_s(state: Path, root: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved state of a user without rights, which root is to restore."""
    state.write_text(json.dumps({"version": 1, "root": root, "mode": None, "mode_values": {},
                                 "values": {path: 612 * MHZ}}))
    if os.geteuid() == 0:
        os.chown(state, 65_534, 65_534)
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_root_writes_in_no_folder_that_a_user_s_file_names(tmp_path: Path, state: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    cap = tmp_path / "sys/class/devfreq/gpu/max_freq"
    cap.parent.mkdir(parents=True)
    cap.write_text("as it was")
    _somebody_s(state, str(tmp_path), "sys/class/devfreq/gpu/max_freq", monkeypatch)
    with pytest.raises(PowerError, match=r"belongs to user id \d+ and names .* \(sudo -u '#\d+' orind"):
        restore_saved(state)
    assert state.exists() and cap.read_text() == "as it was"


def test_root_restores_the_board_s_own_clocks_for_a_user(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "sys/devices/system/cpu/cpufreq/policy99999/scaling_max_freq"  # no machine has it
    _somebody_s(state, "/", path, monkeypatch)
    assert restore_saved(state) == (f"/{path}: not there, its cores are offline",) and not state.exists()


def test_a_saved_state_has_a_bound(state: Path) -> None:
    state.write_text(" " * (1 << 20) + "{}")
    with pytest.raises(PowerError, match="it has more than 1048576 bytes"):
        restore_saved(state)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_not_waited_for(state: Path, make: Callable[[Path], None]) -> None:
    make(state)
    with pytest.raises(PowerError, match=r"the saved clock caps cannot be read \(it is no file\)"):
        restore_saved(state)


def test_a_file_of_another_version_is_refused(state: Path) -> None:
    state.write_text(json.dumps({"version": 2}))
    with pytest.raises(PowerError, match="made by another orind"):
        restore_saved(state)


def test_no_file_is_nothing_to_do(state: Path) -> None:
    assert restore_saved(state) == ()


def test_no_cap_without_a_saved_state(plant: PlantBoard, agx: BoardFacts, tmp_path: Path) -> None:
    caps = Caps(plant.root, agx, tmp_path / "absent" / "state.json")
    with pytest.raises(PowerError, match="no cap is changed before they are safe"):
        caps.set_gpu_max(408 * MHZ, "test")
    assert _max(plant) == TOP


def test_a_refused_write_is_told(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    caps = Caps(plant.root, agx, state)
    caps.set_gpu_max(408 * MHZ, "test")
    (plant.root / plant.layout.max_freq).unlink()
    with pytest.raises(SysfsError, match="ENOENT"):
        caps.set_gpu_max(510 * MHZ, "test")


def test_no_gpu_is_refused_at_the_start(tmp_path: Path, agx: BoardFacts, state: Path) -> None:
    with pytest.raises(PowerError, match=r"no GPU clock under .* is the GPU driver loaded"):
        Caps(tmp_path, agx, state)
