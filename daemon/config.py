"""The configuration's typed schema: every tunable, units in the names, refused whole.

Built by `config_file.py` from YAML in the checker, and from the checker's JSON in main. Unknown keys are errors.
Time-outs that contradict each other are errors that name both.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from .sections import (
    MODELS_MAX,
    Batching,
    Camera,
    CameraName,
    Decode,
    Degradation,
    EngineSection,
    Health,
    Http,
    ModelEntry,
    Name,
    Power,
    Realtime,
    Results,
    Section,
    Slots,
    SourceEntry,
    Stop,
)
from .shares import BLOCK_MAX, block_length

RESTART_ONLY = ("slots", "run_dir", "http", "decode", "realtime")


class Config(Section):
    """The whole configuration. `orind check` prints what it means."""

    run_dir: str = Field(
        default="/run/orind", description="folder of the control socket, the instance lock and saved clocks"
    )
    models: dict[Name, ModelEntry] = Field(min_length=1, max_length=MODELS_MAX)
    cameras: dict[CameraName, Camera] = Field(min_length=1)
    sources: list[SourceEntry] = Field(min_length=1)
    results: Results | None = None
    slots: Slots = Slots()
    engine: EngineSection = EngineSection()
    batching: Batching = Batching()
    degradation: Degradation = Degradation()
    decode: Decode = Decode()
    http: Http | None = None
    power: Power | None = None
    health: Health = Health()
    stop: Stop = Stop()
    realtime: Realtime = Realtime()

    @property
    def power_root(self) -> str:
        return self.power.root if self.power is not None else "/"

    def running_on(self, start: Config) -> Config:
        """This configuration as a daemon that was started with `start` can serve it."""
        return self.model_copy(update={name: getattr(start, name) for name in RESTART_ONLY})

    def restart_notes(self, start: Config) -> list[str]:
        """What differs from `start` and only a restart can apply."""
        changed = [name for name in RESTART_ONLY if getattr(start, name) != getattr(self, name)]
        return [f"{name} has changed, which takes effect at the next restart" for name in changed]

    @model_validator(mode="after")
    def _coherent(self) -> Config:
        problems = list(self._contradictions())
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _contradictions(self) -> list[str]:
        """Every pair of settings that cannot both hold; each line begins with the dotted key to look at."""
        engine, found = self.engine, []
        for name, camera in self.cameras.items():
            if camera.optional and camera.priority == "critical":
                found.append(f"cameras.{name}.optional: a camera whose priority is critical cannot be left out first")
            found += [
                f"cameras.{name}.model: no model '{model}' (models: {', '.join(self.models)})"
                for model in camera.model
                if model not in self.models
            ]
            if not 0 < block_length(camera.model) <= BLOCK_MAX:
                found.append(
                    f"cameras.{name}.model: the shares add up to {block_length(camera.model)} in lowest terms, "
                    f"1 to {BLOCK_MAX} are served"
                )
            if len(name.encode()) > 64:
                found.append(f"cameras.{name}: a camera's name has at most 64 bytes in UTF-8")
        names = [s.name for s in self.sources]
        endpoints = [s.endpoint for s in self.sources] + ([self.results.endpoint] if self.results else [])
        found += [f"sources: the name '{n}' is used twice" for n in sorted({n for n in names if names.count(n) > 1})]
        found += [
            f"sources: the endpoint '{e}' is used twice"
            for e in sorted({e for e in endpoints if endpoints.count(e) > 1})
        ]
        if engine.heartbeat_missed_ms <= engine.heartbeat_ms:
            found.append(
                f"engine.heartbeat_missed_ms: {engine.heartbeat_missed_ms:g} must be above "
                f"engine.heartbeat_ms = {engine.heartbeat_ms:g}"
            )
        if engine.cpu_steps == "allow" and engine.device != "cuda":
            found.append(f"engine.cpu_steps: allow is for engine.device = cuda, which is {engine.device}")
        tightest = min(c.deadline_ms for c in self.cameras.values())
        batching = self.batching
        if batching.mode != "fixed" and batching.max_size > 1 and batching.window_ms >= tightest:
            found.append(
                f"batching.window_ms: {batching.window_ms:g} leaves nothing of the tightest "
                f"cameras.*.deadline_ms = {tightest:g}"
            )
        if batching.mode == "adaptive":
            if batching.min_size >= batching.max_size:
                found.append(
                    f"batching.min_size: {batching.min_size} must be below batching.max_size = {batching.max_size} "
                    "in mode adaptive"
                )
            if batching.short_window_ms > batching.window_ms:
                found.append(
                    f"batching.short_window_ms: {batching.short_window_ms:g} must not be above "
                    f"batching.window_ms = {batching.window_ms:g}"
                )
        for what in ("lost", "age"):
            enter, leave = (getattr(self.degradation, f"{when}_{what}_percent") for when in ("enter", "leave"))
            if leave >= enter:
                found.append(
                    f"degradation.leave_{what}_percent: {leave:g} must be below "
                    f"degradation.enter_{what}_percent = {enter:g}"
                )
        if self.stop.drain_timeout_s * 1000 <= engine.batch_watchdog_ms:
            found.append(
                f"stop.drain_timeout_s: {self.stop.drain_timeout_s:g} s must be above "
                f"engine.batch_watchdog_ms = {engine.batch_watchdog_ms:g}, or a drain cuts off a running batch"
            )
        return found
