"""A pytest plugin for PyCUDA's own tests: `SourceModule` compiles through NVRTC to PTX instead of calling nvcc.

Loaded with `-p pycuda_nvrtc` by test_pycuda_own.py. Nothing else of PyCUDA is changed.
"""

from __future__ import annotations

import ctypes
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pycuda.compiler
from pycuda.driver import CompileError

# includes that nvcc resolves and NVRTC does not; the tests use nothing of them
EMPTY_HEADERS = (b"stdio.h",)


def nvrtc_library() -> ctypes.CDLL:
    files = distribution("nvidia-cuda-nvrtc-cu12").files or []
    (path,) = (file.locate() for file in files if file.name == "libnvrtc.so.12")
    return ctypes.CDLL(str(path))


def text_of(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    assert library[f"nvrtcGet{what}Size"](program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert library[f"nvrtcGet{what}"](program, buffer) == 0
    return buffer.raw


def compile_to_ptx(source: str, *_arguments: Any, no_extern_c: bool = False, **_options: Any) -> bytes:
    """In place of pycuda.compiler.compile: PTX with its final NUL."""
    library, program = nvrtc_library(), ctypes.c_void_p()
    text = source if no_extern_c else 'extern "C" {\n' + source + "\n}\n"
    count = len(EMPTY_HEADERS)
    contents = (ctypes.c_char_p * count)(*(b"" for _ in EMPTY_HEADERS))
    names = (ctypes.c_char_p * count)(*EMPTY_HEADERS)
    code = library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", count, contents, names)
    assert code == 0
    options = [b"--gpu-architecture=compute_87", b"-I" + str(Path(pycuda.compiler.__file__).parent / "cuda").encode()]
    if library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)):
        raise CompileError(text_of(library, program, "ProgramLog").decode(), [])
    return text_of(library, program, "PTX")


pycuda.compiler.compile = compile_to_ptx
