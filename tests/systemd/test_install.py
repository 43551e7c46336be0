"""scripts/install into a scratch root: complete, idempotent, verified by systemd itself, and honest refusals."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[2]
INSTALL = HOUSE / "scripts" / "install"
PYTHON = next((p for p in ("/usr/bin/python3", shutil.which("python3")) if p and Path(p).exists()), "")


def _install(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(INSTALL), *arguments], capture_output=True, text=True, check=False, timeout=120)


def _files(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and link with its mode and content; byte code carries time stamps and is left out."""
    return {str(p.relative_to(root)): (p.lstat().st_mode, bytes(p.readlink()) if p.is_symlink() else p.read_bytes())
            for p in sorted(root.rglob("*")) if (p.is_symlink() or p.is_file()) and p.suffix != ".pyc"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scratch") / "root"
    done = _install("--root", str(root), "--no-dependencies", "--python", PYTHON)
    assert done.returncode == 0, done.stderr
    return root


def test_everything_is_there(root: Path) -> None:
    site = next((root / "opt/orind/lib").glob("python3.*")) / "site-packages"
    for path in ("etc/systemd/system/orind.service", "etc/systemd/system/orind.socket",
                 "etc/systemd/system/orind-power.service", "etc/systemd/system/orind-power.socket",
                 "etc/sysusers.d/orind.conf", "etc/udev/rules.d/70-orind.rules",
                 "opt/orind/bin/orind", "opt/orind/share/doc/orind/install.md"):
        assert (root / path).is_file(), path
    for part in ("daemon", "ipc", "kernels", "power", "configs/boards"):
        assert (site / "orind" / part).is_dir(), part
    assert not (site / "orind" / "tests").exists() and not (site / "orind.new").exists()
    assert re.search(r"^orind:x:\d+:", (root / "etc/passwd").read_text(), re.MULTILINE)
    assert os.access(root / "opt/orind/bin/orind", os.X_OK)


def test_no_path_of_the_scratch_root_is_left(root: Path) -> None:
    named = [name for name, (_, data) in _files(root).items() if str(root).encode() in data]
    assert named == []


def test_the_installed_package_runs(root: Path) -> None:
    code = "import orind.power.sensors as s, importlib.metadata as m; print(m.version('orind'), s.__file__)"
    done = subprocess.run([str(root / "opt/orind/bin/python"), "-I", "-c", code], capture_output=True, text=True,
                          check=True, cwd="/")
    version, file = done.stdout.split()
    assert version == re.findall(r"^version = (.+)$", (HOUSE / "setup.cfg").read_text(), re.MULTILINE)[0]
    assert file.startswith(str(root / "opt/orind/lib"))


def test_systemd_accepts_the_unit(root: Path, tmp_path: Path) -> None:
    # systemd-analyze looks for programs at their real place: the copy names the scratch root instead
    unit = tmp_path / "orind.service"
    unit.write_text((root / "etc/systemd/system/orind.service").read_text().replace("=/opt/orind",
                                                                                     f"={root}/opt/orind"))
    socket = shutil.copy(root / "etc/systemd/system/orind.socket", tmp_path)
    helper = tmp_path / "orind-power.service"
    helper.write_text((root / "etc/systemd/system/orind-power.service").read_text().replace("=/opt/orind",
                                                                                            f"={root}/opt/orind"))
    power = shutil.copy(root / "etc/systemd/system/orind-power.socket", tmp_path)
    units = [str(path) for path in (unit, socket, helper, power)]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    unit.write_text(unit.read_text().replace("orind/bin/orind serve", "orind/bin/absent serve"))
    assert subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True,
                          check=False).returncode != 0, "the check would see a missing program"


def test_systemd_knows_every_setting(root: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(root / "etc/systemd/system/orind.service")],
                          capture_output=True, text=True, check=False)
    assert "Unknown" not in done.stderr and "Failed to parse" not in done.stderr


def test_again_changes_nothing_and_keeps_the_configuration(root: Path) -> None:
    config = root / "etc/orind/orind.yaml"
    assert config.read_text() == (HOUSE / "configs" / "orind.yaml").read_text()
    policies = {p.name for p in (HOUSE / "configs" / "power").glob("*.yaml")}
    assert {p.name for p in (root / "etc/orind/power").iterdir()} == policies
    config.write_text("# the operator's own\n")
    before = _files(root)
    done = _install("--root", str(root), "--no-dependencies", "--python", PYTHON)
    assert done.returncode == 0 and f"kept {config}" in done.stdout
    assert _files(root) == before


def test_notify_reload_only_for_a_systemd_that_knows_it(root: Path) -> None:
    first = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    drop_in = root / "etc/systemd/system/orind.service.d/notify-reload.conf"
    assert drop_in.exists() == (int(re.findall(r"\d+", first)[0]) >= 253)


def test_dry_run_touches_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    done = _install("--root", str(root), "--no-dependencies", "--dry-run", "--python", PYTHON)
    assert done.returncode == 0 and not root.exists()
    assert f"would run: {PYTHON} -m venv --without-pip {root}/opt/orind" in done.stdout
    assert f"would write: {root}/opt/orind/bin/orind" in done.stdout and "nothing was changed" in done.stdout


def test_dry_run_shows_every_step_and_warns_of_what_is_missing(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {PYTHON} -S "$@"\n')  # -S: without the distribution's packages
    bare.chmod(0o755)
    for arguments in (["--root", str(tmp_path / "root")], []):
        done = _install("--dry-run", "--python", str(bare), *arguments)
        assert done.returncode == 0, done.stderr
        assert f"warning: python3-systemd is missing for {bare}: apt-get install python3-systemd" in done.stderr
        assert "would run: ln -sfn /usr/lib/python3/dist-packages/systemd " in done.stdout
        assert "bin/orind" in done.stdout and done.stdout.endswith("== nothing was changed\n")
    assert not (tmp_path / "root").exists()
    refused = _install("--root", str(tmp_path / "root"), "--python", str(bare))
    assert refused.returncode == 1 and "install: python3-systemd is missing" in refused.stderr


@pytest.mark.parametrize(("arguments", "code", "text"), [
    (["--roto"], 2, "unknown argument: --roto"), (["--root"], 2, "--root needs a directory"),
    (["--python"], 2, "--python needs a path"),
    (["--dry-run", "--python", "/absent/python3"], 1, "no interpreter at /absent/python3"),
    (["--dry-run", "--python", "/bin/false"], 1, "is not Python 3.10 to 3.12"),
])
def test_refusals(arguments: list[str], code: int, text: str) -> None:
    done = _install(*arguments)
    assert done.returncode == code and text in done.stderr


def test_help() -> None:
    done = _install("--help")
    assert done.returncode == 0 and "example: sudo scripts/install" in done.stdout


def _lock_lines() -> list[str]:
    lines = (HOUSE / "configs" / "constraints-board.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_every_package_of_the_board_is_exact_and_hashed() -> None:
    packages: dict[str, int] = {}
    name = ""
    for line in _lock_lines():
        head = re.fullmatch(r'([a-z0-9-]+)==[0-9.]+(?: ; python_version == "3\.1[0-2]"(?: or [^\\]+)?)? \\', line)
        if head:
            name = head[1]
            packages.setdefault(name, 0)
        else:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?", line), line
            packages[name] += 1
    assert min(packages.values()) >= 1
    # compiled ones: a file for each of three Pythons and two machines
    assert all(packages[p] == 6 for p in ("numpy", "pyyaml", "pydantic-core"))
    required = re.findall(r"^    ([A-Za-z-]+)[><=]", (HOUSE / "setup.cfg").read_text().split("install_requires =")[1]
                          .split("[options.extras_require]")[0], re.MULTILINE)
    assert {r.lower() for r in required} <= set(packages)


def test_no_registry_is_named() -> None:
    for path in (INSTALL, HOUSE / "scripts" / "lock_board", HOUSE / "configs" / "constraints-board.txt",
                 HOUSE / "docs" / "install.md", *(HOUSE / "systemd").rglob("*.*")):
        if path.is_file():
            assert not re.search(r"https?://|index-url", path.read_text()), path
