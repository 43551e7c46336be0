"""CUDA sources to PTX or cubins, through a cache of files. Called by the executor, `orind doctor` and tests.

The key is everything that matters: sources, defines, options, the compiler (its version, and which file it is).
Processes share the cache: a file takes its name when it is whole, and ends with a digest, since a board may lose power
before the bytes are on its disk. What is damaged is compiled again; the oldest go when the cache grows past its bound.
That kernels cannot be kept is said once in a process: every start takes longer for it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from . import nvrtc

SOURCE = Path(__file__).parent / "source"
OPTIONS = ("--std=c++17", "--fmad=false", "--restrict", "--device-as-default-execution-space")
CACHE_BYTES = 256 << 20
DIGEST_BYTES = hashlib.sha256().digest_size
LOG = logging.getLogger(__name__)


@functools.cache
def sources() -> dict[str, str]:
    """Every source by file name."""
    return {path.name: path.read_text() for path in sorted(SOURCE.iterdir()) if path.suffix in (".cu", ".cuh")}


def cache_folder() -> Path | None:
    """ORIND_CACHE, the unit's cache directory, or the user's; None for a user without a home."""
    for name, tail in (("ORIND_CACHE", ""), ("CACHE_DIRECTORY", ""), ("XDG_CACHE_HOME", "orind")):
        if os.environ.get(name):
            return Path(os.environ[name]) / tail / "cuda"
    try:
        return Path.home() / ".cache" / "orind" / "cuda"
    except RuntimeError:
        return None


def options_of(defines: Mapping[str, int | str]) -> tuple[str, ...]:
    """What the compiler is told, but for the architecture."""
    return (*OPTIONS, *(f"-D{key}={value}" for key, value in sorted(defines.items())))


def compile_source(file: str, defines: Mapping[str, int | str], architecture: str, cache: Path | None = None) -> bytes:
    """`architecture` compute_87 gives PTX, NUL-terminated; sm_87 a cubin. Raises nvrtc.CompileError."""
    compiler = nvrtc.load()
    options = (*options_of(defines), f"--gpu-architecture={architecture}")
    made_by = (compiler.version, str(compiler.path), compiler.written)
    key = hashlib.sha256(repr((made_by, options, file, sorted(sources().items()))).encode()).hexdigest()
    folder = cache_folder() if cache is None else cache
    path = None if folder is None else folder / f"{key[:32]}.{'cubin' if architecture.startswith('sm_') else 'ptx'}"
    image = None if path is None else held(path)
    if image is None:
        headers = {name: text for name, text in sources().items() if name.endswith(".cuh")}
        image = compiler.compile(sources()[file], file, headers, options)
        if path is not None:
            store(path, image)
        else:
            _say_once("device cuda: no home to keep kernels in: each start compiles them; ORIND_CACHE names a folder")
    return image


def held(path: Path) -> bytes | None:
    """What `store` kept there; None where that is nothing, damaged or not ours to read: compiling gives the same."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # a FIFO waits
            status = os.fstat(file.fileno())
            ours = stat.S_ISREG(status.st_mode) and status.st_size <= CACHE_BYTES
            data = file.read(status.st_size) if ours else b""
    except OSError:
        return None
    image = data[:-DIGEST_BYTES]
    if data != image + _digest(path, image):
        LOG.warning("device cuda: %s is damaged; the kernel is compiled again", path)
        return None
    with contextlib.suppress(OSError):  # another user's cache is read all the same
        os.utime(path)
    return image


def store(path: Path, image: bytes) -> None:
    """Keeps `image`, and the cache within its bound. A cache that cannot be written costs time at the next start."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(image + _digest(path, image))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        _say_once(
            f"device cuda: {path.parent}: compiled kernels cannot be kept there ({error.strerror}): each start "
            "compiles them again; ORIND_CACHE names another folder"
        )
        return
    try:
        _trim(path)
    except OSError as error:
        _say_once(
            f"device cuda: {path.parent}: old kernels cannot be removed there ({error.strerror}): the cache may grow "
            f"past {CACHE_BYTES >> 20} MiB; remove them by hand"
        )


def _trim(newest: Path) -> None:
    """Removes what was not used for longest, while there is more than CACHE_BYTES."""
    found = []
    for path in newest.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process trims as well
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime_ns, status.st_size, path))
    total = 0
    for _, size, path in sorted(found, reverse=True):
        total += size
        if total > CACHE_BYTES and path != newest:
            path.unlink(missing_ok=True)


@functools.lru_cache(maxsize=16)
def _say_once(text: str) -> None:
    LOG.warning("%s", text)


def _digest(path: Path, image: bytes) -> bytes:
    """Of the name too, so that a file under another's name is none."""
    return hashlib.sha256(path.name.encode() + image).digest()
