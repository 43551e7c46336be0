"""NVRTC through ctypes: CUDA C++ to PTX or to a cubin. No CUDA toolkit, driver or GPU is needed.

Called by `build.py`. The library of a wheel (nvidia-cuda-nvrtc-cu12) is taken first, then a toolkit's, as JetPack's.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLKITS = (
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/aarch64-linux/lib",
    "/usr/local/cuda/targets/x86_64-linux/lib",
)
NAMES = ("libnvrtc.so.12", "libnvrtc.so.13")


FUNCTIONS = (
    *("nvrtcVersion", "nvrtcGetErrorString", "nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcDestroyProgram"),
    *("nvrtcGetProgramLogSize", "nvrtcGetProgramLog"),
    *("nvrtcGetPTXSize", "nvrtcGetPTX", "nvrtcGetCUBINSize", "nvrtcGetCUBIN"),
)
"""What is called here: a library that lacks one is no NVRTC, or one older than 11.1."""


class CompileError(Exception):
    """NVRTC is missing or refuses the source; the text holds its log."""


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """A loaded library: where it came from, its version, and its file's size and time of writing (ns) by then: a patch
    release has the version of the one before."""

    library: ctypes.CDLL
    path: Path
    version: tuple[int, int]
    written: tuple[int, int]

    def compile(self, source: str, name: str, headers: Mapping[str, str], options: Sequence[str]) -> bytes:
        """PTX (NUL-terminated) for `--gpu-architecture=compute_NN`, a cubin for `sm_NN`. Raises CompileError."""
        program = ctypes.c_void_p()
        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        names = (ctypes.c_char_p * len(headers))(*(key.encode() for key in headers))
        self._check(
            self.library.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), name.encode(), len(headers), texts, names
            )
        )
        try:
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            code = self.library.nvrtcCompileProgram(program, len(options), given)
            if code:
                log = (
                    self._text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
                    .rstrip(b"\0")
                    .decode(errors="replace")
                )
                raise CompileError(f"{name}: NVRTC {self.version[0]}.{self.version[1]} refuses it:\n{log}")
            if any(option.startswith("--gpu-architecture=sm_") for option in options):
                return self._text(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
            return self._text(program, "nvrtcGetPTXSize", "nvrtcGetPTX")
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, size_of: str, get: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(self.library[size_of](program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(self.library[get](program, buffer))
        return buffer.raw

    def _check(self, code: int) -> None:
        if code:
            self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CompileError(f"NVRTC: {self.library.nvrtcGetErrorString(code).decode()}")


def candidates() -> list[Path]:
    """Where a library may lie, best first."""
    folders = []
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folders.append(Path(place) / "cuda_nvrtc" / "lib")
    return [folder / name for folder in (*folders, *map(Path, TOOLKITS)) for name in NAMES]


@functools.cache
def load() -> Nvrtc:
    """The first library that can be loaded. Raises CompileError naming what to install."""
    refused = []
    for path in candidates():
        if not path.exists():
            continue
        try:
            library = ctypes.CDLL(str(path))
            for name in FUNCTIONS:
                library[name]
            major, minor = ctypes.c_int(), ctypes.c_int()
            if code := library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)):
                raise OSError(f"nvrtcVersion failed with {code}")
            status = path.stat()
        except (OSError, AttributeError) as error:  # half an installation, another architecture's, no NVRTC
            refused.append(str(error) if str(path) in str(error) else f"{path}: {error}")
            continue
        return Nvrtc(library, path, (major.value, minor.value), (status.st_size, status.st_mtime_ns))
    remedy = (
        "pip install 'orind[cuda]' (nvidia-cuda-nvrtc-cu12), or on a Jetson the JetPack package cuda-nvrtc; looked in "
        + ", ".join(sorted({str(p.parent) for p in candidates()}))
    )
    if refused:
        raise CompileError(f"NVRTC cannot be loaded ({'; '.join(refused)}): {remedy}")
    raise CompileError(f"NVRTC is not installed: {remedy}")
