"""A policy that contradicts itself, its board, its mode or the cameras is refused with file, line, key and reason."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from test_config import GOOD, write

from orind.daemon import config_file
from orind.daemon.config_file import ConfigError, load, load_power
from orind.power.plant.modules import AGX_ORIN, JETPACKS
from orind.power.plant.tree import Layout, build_tree

READ_ONCE = cache(config_file.load_board)
HEAD = "name: test\nboards: [agx-orin]\nbudget_w: 30\n"
WINDOWS = 'schedule:\n  time_zone: Europe/Berlin\n  windows:\n    - {from: "06:00", to: "22:00", budget_w: 25}\n'
QUIET = "quiet: {budget_w: 20, tj_warn_c: 60, tj_limit_c: 65}\n"


@pytest.fixture(autouse=True)
def boards_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_file, "load_board", READ_ONCE)


def problems(folder: Path, policy: str, board: str = "agx-orin") -> list[str]:
    (folder / "policy.yaml").write_text(policy)
    (folder / "tree").mkdir(exist_ok=True)
    config = load(write(folder, GOOD + f"power: {{board: '{board}', policy: policy.yaml, root: tree}}\n"))
    try:
        load_power(config)
    except ConfigError as error:
        return [problem.removeprefix(f"{folder / 'policy.yaml'}:") for problem in error.problems]
    return []


@pytest.mark.parametrize("more", [
    "gpu_min_mhz: 612\n", "cpu_min_mhz: 1113.6\n", "steady: true\n", WINDOWS, WINDOWS + QUIET,
    "rail_limits_w: {VDD_GPU_SOC: 20}\n", "zone_limits_c: {soc2: 75}\n", "priorities: [line1]\n",
    "ambient:\n  - {ambient_c: 25, budget_w: 30}\n  - {ambient_c: 45, budget_w: 20}\n",
    WINDOWS + '    - {from: "22:00", to: "06:00", quiet: true}\n' + QUIET,
    WINDOWS + '    - {days: [sun], from: "22:00", to: "06:00", budget_w: 20}\n',
])
def test_what_holds_together_is_taken(tmp_path: Path, more: str) -> None:
    assert problems(tmp_path, HEAD + more) == []


@pytest.mark.parametrize(("policy", "board", "refusal"), [
    # budgets
    (HEAD.replace("30", "10.5"), "agx-orin",
     "3: budget_w: 10.5 W is not above the idle power of Jetson AGX Orin 64 GB (10.88 W)"),
    (HEAD.replace("30", "61"), "agx-orin", "3: budget_w: 61 W is above what Jetson AGX Orin 64 GB may draw (60 W)"),
    (HEAD + WINDOWS.replace("25", "9"), "agx-orin",
     "7: schedule.windows[0].budget_w: 9 W is not above the idle power of Jetson AGX Orin 64 GB (10.88 W)"),
    (HEAD + QUIET.replace("20", "40"), "agx-orin",
     "4: quiet.budget_w: 40 W is above budget_w = 30: quiet allows less, never more"),
    (HEAD + "ambient:\n  - {ambient_c: 25, budget_w: 30}\n  - {ambient_c: 45, budget_w: 10}\n", "agx-orin",
     "6: ambient[1].budget_w: 10 W is not above the idle power of Jetson AGX Orin 64 GB (10.88 W)"),
    # lowest clocks
    (HEAD + "gpu_min_mhz: 714\n", "agx-orin:MODE_30W",
     "4: gpu_min_mhz: 714 MHz is above the GPU clock that mode MODE_30W allows (612 MHz)"),
    (HEAD + "gpu_min_mhz: 1020\n", "agx-orin",
     "4: gpu_min_mhz: at 1020 MHz full load needs about 39.2 W, budget_w is 30"),
    (HEAD + WINDOWS.replace("25", "16") + "gpu_min_mhz: 612\n", "agx-orin",
     "8: gpu_min_mhz: at 612 MHz full load needs about 23.9 W, schedule.windows[0].budget_w is 16"),
    (HEAD + "cpu_min_mhz: 1800\n", "agx-orin:MODE_30W",
     "4: cpu_min_mhz: 1800 MHz is above the CPU clock that mode MODE_30W allows (1728 MHz)"),
    # names
    (HEAD + "rail_limits_w:\n  VDD_IN: 20\n", "agx-orin",
     "5: rail_limits_w.VDD_IN: Jetson AGX Orin 64 GB has no rail 'VDD_IN' (rails: VDD_GPU_SOC, VDD_CPU_CV, "
     "VIN_SYS_5V0, VDDQ_VDD2_1V8AO)"),
    (HEAD + "zone_limits_c:\n  attic: 70\n", "agx-orin",
     "5: zone_limits_c.attic: Jetson AGX Orin 64 GB has no zone 'attic' that can always be read (zones: cpu, soc0, "
     "soc1, soc2)"),
    (HEAD + "zone_limits_c:\n  gpu: 70\n", "agx-orin",
     "5: zone_limits_c.gpu: Jetson AGX Orin 64 GB has no zone 'gpu' that can always be read (zones: cpu, soc0, soc1, "
     "soc2)"),
    (HEAD + "priorities:\n  - line1\n  - line9\n", "agx-orin", "6: priorities[1]: no camera 'line9' (cameras: line1)"),
    (HEAD.replace("agx-orin", "orin-nx"), "agx-orin", "2: boards: made for orin-nx, but the board is agx-orin"),
    (HEAD + WINDOWS.replace("Europe/Berlin", "Europe/Bonn"), "agx-orin",
     "5: schedule.time_zone: no time zone 'Europe/Bonn' on this machine (such as Europe/Berlin; package tzdata)"),
    # times and tables
    (HEAD + WINDOWS + '    - {name: late, from: "21:00", to: "23:00", budget_w: 20}\n', "agx-orin",
     "8: schedule.windows[1]: overlaps window 'number 1': which of the two budgets holds?"),
    (HEAD + WINDOWS + '    - {name: night, days: [sun], from: "23:00", to: "07:00", budget_w: 20}\n', "agx-orin",
     "8: schedule.windows[1]: overlaps window 'number 1': which of the two budgets holds?"),
    (HEAD + WINDOWS.replace('"22:00"', "22:00"), "agx-orin",
     '7: schedule.windows[0].to: must be a time of the day in quotes, such as "22:00", not 1320'),
    (HEAD + WINDOWS.replace("budget_w", "days: [someday], budget_w"), "agx-orin",
     "7: schedule.windows[0].days: no day 'someday' (days: mon, tue, wed, thu, fri, sat, sun)"),
    (HEAD + WINDOWS.replace(", budget_w: 25", ""), "agx-orin",
     "7: schedule.windows[0]: needs budget_w, or `quiet: true`, and not both"),
    (HEAD + WINDOWS.replace("budget_w: 25", "quiet: true"), "agx-orin",
     "7: schedule.windows[0].quiet: needs the policy's `quiet` section"),
    (HEAD + "ambient:\n  - {ambient_c: 45, budget_w: 30}\n  - {ambient_c: 25, budget_w: 20}\n", "agx-orin",
     "6: ambient[1].ambient_c: must ascend from row to row, 25 follows 45"),
    (HEAD + "ambient:\n  - {ambient_c: 25, budget_w: 20}\n  - {ambient_c: 45, budget_w: 30}\n", "agx-orin",
     "6: ambient[1].budget_w: rises with the temperature, 30 follows 20"),
    # temperatures
    (HEAD + "tj_limit_c: 99\n", "agx-orin", "4: tj_limit_c: 99 C is not below the module's own throttle at 99 C"),
    (HEAD + QUIET.replace("65", "90"), "agx-orin",
     "4: quiet.tj_limit_c: 90 C is above tj_limit_c = 85: quiet allows less, never more"),
    (HEAD + QUIET.replace("65", "61"), "agx-orin",
     "4: quiet.tj_limit_c: must lie at least 2 C above tj_warn_c: the governor needs room to act in"),
    # steady
    (HEAD + "steady: true\ndwell_ms: 100\n", "agx-orin",
     "5: dwell_ms: contradicts `steady: true`, which does not change between two clocks"),
    (HEAD + "steady: true\ngpu_min_mhz: 510\n", "agx-orin",
     "5: gpu_min_mhz: contradicts `steady: true`, whose lowest clock is its highest"),
    (HEAD + "steady: 1\n", "agx-orin", "4: steady: must be true or false, not 1"),
    # what the steward cannot be told
    (HEAD + "priorities: [line1]\n" + WINDOWS + "".join(
        f'    - {{name: "{chr(0x1f600) * 150}{n}", from: "00:{n:02}", to: "00:{n + 1:02}", budget_w: 20}}\n'
        for n in range(10)), "agx-orin",
     "1: as JSON it has 18818 bytes, at most 16384 reach the governor: shorten names and lists"),
    (HEAD + "rail_limits_w: {}\n", "agx-orin", "4: rail_limits_w: must be a mapping of names to numbers"),
])
def test_a_contradiction_is_refused_with_its_line(tmp_path: Path, policy: str, board: str, refusal: str) -> None:
    assert problems(tmp_path, policy, board) == [refusal]


def test_the_active_mode_counts_where_none_is_named(tmp_path: Path) -> None:
    status = tmp_path / "tree/var/lib/nvpmodel/status"
    status.parent.mkdir(parents=True)
    status.write_text("pmode:0002 fmode:quiet\n")
    assert problems(tmp_path, HEAD + "gpu_min_mhz: 714\n") == [
        "4: gpu_min_mhz: 714 MHz is above the GPU clock that mode MODE_30W allows (612 MHz)"]
    status.write_text("pmode:0009 fmode:quiet\n")
    assert problems(tmp_path, HEAD + "gpu_min_mhz: 714\n") == []
    assert problems(tmp_path, HEAD + "gpu_min_mhz: 714\n", "agx-orin:MODE_50W") == []
    found = problems(tmp_path, HEAD, "agx-orin:MODE_60W")
    assert len(found) == 1 and found[0].startswith("power.board: Jetson AGX Orin 64 GB has no mode 'MODE_60W'")


def test_a_root_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(HEAD)
    config = load(write(tmp_path, GOOD + "power: {board: agx-orin, policy: policy.yaml, root: nowhere}\n"))
    with pytest.raises(ConfigError) as refused:
        load_power(config)
    assert refused.value.problems == [f"power.root: {tmp_path}/nowhere: no such folder"]


def test_a_fan_profile_must_be_one_of_the_board_s(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    build_tree(tree, Layout(AGX_ORIN, JETPACKS["6"], 0))
    silent = QUIET.replace("{", "{fan_profile: silent, ")
    assert problems(tmp_path, HEAD + QUIET) == []
    assert problems(tmp_path, HEAD + silent) == [
        "4: quiet.fan_profile: the board's nvfancontrol.conf has no profile 'silent' (profiles: cool, quiet)"]
    conf = tree / "etc/nvfancontrol.conf"
    conf.write_text(conf.read_text().replace("quiet", "hushed"))
    assert problems(tmp_path, HEAD + QUIET) == [], "none was asked for"
    (tree / "etc/nvfancontrol.conf").write_text("another grammar\n")
    assert problems(tmp_path, HEAD + silent) == []
    (tree / "etc/nvfancontrol.conf").unlink()
    assert problems(tmp_path, HEAD + silent) == []


def test_a_mode_s_caps_are_those_of_the_board_s_own_conf(tmp_path: Path) -> None:
    """An integrator's conf, in which id 2 is another mode than NVIDIA's."""
    tree = tmp_path / "tree"
    build_tree(tree, Layout(AGX_ORIN, JETPACKS["6"], 0))
    conf, status = tree / "etc/nvpmodel.conf", tree / "var/lib/nvpmodel/status"
    status.write_text("pmode:0002 fmode:quiet\n")
    (tree / Layout(AGX_ORIN, JETPACKS["6"], 0).gpu / "tpc_pg_mask").write_text("240\n")
    text = conf.read_text()
    assert "GPU MAX_FREQ 612000000" in text
    conf.write_text(text.replace("GPU MAX_FREQ 612000000", "GPU MAX_FREQ 510000000"))
    refusal = ["4: gpu_min_mhz: 612 MHz is above the GPU clock that mode MODE_30W allows (510 MHz)"]
    assert problems(tmp_path, HEAD + "gpu_min_mhz: 612\n") == refusal
    assert problems(tmp_path, HEAD + "gpu_min_mhz: 612\n", "agx-orin:MODE_30W") == refusal
    conf.write_text(text.replace("GPU MAX_FREQ 612000000", "GPU MAX_FREQ 714000000"))
    assert problems(tmp_path, HEAD + "gpu_min_mhz: 714\n") == []
    conf.write_text("nonsense\n")
    assert problems(tmp_path, HEAD + "gpu_min_mhz: 714\n") == [
        "4: gpu_min_mhz: 714 MHz is above the GPU clock that mode MODE_30W allows (612 MHz)"], "all that is left"
