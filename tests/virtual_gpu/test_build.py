"""build.py: what makes an object anew, what a broken source says. Compiles a library of two lines, not the whole."""

from __future__ import annotations

from pathlib import Path

import build
import pytest

pytestmark = pytest.mark.virtual

SOURCE = '#include "{header}"\nextern "C" __attribute__((visibility("default"))) int cuTwo() {{ return NUMBER; }}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of a library with one function; the stubs of the driver's names are left out."""
    names = tmp_path / "symbols.txt"
    names.write_text("cuOne\n")
    monkeypatch.setattr(build, "SYMBOLS", names)
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "number.h").write_text("constexpr int NUMBER = 2;\n")
    (sources / "two.cpp").write_text(SOURCE.format(header="number.h"))
    (sources / "unsupported.cpp").write_text('extern "C" int virtual_gpu_unsupported(const char*) { return 801; }\n')
    return sources


def test_only_what_has_changed_is_compiled(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def compiled() -> str:
        build.build(tmp_path / "out", [folder])
        return capfd.readouterr().err.strip()

    assert compiled() == "== compiling 3 of 3 files of the virtual GPU"
    assert compiled() == ""
    (folder / "number.h").write_text("constexpr int NUMBER = 3;\n")
    assert compiled() == "== compiling 1 of 3 files of the virtual GPU", "who includes the header"
    (folder / "number.h").write_text("constexpr int NUMBER = 2;\n")
    before = (tmp_path / "out" / "linked").read_text()
    assert compiled() == "", "the object of before is still there"
    assert (tmp_path / "out" / "linked").read_text() != before, "but it is linked anew"
    assert (tmp_path / "out" / "libcuda.so").resolve() == tmp_path / "out" / build.LIBRARY


def test_many_files_share_the_headers_of_cpp(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(build.WORTH_A_HEADER):
        (folder / f"part{i}.cpp").write_text(f"#include <string>\nstd::string part{i}() {{ return __FILE__; }}\n")
    commands: list[str] = []
    run = build.run
    monkeypatch.setattr(build, "run", lambda command, *rest: commands.append(" ".join(command)) or run(command, *rest))
    build.build(tmp_path / "out", [folder])
    assert sum("c++-header" in command for command in commands) == 1
    assert sum("-include" in command for command in commands) == build.WORTH_A_HEADER + 3
    assert {path.suffix for path in (tmp_path / "out" / "objects").iterdir()} == {".o"}, "the parsed headers are gone"
    (folder / "part0.cpp").write_text('#include <string>\nstd::string part0() { return ""; }\n')
    commands.clear()
    build.build(tmp_path / "out", [folder])
    assert not any("-include" in command for command in commands), "not worth it for one file"


def test_a_broken_source_says_what_the_compiler_said(folder: Path, tmp_path: Path) -> None:
    (folder / "two.cpp").write_text("int broken(")
    with pytest.raises(build.BuildError, match=r"two\.cpp:1:12: error"):
        build.build(tmp_path / "out", [folder])
    assert not (tmp_path / "out" / build.LIBRARY).exists()


def test_what_cannot_be_run_or_written_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments, text in (
        (("--compiler", "nosuch", "--out", str(tmp_path)), "nosuch cannot be run (No such file or directory): "),
        (("--out", "/dev/null"), "[Errno 17] File exists: '/dev/null'"),
    ):
        monkeypatch.setattr("sys.argv", ["build.py", *arguments])
        assert build.main() == 1
        [said] = capsys.readouterr().err.splitlines()
        assert said.startswith(f"virtual GPU: {text}")
