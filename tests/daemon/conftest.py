"""Lets the tests of this folder import helpers by name (stand_ins; models of tests/kernels); watches descriptors."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kernels")]

from line import Line  # noqa: E402  beside this file, which the line above makes importable

REAPED_S = 10.0  # ZeroMQ closes a socket's last descriptor in a thread of its own, which a busy machine may delay


def open_descriptors() -> dict[int, str]:
    """Descriptor -> what it points to."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found[int(entry.name)] = str(entry.readlink())
    return found


@pytest.fixture
def no_fd_leak() -> Iterator[None]:
    """Fails when a descriptor is open after the test that was not open before it."""
    gc.collect()
    before = open_descriptors()
    yield
    gc.collect()
    end = time.monotonic() + REAPED_S
    while left := {fd: to for fd, to in open_descriptors().items() if before.get(fd) != to and "/proc/" not in to}:
        assert time.monotonic() < end, f"left open: {left}"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def identity_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real plan: takes uint8 (1, 3, 4096, 1), gives the first byte of each of the 3 rows as float32."""
    import models
    import onnx

    from orind.kernels.build import build_plan

    folder = tmp_path_factory.mktemp("plans")
    onnx.save(models.identity_onnx(3), str(folder / "identity.onnx"))
    return build_plan(folder / "identity.onnx", None, [], folder / "identity.plan", "fp32").path


@pytest.fixture
def line(no_fd_leak: None) -> Iterator[Line]:
    made = Line()
    yield made
    made.check()
    made.close()
