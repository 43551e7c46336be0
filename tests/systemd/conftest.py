"""A machine with orind installed, booted once for the session; each test gets it configured and stopped.

Here, and nowhere else, stands where these tests cannot run: only root may make a machine (machine.py). They are then
left out, and the summary says why. What reads files only (test_unit.py, test_install.py) runs everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "scripts")]

import built_plans  # noqa: E402  from scripts/
from installed import Installed  # noqa: E402  beside this file
from machine import Machine, why_not  # noqa: E402
from restarts import shipped_config  # noqa: E402

REASON = why_not()
PARTS = ("machine", "service", "faults", "restarts", "activation", "power_helper")
NEED_A_MACHINE = [f"test_{what}.py" for what in PARTS]
collect_ignore = NEED_A_MACHINE if REASON else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REASON:
        terminalreporter.write_line(f"left out: tests/systemd/{', '.join(NEED_A_MACHINE)}: {REASON}")


@pytest.fixture(scope="session")
def installed() -> Iterator[Installed]:
    plan = built_plans.part_plan()
    with Machine() as machine:
        orind = Installed(machine)
        orind.put_plan(plan)
        yield orind


@pytest.fixture
def config(installed: Installed) -> dict[str, Any]:
    return shipped_config(installed.put_plan(built_plans.part_plan()))


@pytest.fixture
def orind(installed: Installed, config: dict[str, Any]) -> Iterator[Installed]:
    """Configured, not started. After the test it is stopped and as shipped; a failure shows its journal."""
    installed.configure(config)
    installed.begin_journal()
    yield installed
    print(installed.journal())
    installed.reset()


@pytest.fixture(scope="session")
def picture() -> Any:
    """A part, uint8 (256, 256, 3) rgb8."""
    return built_plans.part_pictures(1)[0]
