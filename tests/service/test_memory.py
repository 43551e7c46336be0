"""Memory of real engines: what is said and drawn of it, and a renewal through the standby that loses nothing."""

from __future__ import annotations

import time
import xml.dom.minidom
from pathlib import Path

import built_plans
import harness
import numpy as np


def test_an_engine_whose_memory_is_in_pieces_is_renewed_and_no_frame_is_lost(folder: Path) -> None:
    """The limit is so low that the work arrays of narrow pictures, which are small ones in a slab, are above it."""
    config = {
        "models": {"m": {"plan": str(built_plans.part_plan())}},
        "cameras": {"line1": {"model": "m", "deadline_ms": 5000}},
        "memory": {"fragmentation_renew_percent": 0.001, "fragmentation_alarm_percent": 100},
    }
    rng = np.random.default_rng(1)
    with harness.Service(folder, config) as service:
        before = {engine["epoch"]: engine for engine in service.status()["engines"]}
        assert {engine["memory"]["fragmentation_percent"] for engine in before.values()} == {0.0}
        sent = 0
        with service.client() as client:
            for _ in range(200):
                for width, height in ((20, 400), (40, 500)):
                    client.send(rng.integers(0, 255, (height, width, 3), dtype=np.uint8), "rgb8")
                    sent += 1
                assert all(answer.outcome == "ok" for answer in client.wait_all(30))
                if service.status()["renewals"]:
                    break
                time.sleep(0.1)
        status = service.wait_for(lambda status: status["state"] == "serving", "a new standby")
        assert status["renewals"] == 1 and status["failovers"] == 0 and status["losses"] == {}
        assert status["frames"]["received"] == status["frames"]["ok"] == sent
        (new,) = [engine for engine in status["engines"] if engine["epoch"] not in before]
        assert new["memory"]["fragmentation_percent"] == 0.0 and "is let go: 0.4 % of its free" in service.log()
        assert {process["name"].partition(" ")[0] for process in status["processes"]} >= {"main", "nursery", "engine"}
        picture = folder / "map.svg"
        assert service.orind("status", "--run-dir", str(service.run_dir), "--memory-map", str(picture)).returncode == 0
        texts = xml.dom.minidom.parse(str(picture)).getElementsByTagName("text")
        said = ["".join(node.data for node in text.childNodes) for text in texts]
        assert sum(text.startswith("engine ") for text in said) == 2
        assert sum(text.startswith("part-inspect: weights, ") for text in said) == 2
        assert service.stop() == 0
