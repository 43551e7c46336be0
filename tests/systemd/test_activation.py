"""orind.socket: systemd holds the cameras' socket, so that they wait where they would be refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from installed import UNIT, Installed
from restarts import SOCKET, Knocking, held_by_systemd, restart_under_load


@pytest.fixture
def activated(orind: Installed, config: dict[str, Any]) -> Iterator[Installed]:
    """The shipped socket unit listens, orind does not run; nothing else of the configuration is changed."""
    orind.configure(held_by_systemd(config))
    orind.systemctl("start", SOCKET)
    yield orind
    orind.systemctl("stop", SOCKET, UNIT)


def test_the_first_camera_starts_it_and_a_stop_leaves_the_socket(activated: Installed, picture: Any) -> None:
    assert activated.show("ActiveState") == "inactive"
    path = activated.endpoint.removeprefix("ipc://")
    for _ in range(2):
        with activated.client(send_timeout_s=60.0) as camera:
            camera.send(picture, "rgb8")
            assert [answer.outcome for answer in camera.wait_all(20)] == ["ok"]
        activated.systemctl("stop", UNIT)
        assert activated.machine.path("/run/orind/frames").is_socket()
    activated.systemctl("stop", SOCKET)
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
        late.connect(path)


def test_nobody_is_refused_while_it_starts_anew(activated: Installed) -> None:
    """Over a restart and a kill -9 of main, under load."""
    activated.systemctl("start", UNIT)
    with Knocking(activated.endpoint.removeprefix("ipc://")) as camera:
        result = restart_under_load(activated, ["graceful", "kill -9"])
    assert camera.accepted > 0 and camera.refused == 0
    assert (result.unanswered(), result.answered_twice(), result.load.not_ok()) == ([], [], [])
