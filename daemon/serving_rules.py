"""From the configuration to the rules that a generation serves by: batches, and what is left out under overload.

Called by `generation.py`. Only units change here: what the settings mean is said where they are decided with.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import degradation
from .batcher import Adaptive, Rule
from .config import Config
from .engine_handle import PlanView
from .intake import Intake
from .relief import Policy
from .sections import Batching


@dataclass(frozen=True, slots=True)
class Serving:
    """What a generation gives the pipeline: its rules and its plans. Replaced as a whole at a reload."""

    generation: int
    intake: Intake
    rule: Rule
    depth: int
    plans: dict[str, PlanView]
    relief: Policy
    deaths_max: int = 2  # of engines, before a frame counts as poison


def batch_rule(batching: Batching) -> Rule:
    """How batches are put together, from the configuration."""
    window_ns = None if batching.mode == "fixed" else int(batching.window_ms * 1e6)
    if batching.mode != "adaptive":
        return Rule(batching.max_size, window_ns)
    adaptive = Adaptive(batching.min_size, batching.long_queue, int(batching.short_window_ms * 1e6))
    return Rule(batching.max_size, window_ns, adaptive)


def relief_policy(config: Config) -> Policy:
    """What is left out under overload, from the configuration."""
    told = config.degradation
    rules = degradation.Rules(
        told.enter_lost_percent / 100, told.enter_age_percent / 100, int(told.enter_after_ms * 1e6),
        told.leave_lost_percent / 100, told.leave_age_percent / 100, told.leave_load_percent / 100,
        int(told.leave_after_s * 1e9),
    )
    optional = frozenset(name for name, camera in config.cameras.items() if camera.optional)
    held = {n: int(camera.held_age_max_ms * 1e6) for n, camera in config.cameras.items() if camera.degraded == "held"}
    return Policy(rules, optional, held)
