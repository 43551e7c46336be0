"""The configuration's typed schema: every tunable, units in the names, refused whole.

Built by `config_file.py` from YAML in the checker, and from the checker's JSON in main. Unknown keys are errors.
Time-outs that contradict each other are errors that name both.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from ..ipc.errors import IpcError
from . import contradictions, promises
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
    Memory,
    ModelEntry,
    Name,
    PathText,
    Power,
    Realtime,
    Results,
    Section,
    Slots,
    SourceEntry,
    Standby,
    Stop,
)

RESTART_ONLY = ("slots", "run_dir", "http", "decode", "realtime")


class Config(Section):
    """The whole configuration. `orind check` prints what it means."""

    run_dir: PathText = Field(
        default="/run/orind", description="folder of the control socket, the instance lock and saved clocks"
    )
    models: dict[Name, ModelEntry] = Field(min_length=1, max_length=MODELS_MAX)
    cameras: dict[CameraName, Camera] = Field(min_length=1)
    sources: list[SourceEntry] = Field(min_length=1)
    results: Results | None = None
    slots: Slots = Slots()
    engine: EngineSection = EngineSection()
    standby: Standby = Standby()
    batching: Batching = Batching()
    degradation: Degradation = Degradation()
    decode: Decode = Decode()
    http: Http | None = None
    power: Power | None = None
    health: Health = Health()
    memory: Memory = Memory()
    stop: Stop = Stop()
    realtime: Realtime = Realtime()

    @property
    def power_root(self) -> str:
        return self.power.root if self.power is not None else "/"

    def running_on(self, start: Config) -> Config:
        """This configuration as a daemon that was started with `start` can serve it. Raises IpcError: not at all."""
        running = self.model_copy(update={name: getattr(start, name) for name in RESTART_ONLY})
        if wrong := running.contradictions():
            kept = ", ".join(RESTART_ONLY)
            raise IpcError(f"with {kept} as they are until a restart: {'; '.join(wrong)}")
        return running

    @property
    def queue_limit(self) -> int:
        """Waiting frames above which health is 503."""
        return self.health.queue_max if self.health.queue_max is not None else self.slots.count * 3 // 4

    def reload_notes(self, start: Config, serving: Config) -> list[str]:
        """What differs from `start` and only a restart can apply; what it gives up and `serving` does not."""
        changed = [name for name in RESTART_ONLY if getattr(start, name) != getattr(self, name)]
        restart = [f"{name} has changed, which takes effect at the next restart" for name in changed]
        return restart + [note for note in self.notes() if note not in serving.notes()]

    def notes(self) -> list[str]:
        """What is given up of what orind promises: a line each, which names the dotted key to look at."""
        return list(promises.of_failover(self.engine))

    @model_validator(mode="after")
    def _coherent(self) -> Config:
        problems = self.contradictions()
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def contradictions(self) -> list[str]:
        """Settings that cannot both hold: a line each, which names the dotted key to look at."""
        tightest_ms = min(camera.deadline_ms for camera in self.cameras.values())
        return [
            *contradictions.of_routing(self.models, self.cameras),
            *contradictions.of_sockets(self.sources, self.results, self.http),
            *contradictions.of_batching(self.batching),
            *contradictions.of_devices(self.engine, self.standby),
            *contradictions.of_times(self.engine, self.batching, self.decode, self.stop, tightest_ms),
            *contradictions.of_degradation(self.degradation),
            *contradictions.of_memory(self.memory),
            *contradictions.of_power(self.power),
            *contradictions.of_room(self.slots, self.batching, self.health),
        ]
