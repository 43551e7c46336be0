"""Who may ask the power helper."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orind.daemon import power_helper
from orind.daemon.power_helper import may_ask

CONNECT = """
import os, socket, sys
os.setgroups([int(g) for g in sys.argv[4].split(",") if g]); os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[2]))
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); sock.connect(sys.argv[1]); sock.recv(1)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize(("uid", "gid", "groups", "may"), [
    (0, 0, "", True), (1234, 4321, "", True), (1234, 1234, "7,4321", True), (1234, 1234, "7", False),
    (1234, 1234, "", False), (1234, 0, "0", False)])
def test_root_and_members_of_the_group_may_ask(uid: int, gid: int, groups: str, may: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        Path(folder).chmod(0o755)  # where anybody can go
        path = Path(folder) / "sock"
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        listener.settimeout(20)
        command = [sys.executable, "-ISc", CONNECT, str(path), str(uid), str(gid), groups]
        with subprocess.Popen(command) as peer:
            sock, _ = listener.accept()
            with sock:
                assert may_ask(sock, 4321) is may
        assert peer.returncode == 0


def test_a_kernel_that_does_not_tell_the_groups_means_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_helper, "_SO_PEERGROUPS", 9999)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        monkeypatch.setattr(power_helper.struct, "unpack", lambda *_: (1, 1234, 1234))
        assert may_ask(ours, 4321) is False
