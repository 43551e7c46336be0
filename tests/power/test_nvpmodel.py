"""nvpmodel.conf: a plant's file says what configs/boards says, oddities are taken, every mistake has its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from closed_loop import facts_of

from orind.power.errors import ConfError, SysfsError
from orind.power.nvpmodel import BYTES_MAX, Conf, ConfMode, Masks, parse, read_board, read_conf, switch_to
from orind.power.plant.modules import AGX_ORIN, JETPACKS, MODULES, ORIN_NANO_8_SUPER, ORIN_NX_SUPER, Module
from orind.power.plant.tree import Layout, build_tree
from orind.power.sysfs import Sysfs

# the form of NVIDIA's files, oddities included: EMC as a FILE, without a blank, 0 for no cap; gaps between ids; a fan
SMALL = """\
# \N{COPYRIGHT SIGN} a comment that is not ASCII
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_0 /cpu0/online
CORE_1 /cpu1/online
< PARAM TYPE=FILE NAME=TPC_POWER_GATING >
TPC_PG_MASK /old/tpc_pg_mask
TPC_PG_MASK_KNEXT /new/tpc_pg_mask
< PARAM TYPE=CLOCK NAME=CPU_A78_0 >
MAX_FREQ /cpu0/max
< PARAM TYPE=CLOCK NAME=CPU_A78_1 >
MAX_FREQ /cpu4/max
< PARAM TYPE=CLOCK NAME=GPU >
MAX_FREQ /gpu/max
MIN_FREQ /gpu/min
<PARAM TYPE=FILE NAME=EMC >
MAX_FREQ /emc/cap

< POWER_MODEL ID=0 NAME=MAXN >
CPU_ONLINE CORE_0 1
CPU_ONLINE CORE_1 1
TPC_POWER_GATING TPC_PG_MASK 0
CPU_A78_0 MAX_FREQ -1
GPU MIN_FREQ 0
GPU MAX_FREQ -1
EMC MAX_FREQ 0
< POWER_MODEL ID=7 NAME=MODE_7W >
CPU_ONLINE CORE_0 1
CPU_ONLINE CORE_1 0
CPU_A78_0 MAX_FREQ 1113600
CPU_A78_1 MAX_FREQ 960000
GPU MAX_FREQ 408000000
EMC MAX_FREQ 2133000000
< PM_CONFIG DEFAULT=7 >
< FAN_CONFIG DEFAULT=quiet >
"""
MAXN = ConfMode(0, "MAXN", (0, 1), None, None, None, 0, None)
LOW = ConfMode(7, "MODE_7W", (0,), 960_000, 408_000_000, 2_133_000_000, None, None)


def _parse(text: str) -> Conf:
    return parse(text, Path("f"))


def _problems(text: str) -> list[str]:
    with pytest.raises(ConfError) as refused:
        _parse(text)
    return refused.value.lines()


def _board(root: Path, module: Module, jetpack: str = "6") -> Sysfs:
    build_tree(root, Layout(module, JETPACKS[jetpack], 0))
    return Sysfs(root)


@pytest.mark.parametrize("jetpack", sorted(JETPACKS))
@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_file_of_every_shipped_module_says_what_its_facts_say(tmp_path: Path, name: str, jetpack: str) -> None:
    conf, active, live = read_board(_board(tmp_path / "board", MODULES[name], jetpack))
    facts = facts_of(name)
    seen = [(m.id, m.name, len(m.cpus), m.cpu_max_khz, m.gpu_max_hz, m.emc_max_hz, m.tpc_pg_mask) for m in conf.modes]
    assert seen == [(m.id, m.name, m.cpus, m.cpu_max_khz, m.gpu_max_hz, m.emc_max_hz, m.tpc_pg_mask)
                    for m in facts.modes]
    assert active is not None
    now, default = conf.mode(active), conf.mode(conf.default)
    assert now is not None and default is not None
    assert (now.cpu_max_khz, now.gpu_max_hz, now.emc_max_hz) == (None, None, None), "a plant starts without a cap"
    assert live == Masks(now.tpc_pg_mask, now.fbp_pg_mask), "read from the paths that the file names"
    assert switch_to(now, active, live).kind == "active"
    for (_, argument), path in conf.paths.items():
        assert argument.endswith("_KNEXT") or (tmp_path / "board" / path[1:]).exists(), path


@pytest.mark.parametrize(("module", "live", "reboot"), [
    (AGX_ORIN, {"MODE_50W"}, {"MODE_15W", "MODE_30W"}), (ORIN_NX_SUPER, {"25W", "40W"}, {"10W", "15W"}),
    (ORIN_NANO_8_SUPER, {"15W", "25W"}, {"7W"})])
def test_published_pairs_of_live_and_reboot(tmp_path: Path, module: Module, live: set[str], reboot: set[str]) -> None:
    conf, active, masks = read_board(_board(tmp_path / "board", module))
    kinds = {m.name: switch_to(m, active, masks).kind for m in conf.modes}
    assert {name for name, kind in kinds.items() if kind == "live"} == live
    assert {name for name, kind in kinds.items() if kind == "reboot"} == reboot


def test_masks_decide_what_needs_a_reboot() -> None:
    gated = ConfMode(1, "low", (0,), None, None, None, 252, 2)
    assert str(switch_to(gated, 0, Masks(240, 2)).reason) == "TPC mask 240 -> 252"
    assert switch_to(gated, 0, Masks(252, 0)).reason == "FBP mask 0 -> 2"
    assert switch_to(gated, 0, Masks(252, 2)).kind == "live"
    assert switch_to(gated, 1, Masks(240, 2)).kind == "reboot", "staged: active by the status file, not by the masks"
    unknown = switch_to(gated, 0, Masks(252, None))
    assert (unknown.kind, unknown.reason) == ("unknown", "the live FBP mask cannot be read")
    assert switch_to(gated, 0, Masks(240, None)).kind == "reboot", "one that differs is enough"
    assert switch_to(LOW, 0, Masks(None, None)).kind == "live", "it sets no mask"


def test_oddities_of_real_files_are_taken() -> None:
    conf = _parse(SMALL)
    assert conf.modes == (MAXN, LOW) and conf.default == 7
    assert conf.mode("MODE_7W") == conf.mode(7) == LOW and conf.mode("7") is None and conf.mode(1) is None


def test_masks_are_read_under_either_kernel_s_path(tmp_path: Path) -> None:
    conf, sysfs = _parse(SMALL), Sysfs(tmp_path)
    assert conf.read_masks(sysfs) == Masks(None, None)
    (tmp_path / "new").mkdir()
    (tmp_path / "new/tpc_pg_mask").write_text("240\n")
    assert conf.read_masks(sysfs) == Masks(240, None)


@pytest.mark.parametrize(("old", "new", "said"), [
    ("< PM_CONFIG DEFAULT=7 >\n", "", "f: has no line < PM_CONFIG DEFAULT=ID >, which nvpmodel demands"),
    ("DEFAULT=7", "DEFAULT=3", "f:33: DEFAULT=3 is no mode of this file"),
    ("< FAN", "< PM_CONFIG DEFAULT=0 >\n< FAN", "f:34: a second PM_CONFIG; the first is in line 33"),
    ("NAME=MAXN >", "NAME=MAXN", "f:18: '< POWER_MODEL ID=0 NAME=MAXN' opens a section but does not end with '>'"),
    ("< FAN_CONFIG", "< FUN_CONFIG", "f:34: unknown section 'FUN_CONFIG' (known: PARAM, POWER_MODEL, PM_CONFIG, FA"),
    ("ID=0 NAME=MAXN", "NAME=MAXN", "f:18: POWER_MODEL takes ID= and NAME="),
    ("ID=0 NAME=MAXN", "ID=0 ID=0 NAME=MAXN", "f:18: POWER_MODEL takes ID= and NAME="),
    ("ID=0", "ID=", "f:18: POWER_MODEL: a value is empty"),
    ("NAME=MAXN", "NAME=\x1b[2J", "f:18: '\\x1b[2J' is no name: letters, digits"),
    ("ID=0", "ID=-1", "f:18: '-1' is no id: a whole number from 0 to 9999"),
    ("ID=7", "ID=0", "f:26: POWER_MODEL ID=0 is there twice; the first is in line 18"),
    ("MODE_7W", "MAXN", "f:26: POWER_MODEL NAME=MAXN is there twice; the first is in line 18"),
    ("TYPE=CLOCK NAME=GPU", "TYPE=KLOCK NAME=GPU", "f:12: PARAM GPU: TYPE is FILE or CLOCK, not KLOCK"),
    ("NAME=CPU_A78_1", "NAME=CPU_A78_0", "f:10: PARAM CPU_A78_0 is there twice"),
    ("MIN_FREQ /gpu", "MAX_FREQ /gpu", "f:14: PARAM GPU: 'MAX_FREQ' is there twice"),
    ("/gpu/max", "gpu/max", "f:13: PARAM GPU takes lines ARG /PATH, not 'MAX_FREQ gpu/max'"),
    ("/gpu/max", "/gpu/../max", "f:13: PARAM GPU takes lines ARG /PATH, not 'MAX_FREQ /gpu/../max'"),
    ("< PARAM TYPE=FILE NAME=CPU", "stray 1\n< PARAM TYPE=FILE NAME=CPU", "f:2: 'stray 1' stands in no PARAM and no"),
    ("GPU MAX_FREQ -1", "GPU MAX_FREQ", "f:24: a mode takes lines PARAM ARG VALUE, not 'GPU MAX_FREQ'"),
    ("GPU MAX_FREQ -1", "GPU TOP_FREQ -1", "f:24: no PARAM above has GPU 'TOP_FREQ'"),
    ("GPU MIN_FREQ 0", "GPU MAX_FREQ 0", "f:24: GPU MAX_FREQ is there twice; the first is in line 23"),
    ("GPU MAX_FREQ -1", "GPU MAX_FREQ 1e9", "f:24: GPU MAX_FREQ: a clock is a whole number or -1 (no cap), not '1e9'"),
    ("GPU MAX_FREQ -1", "GPU MAX_FREQ 0", "f:24: GPU MAX_FREQ: a cap is a whole number above 0 or -1, not '0'"),
    ("EMC MAX_FREQ 0", "EMC MAX_FREQ x", "f:25: EMC MAX_FREQ: a cap is a whole number above 0 or -1, not 'x'"),
    ("TPC_PG_MASK 0", "TPC_PG_MASK 65536", "f:21: TPC_POWER_GATING TPC_PG_MASK: a mask is a whole number from 0 to"),
    ("CORE_1 0", "CORE_1 off", "f:28: CPU_ONLINE takes CORE_n 0 or 1, not 'CORE_1' 'off'"),
    ("CORE_0 1\nCPU_ONLINE CORE_1 0", "CORE_0 0\nCPU_ONLINE CORE_1 0", "f:26: mode MODE_7W has no CPU online")])
def test_a_mistake_is_named_with_its_line(old: str, new: str, said: str) -> None:
    assert old in SMALL
    problems = _problems(SMALL.replace(old, new, 1))
    assert any(problem.startswith(said) for problem in problems), problems


def test_all_mistakes_are_named_and_the_lines_of_a_refused_section_are_not() -> None:
    text = SMALL.replace("ID=7", "ID=x").replace("DEFAULT=7", "DEFAULT=0").replace("EMC MAX_FREQ 0", "EMC MAX_FREQ")
    assert _problems(text) == ["f:25: a mode takes lines PARAM ARG VALUE, not 'EMC MAX_FREQ'",
                               "f:26: 'x' is no id: a whole number from 0 to 9999"]
    assert len(_problems("")) == 2


def test_the_file_is_bounded_and_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SysfsError, match="ENOENT"):
        read_conf(Sysfs(tmp_path))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nvpmodel.conf").write_text("#" * (BYTES_MAX + 1))
    with pytest.raises(ConfError, match="has more than 65535 bytes"):
        read_conf(Sysfs(tmp_path))
