"""scripts/build_pycuda without network: where things are taken from, what is refused, what the build is told."""

from __future__ import annotations

import gzip
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import build_pycuda as script
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def wheel_in(folder: Path) -> Path:
    """A sound wheel of PyCUDA by its name, as the script keeps one for this interpreter."""
    tag = script.python_tag(sys.executable)
    wheel = folder / f"pycuda-{script.VERSION}-{tag}-{tag}-linux_{platform.machine()}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pycuda/driver.py", bytes(5000))
    return wheel


def source_in(folder: Path) -> Path:
    archive = folder / f"pycuda-{script.VERSION}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(gzip.compress(os.urandom(5000)))
    return archive


def cut(path: Path) -> None:
    """As a machine leaves a file that loses power."""
    os.truncate(path, path.stat().st_size // 2)


def toolkit(folder: Path, text: str) -> Path:
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "cuda.h").write_text(text)
    return folder


def test_the_version_of_a_toolkit_is_read_from_its_header(tmp_path: Path) -> None:
    assert script.headers_version(toolkit(tmp_path / "a", "#define CUDA_VERSION 12060\n")) == "12.6"
    assert script.headers_version(toolkit(tmp_path / "b", "#define CUDA_VERSION 13000\n")) == "13.0"
    with pytest.raises(script.SetupError, match="no include/cuda"):
        script.headers_version(tmp_path / "nowhere")
    with pytest.raises(script.SetupError, match="does not define CUDA_VERSION"):
        script.headers_version(toolkit(tmp_path / "c", "\n"))


def test_a_ready_wheel_in_the_wheelhouse_is_taken(tmp_path: Path) -> None:
    wheel = wheel_in(tmp_path)
    sources = script.Sources(wheelhouse=tmp_path)
    assert script.wheel_for(sys.executable, sources, tmp_path / "cache") == wheel
    cut(wheel)
    with pytest.raises(script.SetupError, match=rf"{wheel} is damaged: fill the wheelhouse again"):
        script.wheel_for(sys.executable, sources, tmp_path / "cache")


def test_a_kept_wheel_that_is_damaged_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tag = script.python_tag(sys.executable)
    name = f"pycuda-{script.VERSION}-cuda{script.HEADERS_VERSION}-{tag}-{platform.machine()}"
    kept = wheel_in(tmp_path / "cache" / name)
    whole = kept.read_bytes()
    assert script.wheel_for(sys.executable, script.Sources(), tmp_path / "cache") == kept

    def builds(_python: str, *arguments: str, **_: object) -> None:
        wheel_in(Path(arguments[arguments.index("-w") + 1]))

    monkeypatch.setattr(script, "pip", builds)
    monkeypatch.setattr(script, "merge_headers", lambda *_: tmp_path)
    source_in(tmp_path / "cache")
    flipped = bytearray(whole)
    flipped[99] ^= 1
    for damaged in (whole[: len(whole) // 2], b"", bytes(flipped)):
        kept.write_bytes(damaged)
        assert script.wheel_for(sys.executable, script.Sources(), tmp_path / "cache") == kept
        assert script.sound(kept) and f"== {kept} is damaged: it is made again" in capsys.readouterr().out


def test_a_wheelhouse_without_the_headers_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(script.SetupError, match=r"nvidia-cuda-runtime-cu12[\s\S]*pip download failed \(all of it: "):
        script.wheel_for(sys.executable, script.Sources(wheelhouse=tmp_path), tmp_path / "cache")


def test_the_source_comes_from_the_wheelhouse(tmp_path: Path) -> None:
    archive = source_in(tmp_path)
    sources = script.Sources(wheelhouse=tmp_path)
    assert script.source_distribution(sys.executable, sources, tmp_path / "cache") == archive
    cut(archive)
    with pytest.raises(script.SetupError, match=rf"{archive} is damaged: fill the wheelhouse again"):
        script.source_distribution(sys.executable, sources, tmp_path / "cache")


def test_a_kept_source_that_is_damaged_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = source_in(tmp_path)
    cut(kept)

    def downloads(_python: str, *arguments: str, **_: object) -> None:
        source_in(Path(arguments[arguments.index("-d") + 1]))

    monkeypatch.setattr(script, "pip", downloads)
    assert script.source_distribution(sys.executable, script.Sources(), tmp_path) == kept and script.sound(kept)


def test_the_library_to_link_with_has_every_name(tmp_path: Path) -> None:
    library = script.link_library(tmp_path / "link") / "libcuda.so"
    done = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in done.stdout.splitlines()}
    assert set(script.SYMBOLS.read_text().split()) <= names
    assert {"cuCtxCreate_v2", "cuEventElapsedTime", "cuProfilerStart"} <= names, "what PyCUDA links with 12.6 headers"


def test_the_build_has_a_home_of_its_own_and_pip_keeps_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = tmp_path / "person"
    person.mkdir()
    (person / ".netrc").touch()
    monkeypatch.setenv("HOME", str(person))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    environment = script.build_environment(tmp_path / "home", Path("/toolkit"), Path("/link"))
    assert environment["HOME"] == str(tmp_path / "home")
    assert environment["XDG_CONFIG_HOME"] == str(person / ".config")
    assert (tmp_path / "home" / ".netrc").resolve() == person / ".netrc"
    settings: dict[str, object] = {}
    exec((tmp_path / "home" / ".aksetup-defaults.py").read_text(), settings)
    assert settings["CUDA_ROOT"] == "/toolkit" and settings["CUDADRV_LIB_DIR"] == ["/link"]
    assert settings["CUDA_ENABLE_CURAND"] is False


def test_the_command_line_refuses_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert script.main(["--wheelhouse", nowhere]) == 1
    assert "is not a folder; --fill makes one" in capsys.readouterr().err
    assert script.main(["--python", nowhere]) == 1
    assert "there is no such interpreter" in capsys.readouterr().err
    assert script.main(["--toolkit", nowhere]) == 1
    assert "name the toolkit's folder" in capsys.readouterr().err
    for other in ("/bin/true", "/bin/false"):
        assert script.main(["--python", other]) == 1
        assert capsys.readouterr().err == f"build_pycuda: --python {other}: that is no interpreter of Python 3\n"
    assert script.main(["--fill", "/dev/null"]) == 1
    said = capsys.readouterr().err
    assert said == "build_pycuda: --fill /dev/null: File exists; name a folder, which may be a new one\n"


def test_a_folder_that_cannot_be_written_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").touch()
    monkeypatch.setattr(script, "installed_version", lambda *_: "")
    monkeypatch.setattr(script.ensure, "__defaults__", (sys.executable, None, tmp_path / "cache"))
    assert script.main([]) == 1
    assert capsys.readouterr().err == f"build_pycuda: [Errno 17] File exists: '{tmp_path / 'cache'}'\n"


def test_nothing_is_done_where_all_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pycuda": script.VERSION, "nvidia-cuda-nvrtc-cu12": "12.6.85"}
    monkeypatch.setattr(script, "installed_version", lambda _python, package="pycuda": versions[package])
    script.ensure(sys.executable, script.Sources(wheelhouse=tmp_path), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
