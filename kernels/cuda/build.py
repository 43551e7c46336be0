"""CUDA sources to PTX or cubins, through a cache of files. Called by the executor, `orind doctor` and tests.

The key is everything that matters: sources, defines, options, compiler version. Files are written whole or not at all,
so that processes may share the cache; the oldest go when it grows past its bound.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from . import nvrtc

SOURCE = Path(__file__).parent / "source"
OPTIONS = ("--std=c++17", "--fmad=false", "--restrict", "--device-as-default-execution-space")
CACHE_BYTES = 256 << 20


@functools.cache
def sources() -> dict[str, str]:
    """Every source by file name."""
    return {path.name: path.read_text() for path in sorted(SOURCE.iterdir()) if path.suffix in (".cu", ".cuh")}


def cache_folder() -> Path:
    """ORIND_CACHE, the unit's cache directory, or the user's."""
    for name, tail in (("ORIND_CACHE", ""), ("CACHE_DIRECTORY", ""), ("XDG_CACHE_HOME", "orind")):
        if os.environ.get(name):
            return Path(os.environ[name]) / tail / "cuda"
    return Path.home() / ".cache" / "orind" / "cuda"


def options_of(defines: Mapping[str, int | str]) -> tuple[str, ...]:
    """What the compiler is told, but for the architecture."""
    return (*OPTIONS, *(f"-D{key}={value}" for key, value in sorted(defines.items())))


def compile_source(file: str, defines: Mapping[str, int | str], architecture: str, cache: Path | None = None) -> bytes:
    """`architecture` compute_87 gives PTX, NUL-terminated; sm_87 a cubin. Raises nvrtc.CompileError."""
    compiler = nvrtc.load()
    options = (*options_of(defines), f"--gpu-architecture={architecture}")
    key = hashlib.sha256(repr((compiler.version, options, file, sorted(sources().items()))).encode()).hexdigest()
    folder = cache_folder() if cache is None else cache
    path = folder / f"{key[:32]}.{'cubin' if architecture.startswith('sm_') else 'ptx'}"
    try:
        image = path.read_bytes()
        os.utime(path)
        return image
    except OSError:
        pass  # not there yet, or not ours to read: compiling gives the same bytes
    headers = {name: text for name, text in sources().items() if name.endswith(".cuh")}
    image = compiler.compile(sources()[file], file, headers, options)
    store(path, image)
    return image


def store(path: Path, image: bytes) -> None:
    """Keeps `image`, and the cache within its bound. A cache that cannot be written costs time at the next start."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(image)
        part.replace(path)
        held = sorted((p for p in path.parent.iterdir() if p.is_file()), key=lambda p: p.stat().st_mtime, reverse=True)
        total = 0
        for old in held:
            total += old.stat().st_size
            if total > CACHE_BYTES and old != path:
                old.unlink(missing_ok=True)
    except OSError:
        return
