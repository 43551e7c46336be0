"""What each kind of soak_schedule.py does to the daemon. Called by `soak.py`, one event at a time.

Invariant: an event that needs an active engine waits until the daemon serves with a ready standby again: that it does,
within RECOVERY_S, is itself a check. Whatever is wrong is noted in words and the soak goes on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import hostile
from bench_faults import Target, corrupt
from harness import Service, ServiceError
from hostile import Frame, Told
from soak_cameras import SteadyCamera
from soak_schedule import FAULTS, RELOADS, Event
from soak_watch import processes

from orind.ipc.errors import ControlError

RECOVERY_S = 60.0
STILL_S = 0.4
HOLD_S = 2.0
FLOOD = 150
BATCHING: tuple[dict[str, Any], ...] = (
    {"mode": "window", "max_size": 1},
    {"mode": "adaptive", "max_size": 4, "min_size": 2},
)
TOKENS_HZ, TOKENS_BURST = 20, 10


class Events:
    """The daemon's bad luck. `told`: what the misbehaving senders sent. `good`, `refused`: reloads by their end."""

    def __init__(
        self, service: Service, config: dict[str, Any], plans: list[Path], cameras: dict[str, SteadyCamera],
        frame: Frame,
    ) -> None:
        self.told: list[Told] = []
        self.done: list[tuple[float, str]] = []
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.recoveries_s: list[float] = []
        self._service, self._config, self._plans, self._cameras, self._frame = service, config, plans, cameras, frame
        self._served = 0  # which of the plans
        self._numbers = 1_000_000
        self._text = service.config_path.read_text()

    def act(self, event: Event, at_s: float) -> None:
        name = event.kind.replace("-", "_")
        try:
            if event.kind in FAULTS | RELOADS | {"slots"}:
                self.recover()
            self.done.append((at_s, event.kind))
            self.counts[event.kind] += 1
            getattr(self, f"_{name}")(random.Random(event.seed))
        except (ServiceError, ControlError, OSError, SystemExit) as error:
            self.wrong.append(f"{at_s:.1f} s: {event.kind}: {type(error).__name__}: {str(error)[:400]}")

    def recover(self) -> None:
        """Wait for a ready standby and a healthy daemon. Raises ServiceError where that does not come."""
        began_s = time.monotonic()
        self._service.wait_for(lambda s: s["state"] == "serving" and s["health"]["ok"], "recovery", RECOVERY_S)
        self.recoveries_s.append(time.monotonic() - began_s)

    # -- faults --------------------------------------------------------------------------------------------------

    def _engines(self) -> dict[str, int]:
        """By role; awaited, since right after a fault the daemon may have said that all is well before it noticed."""

        def both(status: dict[str, Any]) -> bool:
            return {engine["role"] for engine in status["engines"]} == {"active", "standby"}

        engines = self._service.wait_for(both, "active and standby engine", RECOVERY_S)["engines"]
        return {engine["role"]: engine["pid"] for engine in engines}

    def _signal(self, role: str, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it ended by itself meanwhile: after a reload, or a turn
            os.kill(self._engines()[role], number)

    def _kill(self, _: random.Random) -> None:
        self._signal("active", signal.SIGKILL)

    def _segv(self, _: random.Random) -> None:
        self._signal("active", signal.SIGSEGV)

    def _stop(self, _: random.Random) -> None:
        self._signal("active", signal.SIGSTOP)

    def _corrupt(self, _: random.Random) -> None:
        engines = self._engines()
        with suppress(FileNotFoundError, ProcessLookupError):
            plan = self._plans[self._served]
            corrupt(Target(self._service, engines["active"], engines["standby"], plan, Path()))

    def _kill_standby(self, _: random.Random) -> None:
        self._signal("standby", signal.SIGKILL)

    def _kill_both(self, _: random.Random) -> None:
        for pid in self._engines().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _kill_decoder(self, chance: random.Random) -> None:
        workers = [p.pid for p in processes(self._service.pid) if p.role == "decoder"]
        if workers:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)

    # -- reloads -------------------------------------------------------------------------------------------------

    def _write(self, number: int) -> None:
        config = json.loads(json.dumps(self._config))
        config["models"]["parts"]["plan"] = str(self._plans[number])
        config["batching"] = BATCHING[number]
        self._service.configure(config)
        self._text = self._service.config_path.read_text()

    def _settle(self, good: bool, reply: dict[str, Any], number: int) -> None:
        if bool(reply["ok"]) is not good:
            which = "good" if good else "bad"
            self.wrong.append(f"a {which} reload ended with {reply['result']}: {reply['problems'][:2]}")
        served = self._service.status()["models"]["parts"]["plan"]
        if served != str(self._plans[number]):
            self.wrong.append(f"after {reply['result']!r} {served} serves instead of {self._plans[number]}")
        self._served = number

    def _reload(self, _: random.Random) -> None:
        self._write(1 - self._served)
        self._settle(True, self._service.reload(), 1 - self._served)

    def _reload_yaml(self, _: random.Random) -> None:
        self._service.write_config(self._text.replace("plan: ", "plan: [", 1))
        self._settle(False, self._service.reload(), self._served)
        self._service.write_config(self._text)

    def _reload_plan(self, chance: random.Random) -> None:
        data = bytearray(self._plans[self._served].read_bytes())
        (header,) = struct.unpack("<Q", data[:8])
        data[chance.randrange(8 + header, len(data))] ^= 1 << chance.randrange(8)
        broken = self._service.work_dir / "broken.plan"
        broken.write_bytes(data)
        self._service.write_config(self._text.replace(str(self._plans[self._served]), str(broken)))
        self._settle(False, self._service.reload(), self._served)
        self._service.write_config(self._text)

    def _reload_burst(self, _: random.Random) -> None:
        """They coalesce; the one that is waited for comes after all of them."""
        self._write(1 - self._served)
        for _ in range(5):
            self._service.send_signal(signal.SIGUSR2)
            time.sleep(0.03)
        self._settle(True, self._service.reload(), 1 - self._served)

    def _reload_kill(self, chance: random.Random) -> None:
        """Where the engine that dies is of the new generation that reload is refused; the next one must be good."""
        self._write(1 - self._served)
        self._service.send_signal(signal.SIGUSR2)
        time.sleep(chance.uniform(0.0, 0.6))
        self._signal("active", signal.SIGKILL)
        self._settle(True, self._service.reload(), 1 - self._served)

    def _rollback(self, _: random.Random) -> None:
        possible = self._service.status()["reload"]["can_roll_back"]
        reply = self._service.ask({"op": "rollback", "wait": True}, 60.0)
        plan = self._service.status()["models"]["parts"]["plan"]
        self._served = [str(p) for p in self._plans].index(plan)
        self._write(self._served)
        if bool(reply["ok"]) != possible:
            self.wrong.append(f"a rollback that should {'' if possible else 'not '}have been possible: {reply}")

    # -- cameras -------------------------------------------------------------------------------------------------

    def _seq(self, count: int = 1000) -> int:
        self._numbers += count
        return self._numbers

    def _tell(self, told: Told) -> None:
        self.told.append(told)

    @property
    def _path(self) -> str:
        return str(self._service.run_dir / "triggers")

    def _flood(self, _: random.Random) -> None:
        self._tell(hostile.flood(self._service.endpoint, "trouble", self._frame, self._seq(), FLOOD))

    def _leave(self, _: random.Random) -> None:
        self._tell(hostile.flood_and_leave(self._service.endpoint, "trouble", self._frame, self._seq(), FLOOD))

    def _repeat(self, chance: random.Random) -> None:
        times = chance.randrange(1, 50)
        self._tell(hostile.repeat(self._service.endpoint, "trouble", self._frame, self._seq(), times))

    def _reorder(self, chance: random.Random) -> None:
        self._tell(hostile.reorder(self._service.endpoint, "trouble", self._frame, self._seq(), 20, chance))

    def _jump_seq(self, _: random.Random) -> None:
        self._tell(hostile.jump_seq(self._service.endpoint, "trouble", self._frame, self._seq()))

    def _jump_time(self, _: random.Random) -> None:
        self._tell(hostile.jump_time(self._service.endpoint, "trouble", self._frame, self._seq()))

    def _garbage(self, chance: random.Random) -> None:
        self._tell(hostile.garbage(self._service.endpoint, "trouble", self._frame, chance))

    def _reconnect(self, _: random.Random) -> None:
        self._tell(hostile.reconnect(self._service.endpoint, "trouble", self._frame, self._seq(), FLOOD))

    def _die(self, _: random.Random) -> None:
        self._tell(hostile.die_within(self._path, "trouble", self._frame, self._seq()))

    def _stall(self, _: random.Random) -> None:
        with hostile.stall_within(self._path, "trouble", self._frame, self._seq()):
            self._reorder(random.Random(0))
            time.sleep(HOLD_S)

    def _deaf(self, _: random.Random) -> None:
        with hostile.deaf_subscriber(self._service.results_endpoint):
            self._tell(hostile.flood(self._service.endpoint, "trouble", self._frame, self._seq(), FLOOD))
            time.sleep(HOLD_S)

    def _slots(self, _: random.Random) -> None:
        pid = self._engines()["active"]
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            with hostile.Dealer(self._service.endpoint) as dealer:
                told, seq = Told(), self._seq()
                for n in range(seq, seq + FLOOD):
                    stamp = time.monotonic_ns()
                    dealer.send(*hostile.message("trouble", self._frame, n, stamp))
                    told.sure.append(("trouble", n, stamp))
                time.sleep(STILL_S)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                told.replies = dealer.receive(FLOOD)
            self._tell(told.judge_replies())

    def _tokens(self, _: random.Random) -> None:
        begin_s = time.monotonic()
        told = hostile.flood(self._service.endpoint, "limited", self._frame, self._seq(), FLOOD)
        passed = sum(r.outcome != "rejected" for r in told.replies)
        most = TOKENS_BURST + TOKENS_HZ * (time.monotonic() - begin_s) + 1
        if passed > most:
            told.wrong.append(f"{passed} triggers passed the rate limit, at most {most:.0f} may")
        self._tell(told)

    def _line1(self, _: random.Random) -> None:
        self._cameras["line1"].anew()

    def _door(self, _: random.Random) -> None:
        self._cameras["door"].anew()

    def _live(self, _: random.Random) -> None:
        self._cameras["live"].anew()
