"""Fixtures of the ipc tests: no descriptor may leak, no ZeroMQ context may refuse to end."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

END_S = 10.0


def open_descriptors() -> dict[int, str]:
    """Descriptor -> what it points to. ZeroMQ's and the test runner's own included."""
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
    after = open_descriptors()
    left = {fd: target for fd, target in after.items() if before.get(fd) != target and "/proc/" not in target}
    assert not left, f"left open: {left}"


@pytest.fixture
def context(no_fd_leak: None) -> Iterator[zmq.Context[Any]]:
    """A context that must be able to terminate: a socket left open, or one without LINGER, fails the test."""
    own: zmq.Context[Any] = zmq.Context()
    yield own
    ender = threading.Thread(target=own.term, daemon=True)
    ender.start()
    ender.join(END_S)
    hangs = ender.is_alive()
    if hangs:
        own.destroy(linger=0)
    assert not hangs, "the ZeroMQ context does not terminate: a socket was left open or lingers"


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"
