"""Lets the tests of this folder import helpers by name (stand_ins; models of tests/kernels); watches descriptors."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kernels")]

from house import House  # noqa: E402
from line import Line  # noqa: E402
from served_helper import Helper  # noqa: E402  beside this file, as the line above makes importable
from stage import Stage  # noqa: E402
from steward_link import Link  # noqa: E402

from orind.daemon.signals import HANDLED, SignalInbox  # noqa: E402
from orind.power.plant.board import PlantBoard  # noqa: E402
from orind.power.plant.model import PlantModel  # noqa: E402
from orind.power.plant.modules import AGX_ORIN, JETPACKS  # noqa: E402
from orind.power.plant.tree import Layout, build_tree  # noqa: E402

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


@pytest.fixture
def link(tmp_path: Path, no_fd_leak: None) -> Iterator[Link]:
    made = Link(tmp_path)
    yield made
    made.close()


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    PlantBoard(tmp_path / "board", PlantModel(seed=1)).advance(0.1, 0.0)
    return tmp_path / "board"


@pytest.fixture
def board(tmp_path: Path) -> Path:
    build_tree(tmp_path / "board", Layout(AGX_ORIN, JETPACKS["6"], 0))
    return tmp_path / "board"


@pytest.fixture
def helper(tmp_path: Path, board: Path, no_fd_leak: None) -> Iterator[Helper]:
    made = Helper(tmp_path, board)
    yield made
    made.close()


@pytest.fixture
def signals_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in HANDLED}
    yield
    SignalInbox.install_early().close()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def house(tmp_path: Path, signals_restored: None, no_fd_leak: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr("orind.daemon.realtime.quiet_collector", lambda: None)
    made = House(tmp_path)
    yield made
    made.close()


@pytest.fixture
def stage(no_fd_leak: None) -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()
