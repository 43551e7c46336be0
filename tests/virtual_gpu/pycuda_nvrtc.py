"""A pytest plugin for PyCUDA's own tests: `SourceModule` compiles through NVRTC to PTX instead of calling nvcc.

Loaded with `-p pycuda_nvrtc` by test_pycuda_own.py. Nothing else of PyCUDA is changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pycuda.compiler
from pycuda.driver import CompileError

from orind.kernels.cuda import nvrtc

# includes that nvcc resolves and NVRTC does not; the tests use nothing of them
EMPTY_HEADERS = {"stdio.h": ""}
OPTIONS = ("--gpu-architecture=compute_87", f"-I{Path(pycuda.compiler.__file__).parent / 'cuda'}")


def compile_to_ptx(source: str, *_arguments: Any, no_extern_c: bool = False, **_options: Any) -> bytes:
    """In place of pycuda.compiler.compile: PTX with its final NUL."""
    text = source if no_extern_c else 'extern "C" {\n' + source + "\n}\n"
    try:
        return nvrtc.load().compile(text, "kernel.cu", EMPTY_HEADERS, OPTIONS)
    except nvrtc.CompileError as error:
        raise CompileError(str(error), []) from error


pycuda.compiler.compile = compile_to_ptx
