"""The tables of the configuration: every key with its type, bounds, default and meaning, units in the names.

Put together in `config.py`; docs/configuration.md is made from here. Unknown keys are errors, values are not coerced.
"""

from __future__ import annotations

import re
import reprlib
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ..ipc.activation import socket_name
from ..ipc.endpoint import check_endpoint
from ..ipc.errors import EndpointError


def _of_form(pattern: str, words: str) -> AfterValidator:
    """Text that the whole pattern matches; the refusal says so in words, not as a pattern."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"should be {words}, got {reprlib.repr(text)}")
        return text

    return AfterValidator(check)


PathText = Annotated[
    str, _of_form(r"[^\x00-\x1f\x7f\ud800-\udfff]+", "a path without control characters or halves of characters")
]
Name = Annotated[str, _of_form(r"[A-Za-z0-9_.-]{1,48}", "1 to 48 of the characters A-Z a-z 0-9 _ . -")]
CameraName = Annotated[str, Field(min_length=1, max_length=64)]
# `{run_dir}` stands for the configuration's run_dir
MODELS_MAX = 24  # their plans go to an engine as descriptors of one message, which holds ipc.fd_passing.FDS_MAX


def _usable_endpoint(text: str) -> str:
    """What opening the socket would refuse is refused here, where file and line are known."""
    try:
        if not socket_name(text):
            check_endpoint(text)
    except EndpointError as error:
        raise ValueError(str(error)) from None
    if strange := re.search(r"\{.*?\}", text.replace("{run_dir}", "")):
        raise ValueError(f"endpoint {text!r}: only {{run_dir}} is filled in, not {strange[0]}")
    return text


Endpoint = Annotated[
    str,
    _of_form(r"(ipc|tcp)://(?s:.+)|systemd:(?s:.+)", "ipc:///path, tcp://host:port or systemd:name"),
    AfterValidator(_usable_endpoint),
]


class Section(BaseModel):
    """A table of the configuration: unknown keys are refused, values are not coerced from other types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


class ModelEntry(Section):
    plan: PathText = Field(description="plan file; relative to the configuration file")


def _shares(given: object) -> object:
    """A plain name is the whole share of that model."""
    if isinstance(given, str):
        return {given: 1}
    if not isinstance(given, dict):
        raise ValueError(f"should be a model, or a table `MODEL: SHARE` of versions, got {reprlib.repr(given)}")
    return given


VERSIONS_MAX = 8
SHARES_EXAMPLE = "{parts-v1: 90, parts-v2: 10}"
Share = Annotated[int, Field(ge=0, le=1000)]
VersionShares = Annotated[dict[Name, Share], Field(min_length=1, max_length=VERSIONS_MAX), BeforeValidator(_shares)]


class Camera(Section):
    model: VersionShares = Field(
        description=f"a model, or versions with their shares, such as `{SHARES_EXAMPLE}`: of as many consecutive "
        "sequence numbers as the shares add up to in lowest terms each version has exactly its share"
    )
    priority: Literal["critical", "normal", "best_effort"] = Field(
        default="normal", description="critical first; of a best-effort camera only the newest frame is worth an answer"
    )
    deadline_ms: float = Field(gt=0, le=60_000, description="from capture to result; a header may only tighten it")
    rate_limit_hz: float = Field(default=0, ge=0, le=100_000, description="token bucket; 0: no limit")
    rate_burst: int = Field(
        default=10, ge=1, le=10_000, description="triggers that may come at once under rate_limit_hz"
    )
    optional: bool = Field(
        default=False, description="under overload its frames are left out first, answered `dropped`; see degradation"
    )
    degraded: Literal["none", "held"] = Field(
        default="none",
        description="held: at the last level of degradation a frame may be answered `degraded` with the camera's last "
        "result, which says nothing of the part in front of it; not for a camera that sorts parts",
    )
    held_age_max_ms: float = Field(
        default=1000, gt=0, le=600_000, description="an older picture's result is not given any more"
    )


class SourceEntry(Section):
    name: Name
    endpoint: Endpoint = Field(
        description="ipc:///path, tcp://host:port, or systemd:name, a socket that systemd passes (FileDescriptorName=)"
    )
    pattern: Literal["router", "pull", "sub"] = Field(
        default="router", description="router answers each frame, the others do not"
    )
    attach: Literal["bind", "connect"] = Field(default="bind", description="connect: to a camera program that binds")
    receive_queue: int = Field(default=64, ge=2, le=10_000, description="messages that ZeroMQ holds for us")


class Results(Section):
    endpoint: Endpoint = Field(description="a PUB socket binds here, as with sources; every result is published")
    send_queue: int = Field(default=1000, ge=2, le=100_000, description="results held for a slow subscriber")


class Slots(Section):
    count: int = Field(default=32, ge=4, le=4096, description="frames held at once: waiting, being decoded, in flight")
    bytes: int = Field(
        default=4 << 20, ge=4096, le=256 << 20, description="largest frame; a JPEG's decoded planes must fit too"
    )


class EngineSection(Section):
    device: Annotated[str, _of_form(r"cpu|cuda(:[0-9]{1,3})?", "cpu, cuda or cuda:N")] = Field(
        default="cpu", description="cpu, cuda (the first GPU) or cuda:N; given or refused, never swapped"
    )
    cpu_steps: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="device cuda: steps of a plan without a CUDA kernel may run on the CPU; `orind status` lists them",
    )
    queue_depth: int = Field(
        default=2,
        ge=1,
        le=8,
        description="batches that the active engine has: one runs, the others wait in its channel",
    )
    batch_watchdog_ms: float = Field(default=2000, gt=0, le=600_000, description="a batch that runs longer: hung")
    heartbeat_ms: float = Field(default=100, ge=5, le=60_000, description="an idle engine beats this often")
    heartbeat_missed_ms: float = Field(default=150, gt=0, le=600_000, description="an idle engine so long silent: hung")
    golden_interval_s: float = Field(
        default=10,
        gt=0,
        le=86_400,
        description="how long a right golden answer counts; engines take turns to prove themselves twice as often",
    )
    golden_timeout_ms: float = Field(
        default=2000, gt=0, le=600_000, description="a golden check that takes longer means a hung engine"
    )
    ready_timeout_s: float = Field(
        default=60, gt=0, le=3600, description="from the start of an engine to its first right golden answer"
    )
    restart_budget: int = Field(
        default=5, ge=0, description="engines that may be lost within restart_window_s; one more is `failed`"
    )
    restart_window_s: float = Field(default=60, gt=0, le=86_400, description="see restart_budget")
    cpus: list[int] = Field(default_factory=list, description="CPUs of the engines; empty: all")


class Standby(Section):
    device: Annotated[str, _of_form(r"|cuda:[0-9]{1,3}", "cuda:N, the number of a GPU")] = Field(
        default="", description="a second GPU for the second engine, as cuda:1; empty: where the first one runs"
    )
    last_resort: Literal["none", "cpu"] = Field(
        default="none",
        description="cpu: while no engine on the GPU can serve, one on the CPU does; its answers say `degraded`",
    )


class Batching(Section):
    mode: Literal["fixed", "window", "adaptive"] = Field(
        default="window",
        description="fixed waits for max_size frames while deadlines allow; window: see window_ms; adaptive: see "
        "min_size, long_queue, short_window_ms, and never longer than twice the time of the model's last batch",
    )
    max_size: int = Field(default=1, ge=1, le=64, description="frames in a batch; the plan must hold such a size")
    window_ms: float = Field(
        default=5, ge=0, le=60_000, description="modes window and adaptive: how long the first frame waits"
    )
    min_size: int = Field(
        default=4, ge=1, le=64, description="mode adaptive: so many frames start at once on an engine that is idle"
    )
    long_queue: int = Field(
        default=16, ge=1, le=4096, description="mode adaptive: waiting frames above which short_window_ms holds"
    )
    short_window_ms: float = Field(default=1, ge=0, le=60_000, description="mode adaptive: see long_queue")


class Decode(Section):
    workers: int = Field(default=1, ge=0, le=16, description="JPEG decode workers; 0 refuses JPEG")
    timeout_ms: float = Field(
        default=1000, gt=0, le=600_000, description="a JPEG that takes longer is an error, its worker is replaced"
    )


class Http(Section):
    host: str = Field(default="127.0.0.1", description="address of /healthz, /metrics, /status.json and the page")
    port: int = Field(default=8787, ge=0, le=65535, description="0: any free one; `orind status` tells")


class Power(Section):
    board: Annotated[str, _of_form(r"[a-z0-9-]+(:[A-Za-z0-9_]+)?", "board[:MODE], such as agx-orin:MODE_30W")] = Field(
        description="board[:MODE], e.g. agx-orin:MODE_30W"
    )
    policy: PathText = Field(description="power policy file; relative to the configuration file")
    root: PathText = Field(default="/", description="root of the sysfs tree; the real board is /")
    source: Literal["sysfs", "jtop"] = Field(
        default="sysfs", description="who reads the sensors: orind, or jtop's service; clocks are always set by orind"
    )
    jtop_python: PathText | None = Field(
        default=None, description="source jtop: Python of an environment with jetson-stats, e.g. /opt/jtop/bin/python"
    )


class Health(Section):
    queue_max: int | None = Field(
        default=None, ge=1, description="waiting frames above which health is 503; none: three quarters of slots.count"
    )
    memory_max_percent: float = Field(default=90, gt=0, le=100, description="memory in use above which health is 503")


LEAK_MINUTES_MIN = 15
"""A window's bucket then lasts as long as it takes to look at as many processes as there can be, one a second."""


def _with_samples_enough(minutes: object) -> object:
    """The bound with its reason; what is no number is told apart elsewhere."""
    if isinstance(minutes, (int, float)) and not isinstance(minutes, bool) and minutes < LEAK_MINUTES_MIN:
        raise ValueError(
            f"should be at least {LEAK_MINUTES_MIN}: one process is looked at a second, so that in a "
            "shorter time there may be too few samples of each for a verdict"
        )
    return minutes


class Memory(Section):
    """Of an engine: all its plans, and room to prepare pictures, lie in one reservation."""

    emergency_reserve_mib: int = Field(
        default=8, ge=0, le=1024, description="part of an engine's reservation that is used last; its use is reported"
    )
    fragmentation_renew_percent: float = Field(
        default=8, gt=0, le=100, description="of its free memory not in one piece: the standby takes over, see failover"
    )
    fragmentation_alarm_percent: float = Field(default=15, gt=0, le=100, description="the same: health says so")
    leak_minutes: Annotated[float, BeforeValidator(_with_samples_enough)] = Field(
        default=30,
        ge=LEAK_MINUTES_MIN,
        le=1440,
        description="memory, descriptors or threads of a process that grow so long without a rest: health says so; "
        "shorter, there would not be enough samples of each process",
    )


class Degradation(Section):
    """Of critical and normal frames; of best-effort ones the older are `stale` anyway."""

    enter_lost_percent: float = Field(
        default=5, gt=0, le=100, description="overload: so many frames came too late or found no slot within a second"
    )
    enter_age_percent: float = Field(
        default=80, gt=0, le=100, description="overload: a waiting frame has used so much of its time"
    )
    enter_after_ms: float = Field(
        default=1000, ge=0, le=600_000, description="overload that lasts so long leads to the next level"
    )
    leave_lost_percent: float = Field(default=1, ge=0, le=100, description="calm: at most so many are lost,")
    leave_age_percent: float = Field(default=40, ge=0, le=100, description="no frame waits longer than this,")
    leave_load_percent: float = Field(
        default=80, gt=0, le=100, description="and what is offered, left out or not, needs at most so much of the time"
    )
    leave_after_s: float = Field(
        default=10, gt=0, le=3600, description="calm that lasts so long leads back a level; each holds at least as long"
    )


class Stop(Section):
    drain_timeout_s: float = Field(
        default=20, gt=0, le=30, description="a stop answers everything within this; below the unit's TimeoutStopSec"
    )


class Realtime(Section):
    lock_memory: bool = Field(default=False, description="mlockall; needs LimitMEMLOCK")
    cpus: list[int] = Field(default_factory=list, description="CPUs of the main process; empty: all")
    fifo_priority: int = Field(default=0, ge=0, le=99, description="SCHED_FIFO priority of main; 0: none")
