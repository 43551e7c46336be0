"""The house rules of CONTRIBUTING.md that a machine can hold: imports, length of files, one door to each device."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("daemon", "ipc", "kernels", "power")
MAY_IMPORT = {"daemon": set(PACKAGES), "ipc": {"ipc"}, "kernels": {"kernels"}, "power": {"power"}}
LINES_MAX = 300
FILES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
# what an engine process imports must start in a tenth of a second on a board
ENGINE_FORBIDDEN = {"zmq", "yaml", "pydantic", "onnx", "prometheus_client"}
BUILD_ONLY = ("importer", "passes", "quant", "report")


def module_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(path: Path) -> set[str]:
    """Every module that a file imports anywhere, ours as `package.module` without the leading `orind`."""
    found: set[str] = set()
    here = module_of(path)
    package = here if path.name == "__init__.py" else here[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{name}.{alias.name}" if name else alias.name for alias in node.names} | {name}
    return {name.removeprefix("orind.") for name in found if name}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows_run_from_the_daemon_and_never_back(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    ours = {name.split(".")[0] for name in imports(path)} & set(PACKAGES)
    assert ours <= MAY_IMPORT[package]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short_and_say_what_they_are_for(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LINES_MAX
    assert not text or ast.get_docstring(ast.parse(text)), "a module opens with what it is for"


def test_one_door_to_sysfs() -> None:
    """/sys is opened in power/sysfs.py; the simulated board writes a tree of the same form elsewhere."""
    text = re.compile(r"sys/(class|devices|bus|firmware|kernel)\b|proc/device-tree|nv_tegra_release")
    users = {str(p.relative_to(ROOT)) for p in FILES if text.search(p.read_text())}
    assert "power/sysfs.py" in users, "the pattern must find what it is meant for"
    assert {u for u in users if not u.startswith("power/plant/")} == {"power/sysfs.py"}


def test_one_door_to_the_wall_clock() -> None:
    text = re.compile(r"\btime\.(time|time_ns|localtime|gmtime|strftime)\(|datetime\.")
    users = {str(p.relative_to(ROOT)) for p in FILES if text.search(p.read_text())}
    assert users <= {"ipc/clock.py"}


def test_engines_import_nothing_slow() -> None:
    """Follow the imports of an engine process through our own modules."""
    by_module = {".".join(module_of(p)): p for p in FILES}
    waiting, seen, foreign = ["daemon.engine"], set(), set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in by_module:
            continue
        seen.add(name)
        for found in imports(by_module[name]):
            foreign.add(found.split(".")[0])
            waiting += [found, found.rpartition(".")[0]]
    assert {"kernels.model", "ipc.slots", "daemon.engine_loop"} <= seen
    assert not foreign & ENGINE_FORBIDDEN
    assert not [name for name in seen if name.split(".")[1:2] and name.split(".")[1] in BUILD_ONLY]


def test_nothing_is_pickled() -> None:
    unsafe = {"pickle", "shelve", "marshal"}
    assert [p for p in FILES if unsafe & {name.split(".")[0] for name in imports(p)}] == []


def test_jtop_is_imported_by_a_program_that_nobody_imports() -> None:
    """jetson-stats is AGPL-3.0: it may run beside us, in a process of its own, and is no part of any of ours."""
    users = [str(p.relative_to(ROOT)) for p in FILES if "jtop" in {name.split(".")[0] for name in imports(p)}]
    assert users == ["power/readers/jtop_reader.py"]
    assert not [p for p in FILES if "power.readers" in {".".join(name.split(".")[:2]) for name in imports(p)}]


def test_no_tests_outside_tests() -> None:
    folders = [p for p in ROOT.iterdir() if p.is_dir() and p.name not in ("tests", "build") and p.name[0] != "."]
    assert [p for folder in folders for p in folder.rglob("*.py") if re.match(r"test_|conftest", p.name)] == []
