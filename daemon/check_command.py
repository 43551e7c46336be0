"""`orind check CONFIG`: everything that `serve` would refuse, all at once, and what the configuration promises."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from ..ipc.bounded_text import bound_texts
from ..ipc.exit_codes import Exit
from . import footprint, named_inputs
from .candidate import Candidate
from .checker import Checked, check, describe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: orind check /etc/orind/orind.yaml\n"
        "exit code 0: fit to serve; 78: refused, all mistakes at once (settings that contradict each other are seen "
        "where each is well formed)"
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help="configuration file (YAML)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def run(options: argparse.Namespace) -> int:
    if missing := named_inputs.refused("check", [options.config]):
        return missing
    checked = check(options.config)
    try:
        if options.json:
            print(json.dumps(describe(checked)))
        elif checked.problems:
            print("\n".join(bound_texts(checked.problems)), file=sys.stderr)
        else:
            print("\n".join(lines(options.config, checked)))
        return Exit.CONFIGURATION if checked.problems else Exit.DONE
    finally:
        checked.close()


def lines(path: Path, checked: Checked) -> list[str]:
    """What a good configuration means, in words."""
    config = checked.config
    assert config is not None
    engine = config.engine
    slot_mib = config.slots.count * config.slots.bytes / (1 << 20)
    text = [f"{path}: fit to serve"]
    text += [
        f"  model {p.name}: {p.path} ({p.bytes / (1 << 20):.1f} MiB, {p.spec.task}, batch {list(p.spec.batch)})"
        for p in checked.plans
    ]
    text += [
        f"  camera {name}: {_versions(c.model)}, {c.priority}, answered within {c.deadline_ms:g} ms"
        for name, c in config.cameras.items()
    ]
    text += [f"  source {s.name}: {s.pattern} {s.attach}s {s.endpoint}" for s in config.sources]
    text.append(f"  frame slots: {config.slots.count}, {slot_mib:.0f} MiB in all; changing them takes a restart")
    text.append(
        f"  a hung engine is detected within {engine.heartbeat_missed_ms:g} ms when idle, "
        f"within {engine.batch_watchdog_ms:g} ms in a batch"
    )
    needed = footprint.of_engines(Candidate(config, checked.plans, None))
    text.append(
        f"  engines: about {needed}; a reload needs that once more beside what serves"
    )
    text += [f"  note: {note}" for note in config.notes()]
    if config.standby.last_resort != "none":
        text.append("  while no engine on the GPU can serve, one on the CPU does; its answers say `degraded`")
    text.append(f"  a stop answers everything within {config.stop.drain_timeout_s:g} s")
    if config.power is not None:
        text.append(f"  power: {config.power.board} under {config.power.root}, policy {config.power.policy}")
    return text


def _versions(shares: Mapping[str, int]) -> str:
    """The model, or each version with its part of the triggers."""
    if len(shares) == 1:
        return f"model {next(iter(shares))}"
    whole = sum(shares.values())
    return "versions " + ", ".join(f"{name} {100 * share / whole:.4g} %" for name, share in shares.items())
