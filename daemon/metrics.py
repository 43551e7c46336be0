"""The status as Prometheus metrics, through the prometheus-client library. HTTP process only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ..ipc.histogram import Histogram
from ..ipc.outcomes import OUTCOMES
from ..power.energy import SHARES
from .faults import MEANINGS

BUCKETS_MS = (1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 200, 500, 1000, 2000, 5000)
POWER_GAUGES = (
    ("board_w", "orind_board_watts", "Board power as the sensors show it"),
    ("budget_w", "orind_board_budget_watts", "Board power budget of the policy"),
    ("tj_c", "orind_junction_celsius", "Junction temperature"),
    ("gpu_hz", "orind_gpu_hertz", "GPU clock"),
    ("gpu_cap_hz", "orind_gpu_cap_hertz", "GPU clock cap set by the governor"),
    ("emc_hz", "orind_memory_hertz", "Memory clock"),
)
MEMORY_GAUGES = {
    "size": ("orind_engine_memory_bytes", "An engine's reservation"),
    "used": ("orind_engine_memory_used_bytes", "What its blocks take of it"),
    "reserve_used": ("orind_engine_memory_reserve_used_bytes", "What they take of its emergency reserve"),
    "fragmentation_percent": ("orind_engine_memory_fragmentation_ratio", "1 - largest free block / free"),
}
PROCESS_GAUGES = {
    "private": ("orind_process_private_bytes", "Resident memory that no other process shares"),
    "descriptors": ("orind_process_descriptors", "Open descriptors"),
    "threads": ("orind_process_threads", "Threads"),
    "device_free": ("orind_device_free_bytes", "Memory that the device has free"),
}


class StatusCollector(Collector):
    """Turns one reading of the stats page into metric families."""

    def __init__(self, status: dict[str, Any], healthy: bool) -> None:
        self._status = status
        self._healthy = healthy

    def collect(self) -> Iterator[Metric]:
        status, frames = self._status, self._status["frames"]
        yield GaugeMetricFamily("orind_healthy", "1 while /healthz answers 200", value=float(self._healthy))
        yield GaugeMetricFamily(
            "orind_generation", "Number of the configuration generation", value=status["generation"]
        )
        yield GaugeMetricFamily("orind_queue_length", "Frames waiting for an engine", value=status["queue"]["length"])
        yield GaugeMetricFamily(
            "orind_degradation_level", "0: nothing is left out", value=status["degradation"]["level"]
        )
        yield GaugeMetricFamily(
            "orind_offered_load", "Time that the offered frames need over the time there is",
            value=status["degradation"]["load"],
        )
        yield GaugeMetricFamily("orind_frames_in_flight", "Triggers without an outcome yet", value=frames["in_flight"])
        yield GaugeMetricFamily("orind_slots_free", "Frame slots free", value=status["slots"]["free"])
        yield CounterMetricFamily("orind_frames_received", "Triggers received", value=frames["received"])
        yield CounterMetricFamily("orind_frames_repeated", "Repeats of a known trigger", value=frames["repeated"])
        outcomes = CounterMetricFamily("orind_frames_outcome", "Triggers by outcome", labels=["outcome"])
        for name in OUTCOMES:
            outcomes.add_metric([name], frames[name])
        yield outcomes
        models = CounterMetricFamily("orind_model_frames", "Triggers by model, outcome", labels=["model", "outcome"])
        for model, told in status["models"].items():
            for name in OUTCOMES:
                models.add_metric([model, name], told["frames"].get(name, 0))
        yield models
        labels = ["camera", "outcome"]
        cameras = CounterMetricFamily("orind_camera_frames", "Triggers by camera, outcome", labels=labels)
        silent = GaugeMetricFamily("orind_camera_silent_seconds", "Since its last trigger", labels=["camera"])
        for camera, told in status["cameras"].items():
            for name in OUTCOMES:
                cameras.add_metric([camera, name], told["frames"].get(name, 0))
            if told["last_ns"] is not None:
                silent.add_metric([camera], max(0.0, (time.monotonic_ns() - told["last_ns"]) / 1e9))
        yield from (cameras, silent)
        reasons = CounterMetricFamily("orind_frames_refused", "Triggers not answered ok, by reason", labels=["reason"])
        for reason, count in status["reasons"].items():
            reasons.add_metric([reason], count)
        yield reasons
        yield CounterMetricFamily("orind_failovers", "Take-overs by the standby", value=status["failovers"])
        losses = CounterMetricFamily("orind_engines_lost", "Engines lost, by fault", labels=["fault"])
        for fault in MEANINGS:
            losses.add_metric([fault.value], status["losses"].get(fault.value, 0))
        yield losses
        yield CounterMetricFamily("orind_engines_renewed", "Engines replaced for fragmented memory", status["renewals"])
        yield from self._memory()
        yield from self._processes()
        yield CounterMetricFamily("orind_reloads", "Reloads asked for", value=status["reload"]["requested"])
        yield CounterMetricFamily("orind_rollbacks", "Rollbacks done", value=status["reload"]["rollbacks"])
        yield from self._latency()
        for key, name, text in POWER_GAUGES:
            value = status["power"].get(key)
            if value is not None:
                yield GaugeMetricFamily(name, text, value=value)
        memory_busy = status["power"].get("emc_percent")
        if memory_busy is not None:
            yield GaugeMetricFamily("orind_memory_busy_ratio", "How busy the memory is", value=memory_busy / 100)
        yield from self._energy()
        board = status["power"].get("board")
        if board:
            yield InfoMetricFamily("orind_board", "What the board calls itself", value={"model": board})

    def _energy(self) -> Iterator[Metric]:
        """By configured models and cameras only. Nothing at all while no second was measured: 0 J would be a figure."""
        energy = self._status["energy"]
        if energy["board_joules"] is None:
            return
        board = CounterMetricFamily("orind_board_energy_joules", "What the board drew, by share", labels=["share"])
        for name in SHARES:
            board.add_metric([name], energy[f"{name}_joules"])
        yield board
        labels = ["model", "camera"]
        joules = CounterMetricFamily("orind_energy_joules", "Inference's share, above idle", labels=labels)
        frames = CounterMetricFamily("orind_energy_frames", "Frames that it was for", labels=labels)
        for model, told in energy["models"].items():
            for camera, figures in told["cameras"].items():
                joules.add_metric([model, camera], figures["joules"])
                frames.add_metric([model, camera], figures["frames"])
        yield from (joules, frames)
        yield CounterMetricFamily("orind_energy_known_seconds", "Time in which power was read", energy["known_s"])
        yield CounterMetricFamily("orind_energy_unknown_seconds", "Time in which it was not", energy["unknown_s"])
        yield CounterMetricFamily(
            "orind_energy_unmeasured_frames", "Frames of the time in which it was not", energy["unmeasured_frames"]
        )

    def _memory(self) -> Iterator[Metric]:
        """By engine role: an epoch as a label would be a new series after each failover."""
        families = {
            key: GaugeMetricFamily(name, text, labels=["role"]) for key, (name, text) in MEMORY_GAUGES.items()
        }
        for engine in self._status["engines"]:
            if engine["memory"] is not None:
                for key, family in families.items():
                    scale = 100 if key == "fragmentation_percent" else 1
                    family.add_metric([engine["role"]], engine["memory"][key] / scale)
        yield from families.values()

    def _processes(self) -> Iterator[Metric]:
        """By role, the most that one of it has: a process id as a label would be a new series after each restart."""
        suspected = GaugeMetricFamily(
            "orind_leak_suspected", "1 where it grows without a rest", labels=["process", "what"]
        )
        families = {
            key: GaugeMetricFamily(name, text, labels=["process"]) for key, (name, text) in PROCESS_GAUGES.items()
        }
        most: dict[tuple[str, str], float] = {}
        grows: dict[tuple[str, str], float] = {}
        for process in self._status["processes"]:
            role = process["name"].partition(" (")[0]
            for key in PROCESS_GAUGES:
                if key in process:
                    most[key, role] = max(process[key], most.get((key, role), 0))
            grows |= {(role, what): 1.0 for what in process["leaks"]}
        for (key, role), value in most.items():
            families[key].add_metric([role], value)
        for labels, value in grows.items():
            suspected.add_metric(list(labels), value)
        yield from (*families.values(), suspected)

    def _latency(self) -> Iterator[Metric]:
        family = HistogramMetricFamily("orind_stage_seconds", "Time of a frame by stage", labels=["stage"])
        for stage, raw in self._status["histograms"].items():
            histogram = Histogram.from_json(raw)
            counts = histogram.cumulative([int(ms * 1e6) for ms in BUCKETS_MS])
            buckets = [(str(ms / 1000), float(n)) for ms, n in zip(BUCKETS_MS, counts, strict=True)]
            buckets.append(("+Inf", float(histogram.count)))
            family.add_metric([stage], buckets, sum_value=histogram.sum_ns / 1e9)
        yield family
