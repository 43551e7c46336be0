"""The cache of compiled kernels: hits, keys, a bound, a folder that cannot be written; what NVRTC refuses."""

from __future__ import annotations

import os
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
    monkeypatch.setattr(build, "sources", lambda: {KERNEL.source: "another text"})
    with pytest.raises(AssertionError, match="compiled again"):
        compiled(tmp_path)


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert KERNEL.name.encode() in compiled(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b""


def test_the_oldest_go_when_the_cache_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "CACHE_BYTES", 250)
    for number in range(4):
        build.store(tmp_path / f"{number}.ptx", bytes(100))
        os.utime(tmp_path / f"{number}.ptx", (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.ptx", "3.ptx"]


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
