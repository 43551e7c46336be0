"""What the daemon says about itself: one table for `orind status --json`, the stats page, health and metrics."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from ..ipc.bounded_text import bound_text, bound_texts
from ..ipc.errors import StatsPageError
from ..ipc.histogram import Histogram

log = logging.getLogger("orind")
STATS_EVERY_NS = 250_000_000
FAILED_REMEDY = (
    "none is started again: mend the cause (orind check, orind doctor), then orind reload; orind does not end "
    "by itself (systemd ends a start that never served: TimeoutStartSec)"
)

if TYPE_CHECKING:
    # for the types only: the HTTP process uses `with_latency` and must not load main's modules
    from ..ipc.clock import StampPolicy
    from ..ipc.slots import SlotRing
    from ..ipc.stats_page import StatsWriter
    from .decode_pool import DecodePool
    from .descriptors import Descriptors
    from .endpoints import Endpoints
    from .engine_handle import Batch
    from .failover import Failover
    from .generation import Generation
    from .http_link import HttpLink
    from .leaks import LeakWatch
    from .ledger import Ledger
    from .nursery_client import NurseryClient
    from .orders import Fence
    from .pipeline import Pipeline
    from .power_link import PowerLink
    from .reloading import Reloading
    from .retired import Retired, Tally


class Reported(Protocol):
    """Main, as its status sees it."""

    pid: int
    path: str
    version: str
    draining: bool
    last_failover: dict[str, Any]
    generation: Generation
    ledger: Ledger
    leaks: LeakWatch
    stamps: StampPolicy
    pipeline: Pipeline
    reloading: Reloading
    retired: Retired
    power: PowerLink
    http: HttpLink
    ring: SlotRing
    stats: StatsWriter
    decoders: DecodePool
    descriptors: Descriptors
    endpoints: Endpoints
    nursery: NurseryClient

    @property
    def tally(self) -> Tally: ...
    def state(self, now_ns: int) -> str: ...


def build(daemon: Reported, now_ns: int) -> dict[str, Any]:
    """The table without `latency_ms`, which `with_latency` derives from the histograms (readers do that, not main)."""
    generation, ledger, reloading, tally = daemon.generation, daemon.ledger, daemon.reloading, daemon.tally
    queued, held = len(daemon.pipeline.queues), frames_held(daemon)
    ok, reasons = health(daemon, queued, now_ns)
    return {
        "generation": generation.number,
        "state": daemon.state(now_ns),
        "health": {"ok": ok, "reasons": bound_texts(reasons)},
        "pid": daemon.pid,
        "version": daemon.version,
        "config": bound_text(daemon.path),
        "stats_page": f"/proc/{daemon.pid}/fd/{daemon.stats.fd}",
        "engines": [
            {
                "pid": handle.pid,
                "role": "active" if handle is generation.active else "standby",
                "state": generation.machine.engines[epoch].standing.value,
                "device": handle.device,
                "device_name": handle.device_name,
                "epoch": epoch,
                "memory": generation.memory.table(epoch),
            }
            for epoch, handle in sorted(generation.handles.items(), key=lambda item: item[1] is not generation.active)
        ],
        "models": {
            p.name: {
                "plan": bound_text(p.path),
                "sha256": p.sha256,
                "bytes": p.bytes,
                "placement": generation.placements.get(p.name),
                "frames": dict(ledger.by_model.get(p.name, {})),
            }
            for p in generation.plans
        },
        "cameras": {name: book.table() for name, book in ledger.by_camera.items()},
        "frames": ledger.frames(held),
        "reasons": dict(ledger.reasons),
        "clock_replaced": daemon.stamps.replaced,
        "unroutable": ledger.unroutable,
        "repeats_unanswered": ledger.repeats_unanswered,
        "discarded": daemon.endpoints.discarded,
        "queue": {"length": queued},
        "degradation": daemon.pipeline.relief.report(),
        "slots": {"count": daemon.ring.count, "free": daemon.ring.free},
        "histograms": {stage: h.to_json() for stage, h in ledger.stages.items() if h.count},
        "failovers": tally.failovers,
        "renewals": tally.renewals,
        "processes": daemon.leaks.table(),
        "failover": daemon.last_failover,
        "losses": {fault.value: count for fault, count in tally.losses.items()},
        "reload": {
            "requested": reloading.requested,
            "done": reloading.done,
            "rollbacks": reloading.rollbacks,
            "result": reloading.result,
            "can_roll_back": reloading.can_roll_back,
            "differs": bound_text(reloading.differs),
        },
        "power": daemon.power.report,
        "energy": daemon.power.told_energy(),
        "http": daemon.http.address,
        "memory_max_percent": generation.config.health.memory_max_percent,
    }


def frames_held(daemon: Reported) -> int:
    """The frames without an outcome, counted where they are: being decoded, waiting, and with engines."""
    waiting = len(daemon.decoders) + len(daemon.pipeline.queues)
    return waiting + daemon.generation.frames_in_flight() + daemon.retired.frames_in_flight()


def describe_failover(number: int, batches: list[Batch], order: Fence, now_ns: int) -> dict[str, Any]:
    """The table's `failover`: why and when the last active engine was lost, and how many frames it had."""
    said = {"number": number, "at_ns": now_ns, "fault": order.fault.value, "reason": bound_text(order.reason)}
    return {**said, "frames": sum(len(batch.frames) for batch in batches)}


def health(daemon: Reported, queued: int, now_ns: int) -> tuple[bool, list[str]]:
    """Whether a load balancer may send work here, and why not, or why not as well as it should be."""
    generation, machine = daemon.generation, daemon.generation.machine
    limit = generation.config.queue_limit
    fatal = []
    if daemon.draining:
        fatal.append("draining")
    if generation.active is None:
        fatal.append(f"failed: {_failure(machine)}" if machine.failed else _not_yet(machine))
    if queued > limit:
        fatal.append(f"{queued} frames wait, the limit is {limit}")
    if fatal:
        return False, fatal
    poor = []
    if machine.failed:
        poor.append(f"no standby any more: {machine.failed}")
    if machine.on_last_resort:
        poor.append(f"the CPU serves as last resort, its answers are `degraded`: {machine.restarts.last_loss}")
    elif not machine.failed and not machine.standby_ready(now_ns):
        poor.append("no ready standby")
    if daemon.reloading.differs:
        poor.append(daemon.reloading.differs)
    poor += daemon.pipeline.serving.intake.quarantine.problems(now_ns)
    if daemon.power.problem:
        poor.append(f"the power governor does not run, the lowest pacing holds: {daemon.power.problem}")
    if daemon.http.problem:
        poor.append(f"the HTTP process does not run: {daemon.http.problem}")
    if missing := daemon.ledger.in_flight - frames_held(daemon):
        poor.append(f"{missing} triggers have no outcome and are nowhere: a bug of orind, please report it")
    poor += [*generation.memory.problems(), *daemon.leaks.problems(), *daemon.nursery.misplaced]
    others = (daemon.decoders.problem, daemon.descriptors.problem, daemon.pipeline.relief.problem)
    poor += [problem for problem in others if problem]
    if daemon.power.report.get("short"):
        poor.append(f"power: {daemon.power.report['short']}")
    if daemon.power.report.get("faults"):
        poor += [f"power: {fault}" for fault in daemon.power.report["faults"]]
    return True, poor


def _failure(machine: Failover) -> str:
    """Why it is out of restarts, and why the last engine was lost where that came later."""
    last = machine.restarts.last_loss
    return machine.failed if machine.failed.endswith(last) else f"{machine.failed}; then one more: {last}"


def _not_yet(machine: Failover) -> str:
    last = f"; the last one was lost: {machine.restarts.last_loss}" if machine.restarts.last_loss else ""
    return f"no engine has given a right golden answer yet{last}"


class Page:
    """The stats page's table, written a few times a second and at every change of state.

    One that does not fit is written without its long parts, and says so: it must never end main, nor go silent.
    """

    def __init__(self) -> None:
        self._next_ns = 0
        self._told_state = ""
        self._cut = False

    def tick(self, daemon: Reported, now_ns: int) -> bool:
        """Whether it was time to write."""
        state = daemon.state(now_ns)
        if now_ns < self._next_ns and state == self._told_state:
            return False
        if state == "failed" != self._told_state:
            never = "no engine ever served" if self._told_state in ("", "starting") else "no engine serves any more"
            log.error("%s: %s; %s", never, _failure(daemon.generation.machine), FAILED_REMEDY)
        self._next_ns, self._told_state = now_ns + STATS_EVERY_NS, state
        table = build(daemon, now_ns)
        try:
            daemon.stats.write_blob(table)
            self._cut = False
        except StatsPageError as error:
            if not self._cut:
                log.error("the status is shown without its long parts: %s", error)
            self._cut = True
            daemon.stats.write_blob(shortened(table))
        return True


def shortened(table: dict[str, Any]) -> dict[str, Any]:
    """The table without what can grow: every key is there, and health says what is missing."""
    health = table["health"]
    reasons = [*health["reasons"][:10], "the status is too long to be shown whole"]
    short = {"health": {**health, "reasons": reasons}, "engines": [], "models": {}, "cameras": {}, "reasons": {}}
    short |= {"processes": [], "energy": {**table["energy"], "models": {}}}
    power = {name: value for name, value in table["power"].items() if not isinstance(value, str | list | dict)}
    return {**table, **short, "power": {**power, "board": None}}


def with_latency(status: dict[str, Any]) -> dict[str, Any]:
    """The table with `latency_ms` {stage: {p50, p95, p99}} added."""
    stages = {stage: Histogram.from_json(raw) for stage, raw in status["histograms"].items()}
    latency = {
        stage: {f"p{p}": round((h.quantile(p / 100) or 0.0) / 1e6, 3) for p in (50, 95, 99)}
        for stage, h in stages.items()
    }
    return {**status, "latency_ms": latency}
