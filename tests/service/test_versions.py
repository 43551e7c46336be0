"""Versions by share and a rollback, seen from outside the real daemon."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import harness


def test_versions_by_share_and_back_to_what_served_before(folder: Path, identity: Path) -> None:
    models = {"v1": {"plan": str(identity)}, "v2": {"plan": str(identity)}}
    before = {"models": models, "cameras": {"line1": {"model": "v1"}}}
    with harness.Service(folder, before) as service, service.client() as camera:
        where = ["--run-dir", str(service.run_dir)]
        nothing = service.orind("rollback", *where)
        assert (nothing.returncode, nothing.stdout.count("there is nothing to go back to")) == (1, 1)
        service.configure({"models": models, "cameras": {"line1": {"model": {"v1": 3, "v2": 1}}}})
        assert service.reload()["ok"]
        for seq in range(40):
            camera.send(harness.identity_tensor(4, seq), "tensor")
        answers = camera.wait_all(30)
        assert [a.outcome for a in answers] == ["ok"] * 40
        versions = {a.seq: a.model for a in answers}
        assert Counter(versions.values()) == {"v1": 30, "v2": 10}
        blocks = [[versions[seq] for seq in range(first, first + 4)] for first in range(0, 40, 4)]
        assert all(block.count("v2") == 1 for block in blocks)
        status = service.status()
        assert {name: model["frames"] for name, model in status["models"].items()} == {
            "v1": {"ok": 30}, "v2": {"ok": 10},
        }  # fmt: skip
        back = service.orind("rollback", "--wait", *where)
        assert (back.returncode, back.stdout) == (0, "generation 3 serves what generation 1 served\n"), back.stderr
        for seq in range(8):
            camera.send(harness.identity_tensor(4, seq), "tensor")
        assert Counter(a.model for a in camera.wait_all(30)) == {"v1": 8}
        status = service.status()
        assert str(service.config_path) in status["reload"]["differs"] in status["health"]["reasons"]
        assert harness.account_gap(status) == 0
