"""Fixtures of the virtual GPU's tests: the library, built once; an instance of it of one's own; PyCUDA, built once.

The tests build C++ and, once, PyCUDA: they are collected only where ORIND_VIRTUAL_GPU=1 says that there is time for it
(scripts/test_gpu does). Then none of them is skipped.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import build  # noqa: E402  beside this file, which the line above makes importable
from driver_calls import Cuda, Fresh, held  # noqa: E402
from driver_ptx import KERNELS  # noqa: E402

sys.path.insert(0, str(HERE.parent.parent / "scripts"))

import build_pycuda  # noqa: E402  from scripts/

collect_ignore_glob = [] if os.environ.get("ORIND_VIRTUAL_GPU") == "1" else ["test_*.py"]


@pytest.fixture(scope="session")
def library() -> Path:
    """The folder that holds libcuda.so.1."""
    return build.build()


@pytest.fixture(scope="session")
def shared(library: Path) -> Cuda:
    """An initialised instance for tests that leave nothing behind and break nothing."""
    return Cuda(library / build.LIBRARY).initialise()


@pytest.fixture
def cuda(shared: Cuda) -> Iterator[Cuda]:
    """`shared` with a context of one's own, destroyed afterwards."""
    context = shared.create_context()
    yield shared
    shared.check("cuCtxDestroy_v2", context)


@pytest.fixture(scope="session")
def pycuda_python() -> str:
    """An interpreter that can import PyCUDA: this one; PyCUDA is built and installed if it is not there."""
    build_pycuda.ensure(sys.executable)
    return sys.executable


@pytest.fixture
def fresh(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fresh:
    """fresh(ORDER="reverse", ...): an instance that read these VIRTUAL_GPU_ variables, with a context.

    The loader takes a copy of the library for another one: its faults and settings are its own.
    """
    made = 0

    def make(**variables: str) -> Cuda:
        nonlocal made
        made += 1
        copy = tmp_path / f"libcuda.{made}.so.1"
        shutil.copy(library / build.LIBRARY, copy)
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(f"VIRTUAL_GPU_{name}", value)
            instance = Cuda(copy).initialise()
        instance.create_context()
        return instance

    return make


@pytest.fixture
def kernels(cuda: Cuda) -> Callable[[str], int]:
    """A function of driver_ptx.KERNELS by name, loaded into the context of `cuda`."""
    module = cuda.module(KERNELS)
    return lambda name: cuda.function(module, name)


@pytest.fixture
def gate(cuda: Cuda, kernels: Callable[[str], int]) -> Callable[[int], AbstractContextManager[None]]:
    """`with gate(stream):` holds the stream back, by a kernel that waits for the host."""
    return lambda stream: held(cuda, kernels("gate"), stream)
