"""End-to-end tests of the real daemon: its processes, its sockets, its command line. They share plans built once."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import built_plans  # noqa: E402  from scripts/, which the line above makes importable


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: Unix sockets below it have at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="orind-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def identity() -> Path:
    """A plan that takes a uint8 tensor of 4 rows and gives one byte of each."""
    return built_plans.identity_plan(4)


@pytest.fixture(scope="session")
def parts() -> Path:
    return built_plans.part_plan()


@pytest.fixture(scope="session")
def other_parts() -> Path:
    """The part detector, calibrated on other pictures."""
    return built_plans.part_plan(variant=1)


@pytest.fixture(scope="session")
def faces() -> Path:
    return built_plans.face_plan()
