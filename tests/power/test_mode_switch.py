"""Entering a mode: the prompt never blocks, and a switch that was refused or silently ignored is detected."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orind.power import mode_switch
from orind.power.errors import PowerError
from orind.power.mode_switch import differences, enter, stage
from orind.power.nvpmodel import ConfMode, read_board, read_conf, switch_to
from orind.power.plant.board import PlantBoard
from orind.power.plant.model import PlantModel
from orind.power.plant.modules import AGX_ORIN, JETPACKS, ORIN_NANO_8_SUPER, ORIN_NX_SUPER, Module
from orind.power.plant.tree import Layout, build_tree
from orind.power.programs import PROGRAMS, run
from orind.power.sysfs import Sysfs

PROGRAM = PROGRAMS["nvpmodel"]
STATUS, FAULT = "var/lib/nvpmodel/status", ".nvpmodel-fault"


@pytest.fixture
def board(tmp_path: Path) -> Callable[..., Sysfs]:
    """A board, its nvpmodel included."""

    def make(module: Module = AGX_ORIN) -> Sysfs:
        build_tree(tmp_path / "board", Layout(module, JETPACKS["6"], 0))
        return Sysfs(tmp_path / "board")

    return make


def _mode(sysfs: Sysfs, name: str) -> ConfMode:
    mode = read_conf(sysfs).mode(name)
    assert mode is not None
    return mode


def _enter(sysfs: Sysfs, name: str, governed: bool = False, timeout_s: float = 30.0) -> None:
    enter(sysfs, read_conf(sysfs), _mode(sysfs, name), governed, timeout_s)


def _refused(sysfs: Sysfs, name: str, governed: bool = False, timeout_s: float = 30.0) -> str:
    with pytest.raises(PowerError) as refused:
        _enter(sysfs, name, governed, timeout_s)
    return str(refused.value)


@pytest.mark.parametrize(("module", "name"), [(AGX_ORIN, "MODE_50W"), (ORIN_NX_SUPER, "40W"),
                                              (ORIN_NANO_8_SUPER, "25W")])
def test_a_live_switch_there_and_back(board: Callable[..., Sysfs], module: Module, name: str) -> None:
    sysfs = board(module)
    before = next(m.name for m in read_conf(sysfs).modes if m.gpu_max_hz is None)
    _enter(sysfs, name)
    assert differences(sysfs, read_conf(sysfs), _mode(sysfs, name), False) == []
    assert differences(sysfs, read_conf(sysfs), _mode(sysfs, before), False) != []
    _enter(sysfs, before)
    assert differences(sysfs, read_conf(sysfs), _mode(sysfs, before), False) == []


def test_a_switch_that_needs_a_reboot_is_refused_before_nvpmodel_runs(board: Callable[..., Sysfs]) -> None:
    sysfs = board()
    (sysfs.root / PROGRAM).unlink()
    assert _refused(sysfs, "MODE_30W") == "MODE_30W needs a reboot (TPC mask 0 -> 240); nothing was changed"
    (sysfs.root / "sys/devices/platform/gpu.0/tpc_pg_mask").unlink()
    said = _refused(sysfs, "MODE_30W")
    assert said == "MODE_30W may need a reboot (the live TPC mask cannot be read); nothing was changed"


def test_the_question_about_the_reboot_gets_no_answer_and_does_not_block(board: Callable[..., Sysfs]) -> None:
    sysfs = board()
    # our own standard input stays open and silent, as on a terminal
    reader, writer = os.pipe()
    kept = os.dup(0)
    os.dup2(reader, 0)
    try:
        ran = run(sysfs, "nvpmodel", ["-m", "2"], 30.0)
    finally:
        os.dup2(kept, 0)
        for fd in (reader, writer, kept):
            os.close(fd)
    assert ran.code == 234 and "DO YOU WANT TO REBOOT NOW?" in ran.words and "bad input!" in ran.words
    assert sysfs.read_text(STATUS) == "pmode:0000 fmode:cool"


@pytest.mark.parametrize(("how", "said"), [
    ("container", ["CPU_A78_0 MAX_FREQ is 2201600, not 1497600", "GPU MAX_FREQ is 1300500000, not 816000000",
                   "ended with 0 and said: Running in chroot, ignoring request"]),
    ("reverts", ["the status file says mode 0, not 3", "nvpmodel ended with 0"]),
    ("refused", ["the status file says mode 0, not 3", "GPU MAX_FREQ is 1300500000, not 816000000",
                 "nvpmodel ended with 255 and said: Error writing 0 to "])])
def test_a_switch_that_did_not_happen_is_detected(board: Callable[..., Sysfs], how: str, said: list[str]) -> None:
    sysfs = board()
    (sysfs.root / FAULT).write_text(how)
    text = _refused(sysfs, "MODE_50W")
    assert text.startswith("MODE_50W was not entered: ") and [part for part in said if part not in text] == []


def test_one_that_hangs_is_killed(board: Callable[..., Sysfs]) -> None:
    sysfs = board()
    (sysfs.root / FAULT).write_text("hangs")
    assert "nvpmodel was killed after 0.3 s" in _refused(sysfs, "MODE_50W", timeout_s=0.3)


def test_a_missing_program_is_named(board: Callable[..., Sysfs]) -> None:
    sysfs = board()
    (sysfs.root / PROGRAM).unlink()
    assert _refused(sysfs, "MODE_50W") == (f"{sysfs.root / PROGRAM} cannot be run: No such file or directory; "
                                           "nothing was changed")


def test_a_cap_that_a_daemon_holds_may_lie_below_the_mode_s(board: Callable[..., Sysfs]) -> None:
    sysfs = board()
    _enter(sysfs, "MODE_50W")
    conf, mode = read_conf(sysfs), _mode(sysfs, "MODE_50W")
    cap = sysfs.root / AGX_MAX_FREQ
    cap.write_text("408000000\n")
    assert differences(sysfs, conf, mode, governed=True) == []
    assert differences(sysfs, conf, mode, governed=False) == ["GPU MAX_FREQ is 408000000, not 816000000"]
    cpu = sysfs.root / "sys/devices/system/cpu/cpu4/cpufreq/scaling_max_freq"
    held = cpu.read_text()
    cpu.write_text("1036800\n")
    assert differences(sysfs, conf, mode, governed=True) == []
    cpu.write_text(held)
    cap.write_text("918000000\n")
    assert differences(sysfs, conf, mode, governed=True) == ["GPU MAX_FREQ is 918000000, not 816000000"]


@pytest.mark.parametrize("governs", [True, False])
def test_a_daemon_that_ticked_in_the_middle_of_a_switch_has_another_tick(
    board: Callable[..., Sysfs], monkeypatch: pytest.MonkeyPatch, governs: bool
) -> None:
    """It put its cap of the old mode over nvpmodel's, whose status file was not written yet."""
    sysfs = board()
    cap = f"{sysfs.find_devfreq(['gpu'])}/max_freq"
    later = threading.Timer(0.2, sysfs.write_int, (cap, 816_000_000))

    def run_and_tick(*arguments: Any) -> Any:
        ran = run(*arguments)
        sysfs.write_int(cap, 918_000_000)
        if governs:
            later.start()
        return ran

    monkeypatch.setattr(mode_switch, "run", run_and_tick)
    monkeypatch.setattr(mode_switch, "GOVERNED_S", 10.0 if governs else 0.1)
    if governs:
        _enter(sysfs, "MODE_50W", governed=True)
        later.join()
    else:
        assert "GPU MAX_FREQ is 918000000, not 816000000" in _refused(sysfs, "MODE_50W", governed=True)


def test_clock_files_go_with_the_last_core_of_a_cluster_and_only_then(board: Callable[..., Sysfs]) -> None:
    sysfs = board()
    conf = read_conf(sysfs)
    link = sysfs.root / "sys/devices/system/cpu/cpu8/cpufreq"
    link.unlink()
    parked, whole = (differences(sysfs, conf, _mode(sysfs, name), False) for name in ("MODE_30W", "MODE_50W"))
    assert "CPU_A78_2 MAX_FREQ cannot be read" in whole
    assert "CPU_A78_2 MAX_FREQ cannot be read" not in parked and "CPU_ONLINE CORE_8 is 1, not 0" in parked


def _stage(sysfs: Sysfs, name: str) -> None:
    stage(sysfs, read_conf(sysfs), _mode(sysfs, name))


def test_a_mode_that_needs_a_reboot_is_staged_and_entered_at_the_next_boot(tmp_path: Path) -> None:
    plant = PlantBoard(tmp_path / "board", PlantModel())
    sysfs = Sysfs(plant.root)
    before = {p: p.read_bytes() for p in plant.root.rglob("*") if p.is_file()}
    _stage(sysfs, "MODE_30W")
    after = {p: p.read_bytes() for p in plant.root.rglob("*") if p.is_file()}
    assert {p.name for p in after if after[p] != before.get(p)} == {"status"} and len(after) == len(before)
    assert sysfs.read_text(STATUS) == "pmode:0002 fmode:cool", "the fan's word is kept"
    conf, active, live = read_board(sysfs)
    assert active == 2 and switch_to(_mode(sysfs, "MODE_30W"), active, live).kind == "reboot", "shown as waiting"
    _stage(sysfs, "MODE_15W")
    plant.reboot()
    assert differences(sysfs, conf, _mode(sysfs, "MODE_15W"), False) == []


def test_a_staged_mode_is_taken_back_by_entering_one_that_is_live(board: Callable[..., Sysfs]) -> None:
    sysfs = board()
    (sysfs.root / STATUS).unlink()
    _stage(sysfs, "MODE_15W")
    assert sysfs.read_text(STATUS) == "pmode:0001", "nvpmodel had not run"
    _enter(sysfs, "MAXN")
    assert sysfs.read_text(STATUS) == "pmode:0000"


def test_what_cannot_be_staged(board: Callable[..., Sysfs], monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs = board()
    with pytest.raises(PowerError, match="MODE_50W needs no reboot; enter it now: orind power mode MODE_50W"):
        _stage(sysfs, "MODE_50W")
    with monkeypatch.context() as ignored:
        ignored.setattr(Sysfs, "replace_text", lambda *_: None)
        with pytest.raises(PowerError, match="is not staged: /var/lib/nvpmodel/status does not hold"):
            _stage(sysfs, "MODE_30W")
    (sysfs.root / "sys/devices/platform/gpu.0/tpc_pg_mask").unlink()
    with pytest.raises(PowerError, match=r"whether MODE_30W needs a reboot is not known .*; nothing was changed"):
        _stage(sysfs, "MODE_30W")
    assert sysfs.read_text(STATUS) == "pmode:0000 fmode:cool"


AGX_MAX_FREQ = Layout(AGX_ORIN, JETPACKS["6"], 0).max_freq
