"""The cache of compiled kernels: hits, keys, a bound, a folder that cannot be written; what NVRTC refuses."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orind.kernels.cuda import build, nvrtc
from orind.kernels.cuda.convolution import TILES, Kernel

KERNEL = Kernel(TILES[4])


def compiled(cache: Path, kernel: Kernel = KERNEL) -> bytes:
    return build.compile_source(kernel.source, kernel.defines(), "compute_87", cache)


def test_a_kernel_is_compiled_once_and_by_everything_that_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = compiled(tmp_path)
    assert KERNEL.name.encode() in image and image.endswith(b"\0")

    def never(*_: object) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", never)
    assert compiled(tmp_path) == image
    with pytest.raises(AssertionError, match="compiled again"):
        compiled(tmp_path, Kernel(TILES[4], ending="table"))
    library = nvrtc.load()
    for other in (replace(library, path=Path("/another/libnvrtc.so.12")), replace(library, written=(1, 2))):
        with monkeypatch.context() as patch, pytest.raises(AssertionError, match="compiled again"):
            patch.setattr(nvrtc, "load", lambda other=other: other)
            compiled(tmp_path)
    monkeypatch.setattr(build, "sources", lambda: {KERNEL.source: "another text"})
    with pytest.raises(AssertionError, match="compiled again"):
        compiled(tmp_path)


def test_a_cache_that_cannot_be_written_costs_time_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for folder, reason in (("file", "File exists"), ("file/below", "Not a directory"), ("loop", "File exists")):
        caplog.clear()
        for kernel in (KERNEL, Kernel(TILES[4], ending="table")):
            assert kernel.name.encode() in compiled(tmp_path / folder, kernel)
        [said] = caplog.messages
        assert f"{tmp_path / folder}: compiled kernels cannot be kept there ({reason}" in said and "ORIND_CACHE" in said
    assert (tmp_path / "file").read_bytes() == b""


def test_a_damaged_file_is_compiled_again_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a board leaves it that lost power: empty, cut, zeros; and one under another kernel's name."""
    image = compiled(tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    compiled(tmp_path, Kernel(TILES[4], ending="table"))
    (other,) = (p for p in tmp_path.iterdir() if p != path)
    flipped = whole[:99] + bytes([whole[99] ^ 1]) + whole[100:]
    for damage in (b"", whole[:1000], whole[:-1], bytes(len(whole)), flipped, other.read_bytes(), image):
        path.write_bytes(damage)
        caplog.clear()
        assert compiled(tmp_path) == image
        assert path.read_bytes() == whole
        assert f"{path} is damaged" in caplog.text


def test_what_is_no_file_of_ours_is_not_waited_for_nor_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    image = compiled(tmp_path)
    (path,) = tmp_path.iterdir()

    def sparse(path: Path) -> None:
        path.touch()
        os.truncate(path, 1 << 42)

    for make in (os.mkfifo, sparse, lambda path: path.symlink_to("/dev/zero")):
        path.unlink()
        make(path)
        caplog.clear()
        assert compiled(tmp_path) == image
        assert f"{path} is damaged" in caplog.text and len(caplog.messages) == 1
        assert path.is_file() and not path.is_symlink() and path.stat().st_size == len(image) + build.DIGEST_BYTES


def test_another_users_cache_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = compiled(tmp_path)

    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", forbidden)
    monkeypatch.setattr(os, "utime", forbidden)
    assert compiled(tmp_path) == image


def test_a_disk_that_is_full_keeps_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert KERNEL.name.encode() in compiled(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert f"{tmp_path}: compiled kernels cannot be kept there (No space left on device)" in caplog.text


def test_a_user_without_a_home_compiles_every_time_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ORIND_CACHE", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert build.cache_folder() is None
    assert KERNEL.name.encode() in build.compile_source(KERNEL.source, KERNEL.defines(), "compute_87")
    assert "no home to keep kernels in" in caplog.text


def test_the_oldest_go_when_the_cache_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "CACHE_BYTES", 2 * (100 + build.DIGEST_BYTES) + 50)
    for number in range(4):
        build.store(tmp_path / f"{number}.ptx", bytes(100))
        os.utime(tmp_path / f"{number}.ptx", (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.ptx", "3.ptx"]


def test_what_another_process_has_trimmed_already_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone.ptx"
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([gone, folder / "kept.ptx"]))
    build.store(tmp_path / "kept.ptx", bytes(100))
    assert caplog.text == "" and build.held(tmp_path / "kept.ptx") == bytes(100)


def test_a_kernel_that_is_kept_is_not_told_as_lost_where_old_ones_cannot_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreadable(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", unreadable)
    for name in ("one.ptx", "two.ptx"):
        build.store(tmp_path / name, bytes(100))
        assert build.held(tmp_path / name) == bytes(100)
    [said] = caplog.messages
    assert said.startswith(f"device cuda: {tmp_path}: old kernels cannot be removed there (Permission denied)")
    assert "256 MiB" in said


def test_what_nvrtc_refuses_is_told_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "sources", lambda: {KERNEL.source: "no such type here;"})
    with pytest.raises(nvrtc.CompileError, match=r"(?s)convolution_i8.cu: NVRTC 12.*error"):
        compiled(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_nvrtc_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "candidates", lambda: [Path("/nowhere/libnvrtc.so.12")])
    nvrtc.load.cache_clear()
    with pytest.raises(nvrtc.CompileError, match=r"not installed: pip install 'orind\[cuda\]'.*/nowhere"):
        nvrtc.load()
    nvrtc.load.cache_clear()


def test_the_wheels_nvrtc_comes_before_a_toolkits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = nvrtc.load().path
    toolkit = tmp_path / wheel.name
    toolkit.symlink_to(wheel)
    monkeypatch.setattr(nvrtc, "TOOLKITS", (str(tmp_path),))
    nvrtc.load.cache_clear()
    assert nvrtc.load().path == wheel and "site-packages" in wheel.parts
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # no such wheel
    nvrtc.load.cache_clear()
    assert nvrtc.load().path == toolkit
    nvrtc.load.cache_clear()


def test_a_library_that_cannot_be_loaded_is_passed_over_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = nvrtc.load().path
    broken = tmp_path / "libnvrtc.so.12"
    broken.write_bytes(b"half of a library")
    monkeypatch.setattr(nvrtc, "candidates", lambda: [broken, sound])
    nvrtc.load.cache_clear()
    assert nvrtc.load().path == sound
    monkeypatch.setattr(nvrtc, "candidates", lambda: [broken])
    nvrtc.load.cache_clear()
    with pytest.raises(nvrtc.CompileError, match=rf"cannot be loaded \({broken}: .*\): pip install"):
        nvrtc.load()
    nvrtc.load.cache_clear()


def test_a_library_that_lacks_a_function_or_fails_is_no_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = "".join(f"int {name}() {{ return 5; }} " for name in nvrtc.FUNCTIONS)
    for text, reason in (
        ("int nvrtcVersion() { return 0; }", "undefined symbol: nvrtcGetErrorString"),
        (whole, "nvrtcVersion failed with 5"),
    ):
        library = tmp_path / reason.split()[0] / "libnvrtc.so.12"  # the loader knows a library by its file
        library.parent.mkdir()
        source = library.with_suffix(".c")
        source.write_text(text)
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", str(library), str(source)], check=True)
        monkeypatch.setattr(nvrtc, "candidates", lambda library=library: [library])
        nvrtc.load.cache_clear()
        with pytest.raises(nvrtc.CompileError, match=rf"cannot be loaded \({library}: .*{reason}\): pip install"):
            nvrtc.load()
