"""stdout and stderr on a full disk, or with a reader that has gone: a sentence where one can be said, and the code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from orind.daemon import build_command, cli
from orind.daemon.missing_parts import is_own


def orind(*arguments: str, out: int, err: int = subprocess.PIPE) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "orind.daemon.cli", *arguments], text=True, timeout=60, stdout=out,
                          stderr=err)
    return done.returncode, done.stderr or ""


@pytest.fixture
def full() -> Iterator[int]:
    fd = os.open("/dev/full", os.O_WRONLY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("arguments", [("--help",), ("build", "--help")])
def test_a_full_stdout(full: int, arguments: tuple[str, ...]) -> None:
    assert orind(*arguments, out=full) == (1, "orind: stdout cannot be written: No space left on device\n")


@pytest.mark.parametrize(("closed", "told"), [(1, "orind: stdout cannot be written: not writable\n"), (2, "")])
def test_a_stream_that_is_closed(closed: int, told: str) -> None:
    script = f'exec "$0" "$@" {closed}>&-'
    arguments = ["--help"] if closed == 1 else ["inspect", "/none"]
    done = subprocess.run(["sh", "-c", script, sys.executable, "-m", "orind.daemon.cli", *arguments],
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, told)


def test_a_full_stderr(full: int) -> None:
    assert orind("inspect", "/none", out=subprocess.DEVNULL, err=full) == (1, "")
    assert orind("--help", out=full, err=full) == (1, "")


def test_every_command_that_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever prints, however long: by line, or in one piece that is larger than the buffer."""
    for text in ("short", "x" * 100_000):
        def prints(options: object, text: str = text) -> int:
            print(text)
            return 0
        monkeypatch.setattr(build_command, "run", prints)
        with open("/dev/full", "w") as full:           # its close() at the end has nothing left that fails
            monkeypatch.setattr(sys, "stdout", full)
            assert cli.main(["build", "m.onnx"]) == 1
            assert sys.stdout is full
        assert capsys.readouterr().err == "orind: stdout cannot be written: No space left on device\n"


def test_a_reader_that_has_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert orind("--help", out=writer) == (0, "")
    os.close(writer)


def test_a_fault_of_our_own_imports_is_none_of_a_missing_package() -> None:
    assert is_own(ImportError("x")) and is_own(ImportError("x", name="orind.kernels.none"))
    assert not is_own(ModuleNotFoundError("x", name="onnx")) and not is_own(ImportError("x", name="orindx"))
