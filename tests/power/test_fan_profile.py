"""The fan's profile, and the board's own files that it and nvpmodel's staging write."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orind.power import fan_profile
from orind.power.errors import PowerError, SysfsError
from orind.power.fan_profile import CONF, STATUS, active, choose, profiles, shown
from orind.power.plant.modules import JETPACKS, ORIN_NX_SUPER
from orind.power.plant.tree import PROGRAMS, Layout, build_tree
from orind.power.sysfs import ONLINE, Sysfs


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    build_tree(tmp_path / "board", Layout(ORIN_NX_SUPER, JETPACKS["6"], 0))
    return Sysfs(tmp_path / "board")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_profile, "SETTLED_S", 0.3)


def _fan_turns(sysfs: Sysfs) -> bool:
    return not (sysfs.root / ".nvfancontrol-stopped").exists()


def _program(sysfs: Sysfs, name: str, script: str) -> None:
    (sysfs.root / PROGRAMS[name]).write_text(f"#!/bin/sh\n{script}\n")


def test_profiles_are_those_of_the_file_and_one_is_chosen(sysfs: Sysfs) -> None:
    assert profiles(sysfs) == ["quiet", "cool"] and active(sysfs) == "quiet"
    before = (sysfs.root / CONF).read_text()
    choose(sysfs, "cool")
    assert active(sysfs) == "cool"
    assert (sysfs.root / CONF).read_text() == before.replace("FAN_DEFAULT_PROFILE quiet", "FAN_DEFAULT_PROFILE cool")


def test_the_status_file_shows_the_active_one(sysfs: Sysfs) -> None:
    assert shown(sysfs) == "quiet"
    choose(sysfs, "cool")
    assert shown(sysfs) == "cool"
    (sysfs.root / STATUS).write_text("another form\n")
    assert shown(sysfs) is None
    (sysfs.root / STATUS).unlink()
    assert shown(sysfs) is None


def test_without_a_default_to_set_nothing_is_touched(sysfs: Sysfs) -> None:
    conf = sysfs.root / CONF
    conf.write_text(conf.read_text().replace("FAN_DEFAULT_PROFILE", "FAN_PROFILE_OF_OLD"))
    _program(sysfs, "systemctl", "exit 9")
    with pytest.raises(PowerError, match=r"has no FAN_DEFAULT_PROFILE, .*; nothing was changed"):
        choose(sysfs, "cool")


def test_a_service_that_cannot_be_stopped_keeps_its_file(sysfs: Sysfs) -> None:
    before = (sysfs.root / CONF).read_text()
    _program(sysfs, "systemctl", "echo Access denied; exit 4")
    with pytest.raises(PowerError, match=r"systemctl stop nvfancontrol.service failed \(ended with 4 and said: Access"
                       r".*; then systemctl start .* the fan may stand at its last speed"):
        choose(sysfs, "cool")
    assert (sysfs.root / CONF).read_text() == before


def test_a_stop_that_takes_too_long_is_followed_by_a_start(sysfs: Sysfs, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd's job goes on when systemctl is killed."""
    monkeypatch.setattr(fan_profile, "TIMEOUT_S", 0.3)
    log = sysfs.root / "log"
    before = (sysfs.root / CONF).read_text()
    _program(sysfs, "systemctl", f'echo $1 >>{log}; [ "$1" != stop ] || exec sleep 60')
    with pytest.raises(PowerError, match=r"systemctl stop nvfancontrol.service failed \(was killed after 0.3 s\)$"):
        choose(sysfs, "cool")
    assert log.read_text().split() == ["stop", "start"] and (sysfs.root / CONF).read_text() == before


def test_the_active_profile_again_costs_no_restart(sysfs: Sysfs) -> None:
    real = (sysfs.root / PROGRAMS["systemctl"]).read_text()
    _program(sysfs, "systemctl", '[ "$1" = is-active ]')
    choose(sysfs, "quiet")
    (sysfs.root / PROGRAMS["systemctl"]).write_text(real)
    choose(sysfs, "cool")
    (sysfs.root / ".nvfancontrol-stopped").touch()
    choose(sysfs, "cool")
    assert _fan_turns(sysfs), "the status file outlives the service"


def test_many_requests_in_a_row_leave_the_fan_turning(sysfs: Sysfs) -> None:
    """systemd refuses the sixth start within 10 s, which the board's systemctl does too."""
    for profile in ("cool", "quiet") * 4:
        choose(sysfs, profile)
        assert active(sysfs) == profile and _fan_turns(sysfs)


def test_a_service_that_writes_its_status_late_is_waited_for(sysfs: Sysfs) -> None:
    (sysfs.root / ".nvfancontrol-slow").write_text("0.3")
    choose(sysfs, "cool")
    assert active(sysfs) == "cool" and "FAN_DEFAULT_PROFILE cool" in (sysfs.root / CONF).read_text()


def test_one_that_is_too_late_goes_back_with_its_file(sysfs: Sysfs, impatient: None) -> None:
    before, slow = (sysfs.root / CONF).read_text(), sysfs.root / ".nvfancontrol-slow"
    slow.write_text("1")
    with pytest.raises(PowerError, match=r"nvfancontrol runs with profile None, not cool.*; the file is as it was$"):
        choose(sysfs, "cool")
    end_s = time.monotonic() + 30
    while active(sysfs) is None and time.monotonic() < end_s:
        time.sleep(0.05)
    assert active(sysfs) == "quiet" and _fan_turns(sysfs) and (sysfs.root / CONF).read_text() == before


def test_a_profile_that_is_not_taken_is_detected_and_the_file_is_as_it_was(sysfs: Sysfs, impatient: None) -> None:
    before = (sysfs.root / CONF).read_text()
    log = sysfs.root / "log"
    _program(sysfs, "systemctl", f"echo $1 >>{log}")
    with pytest.raises(PowerError, match="nvfancontrol runs with profile None, not cool"):
        choose(sysfs, "cool")
    assert (sysfs.root / CONF).read_text() == before and not sysfs.exists(STATUS)
    assert log.read_text().split() == ["stop", "start"] * 2, "once with the new file, once with the old one"


def test_the_service_is_started_again_whatever_happened(sysfs: Sysfs, monkeypatch: pytest.MonkeyPatch) -> None:
    log = sysfs.root / "log"
    _program(sysfs, "systemctl", f"echo $1 >>{log}")
    failures: list[BaseException] = [SysfsError(CONF, "cannot be written: ENOSPC"), KeyboardInterrupt()]

    def fail(*_: object) -> None:
        raise failures[0]

    monkeypatch.setattr(Sysfs, "replace_text", fail)
    with pytest.raises(SysfsError, match="ENOSPC"):
        choose(sysfs, "cool")
    del failures[0]
    with pytest.raises(KeyboardInterrupt):
        choose(sysfs, "cool")
    assert log.read_text().split() == ["stop", "start"] * 2


def test_a_file_keeps_every_byte_that_is_not_text(sysfs: Sysfs) -> None:
    conf = sysfs.root / CONF
    before = conf.read_bytes() + b"# 25 \xb0C, Latin-1\n"
    conf.write_bytes(before)
    choose(sysfs, "cool")
    assert conf.read_bytes() == before.replace(b"FAN_DEFAULT_PROFILE quiet", b"FAN_DEFAULT_PROFILE cool")


def test_a_file_that_cannot_be_read_whole_is_left_alone(sysfs: Sysfs) -> None:
    conf = sysfs.root / CONF
    before = conf.read_bytes() + b"#" * 70_000
    conf.write_bytes(before)
    with pytest.raises(SysfsError, match="more than 65535 bytes"):
        profiles(sysfs)
    with pytest.raises(SysfsError, match="more than 65535 bytes"):
        choose(sysfs, "cool")
    assert conf.read_bytes() == before and active(sysfs) == "quiet"


@pytest.mark.parametrize("broken", ["start", "query", "status", "second stop"])
def test_whatever_fails_on_the_way_the_file_is_as_it_was(sysfs: Sysfs, broken: str, impatient: None) -> None:
    before = (sysfs.root / CONF).read_text()
    if broken == "start":
        _program(sysfs, "systemctl", '[ "$1" = stop ] || exit 5')
    elif broken == "query":
        _program(sysfs, "nvfancontrol", 'rm "$0"; echo FAN1:FAN_PROFILE:quiet')
        _program(sysfs, "systemctl", "exit 0")
    elif broken == "status":
        (sysfs.root / STATUS).unlink()
        (sysfs.root / STATUS).mkdir()
    else:
        _program(sysfs, "systemctl", '[ "$1" != stop ] || mkdir "$0.once"')
    with pytest.raises(PowerError) as caught:
        choose(sysfs, "cool")
    assert (sysfs.root / CONF).read_text() == before and "nothing was changed" not in str(caught.value)
    assert ("; going back: " in str(caught.value)) == (broken != "query")


def test_without_a_place_for_output_a_program_is_not_run(sysfs: Sysfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(sysfs.root / "absent"))
    with pytest.raises(PowerError, match="nvfancontrol cannot be run: No such file or directory"):
        active(sysfs)


# -- the files -----------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_behind_its_link_with_its_mode(tmp_path: Path) -> None:
    sysfs, real = Sysfs(tmp_path), tmp_path / "nvpower/real.conf"
    real.parent.mkdir()
    real.write_text("old\n")
    real.chmod(0o640)
    (tmp_path / "link.conf").symlink_to("nvpower/real.conf")
    sysfs.replace_text("link.conf", "new\n")
    assert (tmp_path / "link.conf").is_symlink()
    assert real.read_text() == "new\n" and real.stat().st_mode & 0o777 == 0o640
    sysfs.replace_text("nvpower/fresh", "made\n")
    assert (tmp_path / "nvpower/fresh").stat().st_mode & 0o777 == 0o644
    assert {p.name for p in real.parent.iterdir()} == {"real.conf", "fresh"}, "nothing is left beside them"


def test_what_cannot_be_replaced_or_removed_is_named(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    with pytest.raises(SysfsError, match="/absent/file: cannot be written: ENOENT"):
        sysfs.replace_text("absent/file", "x")
    (tmp_path / "folder/inner").mkdir(parents=True)
    with pytest.raises(SysfsError, match="/folder: cannot be written: "):
        sysfs.replace_text("folder", "x")
    assert {p.name for p in tmp_path.iterdir()} == {"folder"}
    with pytest.raises(SysfsError, match="/folder: cannot be removed: "):
        sysfs.remove("folder")
    sysfs.remove("absent")


@pytest.mark.parametrize(("text", "cpus"), [("0-3", (0, 1, 2, 3)), ("0,2-3,7", (0, 2, 3, 7)), ("0", (0,))])
def test_the_list_of_cpus(tmp_path: Path, text: str, cpus: tuple[int, ...]) -> None:
    (tmp_path / ONLINE).parent.mkdir(parents=True)
    (tmp_path / ONLINE).write_text(f"{text}\n")
    assert Sysfs(tmp_path).read_online() == cpus


@pytest.mark.parametrize("text", ["0-", "a", "0,,1", "-3", "0-9999", "1-2-3", ""])
def test_a_list_of_cpus_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ONLINE).parent.mkdir(parents=True)
    (tmp_path / ONLINE).write_text(f"{text}\n")
    with pytest.raises(SysfsError):
        Sysfs(tmp_path).read_online()
