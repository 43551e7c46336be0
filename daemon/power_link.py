"""Main's side of the steward: limits that hold now, the last report for the status, and a steward that is alive.

Owned by `daemon.py`. Invariant: without fresh limits the policy's lowest pacing holds; silence never means "no limit".
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..ipc.bounded_text import bound_fields, bound_text
from ..ipc.channel import MESSAGE_BYTES_MAX, Channel, make_pair
from ..ipc.control import Request
from ..ipc.errors import ChannelError, IpcError
from ..ipc.stats_page import StatsWriter
from ..power.board import BoardFacts
from ..power.energy import EnergyMeter, PowerSample
from ..power.errors import PowerError
from ..power.held import STATE_NAME
from ..power.limits import Limits, in_force
from ..power.policy import Policy
from .deadline_floor import floor_of, frame_cycles
from .nursery_client import Child, NurseryClient
from .pipeline import Pipeline
from .poller import Watcher
from .power_requests import STORM, PowerRequests
from .respawn import Respawn
from .sections import Camera

log = logging.getLogger("orind")
RESPAWN_NS = 1_000_000_000
SILENT_NS = 5_000_000_000  # limits end after 2 s; a steward that is quiet for longer hangs
CALM_NS = 5_000_000_000  # sensors that had no fault for so long are well again
FLOOR_EVERY_NS, FLOOR_HOLDS_NS = 1_000_000_000, 5_000_000_000
UNLIMITED_BATCH = 1 << 16
NO_CAMERAS: Mapping[str, Camera] = {}
SET = ("board", "budget_w", "budget_reason", "gpu_cap_hz", "cpu_cap_khz", "mode", "waiting_mode")
UNMEASURED = "no power section in the configuration: nobody reads the power of the board"
UNGOVERNED = {"board": None, "board_w": None, "budget_w": None, "tj_c": None, "gpu_hz": None, "gpu_cap_hz": None}


class PowerLink:
    """The steward of the configuration's power section; does nothing where there is none."""

    def __init__(self, nursery: NurseryClient, watcher: Watcher, stats: StatsWriter, run_dir: Path) -> None:
        self._nursery = nursery
        self._watcher = watcher
        self._stats = stats
        self._run_dir = run_dir
        self._section: dict[str, Any] | None = None
        self._policy: Policy | None = None
        self._requests = PowerRequests()
        self._untold = False  # a steward that runs does not know yet what was asked for: its queue was full
        self._floor_ns = 0
        self._lowest: Limits | None = None
        self._channel: Channel | None = None
        self._child: Child | None = None
        self._latest: Limits | None = None
        self._respawn = Respawn(RESPAWN_NS)
        self._heard_ns = 0
        self._faulty_ns: int | None = None  # the last report with a fault that was told and is not over
        self._last_words = ""
        self.report: dict[str, Any] = dict(UNGOVERNED)
        self.energy = EnergyMeter()

    def configure(self, section: dict[str, Any] | None, root: str, cameras: Mapping[str, Camera] = NO_CAMERAS) -> None:
        """Take a (new) power section: board, mode and policy from the checker. A steward that runs takes another policy
        as it is, with all that it has learned; for another board it restores the clocks and ends. `cameras`: whose
        energy is told apart."""
        self.energy.keep({name: camera.model for name, camera in cameras.items()})
        if section is None:
            self.energy.stop()
        wanted = (
            None if section is None else {**section, "root": root, "state": str(self._run_dir / STATE_NAME)}
        )
        if wanted == self._section:
            return
        before, self._section = self._section, wanted
        self._nursery.board_root = root
        self._policy = None if wanted is None else Policy.from_dict(wanted["policy"])
        self._lowest = None if self._policy is None else self._policy.lowest("no word from the steward")
        if self._policy is None:
            self._requests = PowerRequests()
        else:
            self._requests.fit(self._policy)
            if before is not None and {**before, "policy": None} == {**(wanted or {}), "policy": None} \
                    and self._tell({"policy": (wanted or {})["policy"], "asked": self._requests.message()}):
                return
        self._respawn.served()
        self._hang_up()
        self.report = dict(UNGOVERNED)
        if self._policy is not None:
            self.report["budget_w"] = self._policy.budget_mw / 1000

    def ask(self, request: Request, now_ns: int) -> dict[str, Any]:
        """What somebody asks for on the control socket: the reply."""
        by = f"uid {request.uid} (pid {request.pid})"
        if self._section is None or self._policy is None:
            return {"ok": False, "result": "refused: power is not governed, the configuration has no power section"}
        facts = BoardFacts.from_dict(self._section["board"])
        refusal = self._requests.ask(request.given, by, self._policy, facts, now_ns)
        if refusal:
            if refusal != STORM:  # that is said once, where it begins
                log.warning("power: what %s asked for is refused: %s", by, bound_text(refusal))
            return {"ok": False, "result": f"refused: {refusal}"}
        self._tell_asked()
        idle = f", but the governor does not run: {self.problem}" if self.problem else ""
        return {"ok": True, "result": f"taken{idle}"}

    def limits(self, now_ns: int) -> Limits | None:
        """What holds now; None where power is not governed."""
        return None if self._lowest is None else in_force(self._latest, now_ns, self._lowest)

    def restrain(self, pipeline: Pipeline, now_ns: int) -> None:
        """Have the pipeline obey the limits that hold now."""
        limits = self.limits(now_ns)
        pipeline.batch_max = UNLIMITED_BATCH if limits is None else limits.batch_max
        pipeline.pace_ns = 0 if limits is None or limits.pace_hz is None else int(1e9 / limits.pace_hz)
        pipeline.clock_hz = self.report.get("gpu_cap_hz") or 0
        pipeline.relief.asked = limits.reason if limits is not None and limits.degrade else ""
        scarce = limits is not None and limits.pace_hz is not None and self._policy is not None
        places = {name: n for n, name in enumerate(self._policy.priorities)} if scarce and self._policy else {}
        if pipeline.queues.places != places:
            pipeline.queues.places.clear()
            pipeline.queues.places.update(places)
        self._tell_floor(pipeline, now_ns)

    def _tell_floor(self, pipeline: Pipeline, now_ns: int) -> None:
        """What deadlines need, once a second; the steward forgets it when it is old."""
        if now_ns < self._floor_ns:
            return
        self._floor_ns = now_ns + FLOOR_EVERY_NS
        engine, serving = pipeline.active, pipeline.serving
        if engine is None or engine.device == "cpu":
            return  # its times say nothing of the GPU's clock
        plans, times, hz = serving.plans, pipeline.times, pipeline.clock_hz
        found = {"deadline": floor_of(serving.intake.deadlines_ns(), plans, times, hz, now_ns),
                 "frame": frame_cycles(plans, times, hz, now_ns)}
        asked = {name: [needed.value, now_ns + FLOOR_HOLDS_NS, f"model {needed.model}"]
                 for name, needed in found.items() if needed is not None}
        if asked:
            self._tell({"asked": asked})

    def tick(self, now_ns: int) -> None:
        """Start a steward where one is due, after the one before has ended, so that it cannot undo the new caps."""
        self._requests.tick(now_ns)
        if self._untold:
            self._tell_asked()
        self.energy.tick(now_ns)
        if self._latest is not None and self._latest.expires_ns is not None and now_ns >= self._latest.expires_ns:
            self._forget()
        if self._channel is not None and self._child is not None and now_ns - self._heard_ns > SILENT_NS:
            log.error("the steward has been silent for %.0f s and is replaced", SILENT_NS / 1e9)
            self._nursery.kill(self._child)
            self._respawn.failed(now_ns, "it was silent")
            self._hang_up()
        gone = self._child is None or self._child.status is not None
        if self._section is not None and self._channel is None and gone and self._respawn.due(now_ns):
            self._heard_ns, self._last_words = now_ns, ""
            self._spawn(self._section, now_ns)

    def _forget(self) -> None:
        """Nobody looks at the board: the limits of before hold no more, and what was read then says nothing of now.
        What was set stays in the report, and so do the last words of a steward that has ended."""
        self._latest = None
        if self._lowest is not None:
            kept = {name: value for name, value in self.report.items() if name in SET}
            told = {"level": self._lowest.level, "reason": self._last_words or self._lowest.reason}
            self.report = {**UNGOVERNED, **kept, **told}

    @property
    def problem(self) -> str:
        """Why nobody governs the power, or ''."""
        if self._section is None or (self._channel is not None and not self._respawn.problem):
            return ""
        return self._respawn.problem or "the steward has not been started yet"

    def told_energy(self) -> dict[str, Any]:
        """The status's `energy`: what was measured, and as `reason` why nothing is at the moment, or ''."""
        if self._section is None:
            reason = UNMEASURED
        elif self.problem:
            reason = f"the power governor does not run: {self.problem}"
        else:
            reason = "" if self.report.get("board_w") is not None else "board power cannot be read, or was not yet"
        return {"reason": bound_text(reason), **self.energy.table()}

    def close(self) -> None:
        """End of file makes the steward put the clocks back. Where none lives, nobody here does, which is said."""
        self._section = None
        lives = self._child is not None and self._child.status is None
        if not lives and (saved := self._run_dir / STATE_NAME).exists():
            log.error("power: clock caps are still lowered (%s has them as they were), and no steward lives: run "
                      "`orind power restore`, as the systemd unit does after a stop", saved)
        self._hang_up()

    def _spawn(self, section: dict[str, Any], now_ns: int) -> None:
        try:
            channel, theirs = make_pair()
        except OSError as error:
            self._respawn.failed(now_ns, str(error))
            return
        with theirs:
            try:
                stats_fd = self._stats.readonly_fd()
                try:
                    self._child = self._nursery.spawn("steward", [theirs.fileno(), stats_fd], [json.dumps(section)])
                finally:
                    os.close(stats_fd)
            except (IpcError, OSError) as error:
                channel.close()
                self._respawn.failed(now_ns, str(error))
                return
        self._channel = channel
        self._watcher.watch(channel.fileno(), self._on_readable)
        self._tell_asked()

    def _tell_asked(self) -> None:
        self._untold = not self._tell({"asked": self._requests.message()})

    def _tell(self, message: dict[str, Any]) -> bool:
        """Pass it on to the steward. False: it cannot be told now; a steward that does not read is replaced for its
        silence, and the next one is told at its start."""
        data = json.dumps(message).encode()
        return self._channel is not None and len(data) <= MESSAGE_BYTES_MAX and self._channel.send(data)

    def _on_readable(self, now_ns: int) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            received = channel.recv_all()
            self._heard_ns = now_ns
            for data in received.messages:
                self._take(json.loads(data))
        except (ChannelError, PowerError, ValueError, RecursionError) as error:
            log.error("steward: %s", error)
            self._respawn.failed(now_ns, str(error))
            self._hang_up()
            return
        if received.ended:
            log.warning("the steward has ended: the lowest pacing holds until a new one speaks")
            self._respawn.failed(now_ns, self._last_words or "it has ended")
            self._hang_up()

    def _take(self, message: object) -> None:
        """Raises PowerError for what no steward says."""
        match message:
            case {"error": str(text)}:
                log.error("steward: %s", text)
                self._last_words = bound_text(text)
                self.report = {**self.report, "reason": self._last_words}
            case {"limits": str(text)}:
                self._latest = Limits.from_json(text)
                self._respawn.served()
            case {"sample": str(text)}:
                self.energy.take(PowerSample.from_json(text))
            case {"report": dict(report)} if _can_be(report):
                self.report = bound_fields(report)
                for note in self.report.get("notes", ()):
                    log.warning("power: %s", note)
                self._tell_faults(self.report.get("faults", ()))
            case _:
                raise PowerError(f"it says what cannot be: {bound_text(repr(message), 200)}")

    def _tell_faults(self, faults: Sequence[str]) -> None:
        """Once when they come, and once when they have been gone for a while: a sensor that fails now and then must not
        fill the journal."""
        if faults:
            if self._faulty_ns is None:
                log.error("power: %s", "; ".join(faults))
            self._faulty_ns = self._heard_ns
        elif self._faulty_ns is not None and self._heard_ns - self._faulty_ns >= CALM_NS:
            log.warning("power: sensors and clock caps are well again")
            self._faulty_ns = None

    def _hang_up(self) -> None:
        """Its clocks go up again as it ends: nothing that it allowed holds any longer."""
        self._forget()
        if self._channel is not None:
            self._watcher.forget(self._channel.fileno())
            self._channel.close()
            self._channel = None


def _can_be(report: dict[str, Any]) -> bool:
    """Whether what main itself looks at is of its kind; the rest goes to people."""
    texts = [*_listed(report, "notes"), *_listed(report, "faults")]
    cap_hz = report.get("gpu_cap_hz")
    return all(isinstance(text, str) for text in texts) and (cap_hz is None or type(cap_hz) is int)


def _listed(report: dict[str, Any], key: str) -> list[object]:
    listed = report.get(key, [])
    return listed if isinstance(listed, list) else [None]
