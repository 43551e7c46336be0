"""Fixtures of the virtual GPU's tests: the library, built once; an instance of it of one's own; PyCUDA, built once.

The tests build C++ and, once, PyCUDA: they are collected only where ORIND_VIRTUAL_GPU=1 says that there is time for it
(scripts/test_gpu does). Then none of them is skipped.

Where ORIND_REAL_GPU=1 is set instead, the same tests run on the machine's own driver and GPU (scripts/measure_gpu does
that), without those that are marked `virtual`: they need what only the virtual GPU has.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from ctypes import c_void_p
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import build  # noqa: E402  beside this file, which the line above makes importable
from driver_calls import REAL, Cuda, Fresh, held  # noqa: E402
from driver_ptx import KERNELS  # noqa: E402

sys.path.insert(0, str(HERE.parent.parent / "scripts"))

import build_pycuda  # noqa: E402  from scripts/

collect_ignore_glob = [] if REAL or os.environ.get("ORIND_VIRTUAL_GPU") == "1" else ["test_*.py"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    left_out = {item for item in here if REAL and item.get_closest_marker("virtual")}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def driver_folder() -> Path:
    """Where the loader finds the machine's own driver. Raises OSError where there is none."""
    ctypes.CDLL("libcuda.so.1")
    mapped = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    return next(Path(path).parent for path in mapped if "/libcuda.so" in path)


@pytest.fixture(scope="session")
def library() -> Path:
    """The folder that holds libcuda.so.1."""
    return driver_folder() if REAL else build.build()


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
def kept(shared: Cuda) -> int:
    """A context of the whole session, on no thread's stack."""
    context = shared.create_context()
    shared.check("cuCtxPopCurrent_v2", None)
    return context


@pytest.fixture
def cuda_for_kernels(shared: Cuda, kept: int) -> Iterator[Cuda]:
    """`shared` with a context that others use too: to make one takes half a second on a real GPU.

    For tests of kernels, which change nothing of a context and leave nothing running in it.
    """
    shared.check("cuCtxPushCurrent_v2", kept)
    yield shared
    shared.check("cuCtxSynchronize")
    shared.check("cuCtxPopCurrent_v2", None)


@pytest.fixture(scope="session")
def pycuda_python() -> str:
    """An interpreter that can import PyCUDA: this one; PyCUDA is built and installed if it is not there."""
    build_pycuda.ensure(sys.executable)
    return sys.executable


@pytest.fixture(scope="session")
def ptxas() -> Path:
    """NVIDIA's assembler of JetPack 6's CUDA, from a wheel: another release gives registers otherwise."""
    spec = find_spec("nvidia")
    assert spec and spec.submodule_search_locations
    places = [Path(place) / "cuda_nvcc" / "bin" / "ptxas" for place in spec.submodule_search_locations]
    path = next(path for path in places if path.exists())
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    assert "release 12.6," in said, said
    return path


@pytest.fixture
def fresh(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fresh]:
    """fresh(ORDER="reverse", ...): an instance that read these VIRTUAL_GPU_ variables, with a context.

    The loader takes a copy of the library for another one: its faults and settings are its own. A real GPU has one
    driver and its own order: there it is that, with a new context.
    """
    made = 0
    contexts: list[tuple[Cuda, int]] = []

    def make(**variables: str) -> Cuda:
        nonlocal made
        if REAL:
            shared = Cuda(library / build.LIBRARY).initialise()
            contexts.append((shared, shared.create_context()))
            return shared
        made += 1
        copy = tmp_path / f"libcuda.{made}.so.1"
        shutil.copy(library / build.LIBRARY, copy)
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(f"VIRTUAL_GPU_{name}", value)
            instance = Cuda(copy).initialise()
        instance.create_context()
        return instance

    yield make
    for shared, context in reversed(contexts):  # the last is on top of the stack, and leaves it when it is destroyed
        shared.check("cuCtxDestroy_v2", context)


@pytest.fixture
def kernels(cuda: Cuda) -> Callable[[str], int]:
    """A function of driver_ptx.KERNELS by name, loaded into the context of `cuda`; each has run once.

    A real driver loads a kernel when it is first used, and may wait for the device to do so: for ever, where a test
    holds a stream back meanwhile.
    """
    module = cuda.module(KERNELS)
    word, words = cuda.pinned(4)
    words[0] = 1
    for name, arguments in {"fill": (word, 1, 0), "increment": (word,), "gate": (word,)}.items():
        cuda.run(cuda.function(module, name), *arguments, block=(1, 1, 1))
    for name in ("nothing", "bounded"):
        cuda.run(cuda.function(module, name), block=(1, 1, 1))
    cuda.check("cuCtxSynchronize")
    cuda.check("cuMemFreeHost", c_void_p(word))
    return lambda name: cuda.function(module, name)


@pytest.fixture
def gate(cuda: Cuda, kernels: Callable[[str], int]) -> Callable[[int], AbstractContextManager[None]]:
    """`with gate(stream):` holds the stream back, by a kernel that waits for the host."""
    return lambda stream: held(cuda, kernels("gate"), stream)
