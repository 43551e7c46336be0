"""Settings that cannot both hold: each found pair is one line that begins with the dotted key to look at.

Called by `config.py` when every key alone is right. Pure. A time-out that another one makes pointless is a mistake: it
would be found out in the night when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..ipc.activation import socket_name
from .sections import (
    Batching,
    Camera,
    Decode,
    Degradation,
    EngineSection,
    Health,
    Http,
    Memory,
    ModelEntry,
    Power,
    Results,
    Slots,
    SourceEntry,
    Standby,
    Stop,
)
from .shares import BLOCK_MAX, block_length


def of_routing(models: Mapping[str, ModelEntry], cameras: Mapping[str, Camera]) -> Iterator[str]:
    for name, camera in cameras.items():
        for model in camera.model:
            if model not in models:
                yield f"cameras.{name}.model: no model '{model}' (models: {', '.join(models)})"
        if not 0 < (length := block_length(camera.model)) <= BLOCK_MAX:
            yield f"cameras.{name}.model: the shares add up to {length} in lowest terms, 1 to {BLOCK_MAX} are served"
        if camera.optional and camera.priority == "critical":
            yield f"cameras.{name}.optional: a camera whose priority is critical cannot be left out first"
        if len(name.encode()) > 64:
            yield f"cameras.{name}: a camera's name has at most 64 bytes in UTF-8"


def of_sockets(sources: Sequence[SourceEntry], results: Results | None, http: Http | None) -> Iterator[str]:
    names = [s.name for s in sources]
    endpoints = [s.endpoint for s in sources] + ([results.endpoint] if results else [])
    yield from (f"sources: the name '{n}' is used twice" for n in sorted({n for n in names if names.count(n) > 1}))
    for source in sources:
        if source.attach == "connect" and socket_name(source.endpoint):
            yield f"sources: '{source.name}': {source.endpoint} is bound already: attach must be bind"
    for endpoint in sorted({e for e in endpoints if endpoints.count(e) > 1}):
        yield f"sources: the endpoint '{endpoint}' is used twice"
    bound = [s.endpoint for s in sources if s.attach == "bind"] + ([results.endpoint] if results else [])
    port = http.port if http is not None else 0
    for endpoint in bound:
        if port and endpoint.startswith("tcp://") and endpoint.endswith(f":{port}"):
            yield f"http.port: {port} is the port of {endpoint} too"


def of_batching(batching: Batching) -> Iterator[str]:
    """Keys that the mode does not look at, set to something."""
    adaptive = dict.fromkeys(("min_size", "long_queue", "short_window_ms"), ("adaptive",))
    only = {**adaptive, "window_ms": ("window", "adaptive")}
    for key, modes in only.items():
        if batching.mode not in modes and getattr(batching, key) != Batching.model_fields[key].default:
            yield f"batching.{key}: has a meaning in mode {' or '.join(modes)} only, batching.mode is {batching.mode}"


def of_devices(engine: EngineSection, standby: Standby) -> Iterator[str]:
    if engine.device != "cpu":
        return
    if engine.cpu_steps == "allow":
        yield f"engine.cpu_steps: allow is for engine.device = cuda, which is {engine.device}"
    if standby.device:
        yield f"standby.device: {standby.device} is for engine.device = cuda, which is {engine.device}"
    if standby.last_resort == "cpu":
        yield "standby.last_resort: cpu is for engine.device = cuda, which is cpu already"


def of_power(power: Power | None) -> Iterator[str]:
    if power is None:
        return
    if power.source == "jtop" and power.jtop_python is None:
        yield "power.jtop_python: source jtop needs the Python interpreter that has jetson-stats"
    if power.source != "jtop" and power.jtop_python is not None:
        yield f"power.jtop_python: is for power.source = jtop, which is {power.source}"


def of_memory(memory: Memory) -> Iterator[str]:
    renew, alarm = memory.fragmentation_renew_percent, memory.fragmentation_alarm_percent
    if renew > alarm:
        yield (
            f"memory.fragmentation_renew_percent: {renew:g} must not be above "
            f"memory.fragmentation_alarm_percent = {alarm:g}"
        )


def of_times(
    engine: EngineSection, batching: Batching, decode: Decode, stop: Stop, tightest_deadline_ms: float
) -> Iterator[str]:
    if engine.heartbeat_missed_ms <= engine.heartbeat_ms:
        yield (
            f"engine.heartbeat_missed_ms: {engine.heartbeat_missed_ms:g} must be above "
            f"engine.heartbeat_ms = {engine.heartbeat_ms:g}"
        )
    if engine.golden_timeout_ms > engine.golden_interval_s * 1000 / 2:
        yield (
            f"engine.golden_timeout_ms: {engine.golden_timeout_ms:g} must be at most half of "
            f"engine.golden_interval_s = {engine.golden_interval_s:g}, when a standby is asked again: later its last "
            "answer would have run out before it is given up"
        )
    if batching.mode != "fixed" and batching.max_size > 1 and batching.window_ms >= tightest_deadline_ms:
        yield (
            f"batching.window_ms: {batching.window_ms:g} leaves nothing of the tightest "
            f"cameras.*.deadline_ms = {tightest_deadline_ms:g}"
        )
    if batching.mode == "adaptive" and batching.short_window_ms > batching.window_ms:
        yield (
            f"batching.short_window_ms: {batching.short_window_ms:g} must not be above "
            f"batching.window_ms = {batching.window_ms:g}"
        )
    drain_ms = stop.drain_timeout_s * 1000
    for key, limit_ms, what in (
        ("engine.batch_watchdog_ms", engine.batch_watchdog_ms, "a running batch"),
        ("decode.timeout_ms", decode.timeout_ms, "a JPEG that is being decoded"),
    ):
        if drain_ms <= limit_ms:
            yield (
                f"stop.drain_timeout_s: {stop.drain_timeout_s:g} s must be above {key} = {limit_ms:g}, "
                f"or a drain cuts off {what}"
            )


def of_degradation(degradation: Degradation) -> Iterator[str]:
    for what in ("lost", "age"):
        enter, leave = (getattr(degradation, f"{when}_{what}_percent") for when in ("enter", "leave"))
        if leave >= enter:
            yield (
                f"degradation.leave_{what}_percent: {leave:g} must be below "
                f"degradation.enter_{what}_percent = {enter:g}"
            )


def of_room(slots: Slots, batching: Batching, health: Health) -> Iterator[str]:
    if batching.max_size > slots.count:
        yield f"batching.max_size: {batching.max_size} frames are never there at once, slots.count is {slots.count}"
    if batching.mode == "adaptive" and batching.min_size >= batching.max_size:
        yield (
            f"batching.min_size: {batching.min_size} must be below batching.max_size = {batching.max_size} in mode "
            "adaptive"
        )
    if health.queue_max is not None and health.queue_max >= slots.count:
        yield (
            f"health.queue_max: {health.queue_max} frames never wait: slots.count = {slots.count} holds them, those "
            "in flight included; it must be below"
        )
