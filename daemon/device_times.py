"""What was measured of the plans that are served, for each device.

Owned by `pipeline.py`. Pure. Invariant: nothing is predicted from another plan or device than it was measured with. A
plan that a reload keeps stays known, one that it changes under the same name is new, and what is no longer served is
forgotten, also where an old engine still answers for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from .batcher import ServiceTimes
from .engine_handle import Batch, PlanView


class DeviceTimes:
    """By device. Only devices on which an engine served are in it: as many as the machine has."""

    def __init__(self, plans: Iterable[PlanView]) -> None:
        self._on: dict[str, ServiceTimes] = {}
        self.serve(plans)

    def serve(self, plans: Iterable[PlanView]) -> None:
        """From now on these are served."""
        self._served = {plan.sha256 for plan in plans}
        for times in self._on.values():
            times.keep(self._served)

    def forget(self) -> None:
        """Nothing that was measured holds any more."""
        for times in self._on.values():
            times.keep(set())

    def on(self, device: str) -> ServiceTimes:
        """The same for the life of main."""
        return self._on.setdefault(device, ServiceTimes())

    def learn(self, device: str, batch: Batch, clock_hz: int, took_ns: int, now_ns: int) -> float:
        """-> times what such a batch usually takes; 1.0 of a plan that is served no more, of which nothing is kept."""
        plan = batch.plan.sha256
        return self.on(device).learn(plan, batch.size, clock_hz, took_ns, now_ns) if plan in self._served else 1.0
