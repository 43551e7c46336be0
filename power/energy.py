"""How many joules the board drew, and for which model and camera. Pure: samples and batches in, a table out.

Fed by the daemon's power_link.py: a sample of board power from every tick of the steward, and the engine time of every
batch. A reading stands for the time since the one before, because an INA3221 shows the mean of what lies behind it.
What the board draws without work (the model's idle power, as learned) is one part; the rest of a period is shared out
by the engine time that models and cameras had in it. A period ends where the engines have rested for longer than the
sensor looks back, so that all that a burst drew falls into one, or after ten seconds of work. Invariants: idle +
inference + other is the board's energy, to the last picojoule; time without a reading that can be believed is unknown
time and adds no energy; no figure falls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .errors import PowerError

_S = 1_000_000_000
PERIOD_NS = 2 * _S
# The mean over 430 ms stands in a register that is renewed once in 430 ms: after so long a burst is out of it.
REST_NS = 9 * _S // 10
LONGEST_NS = 10 * _S
# A steward ticks at least twice a second. A longer silence was no reading, whatever the next one says.
GAP_NS = _S
# A batch counts when it is answered: one that runs for longer than a period has its energy wait for it, for so long.
WAIT_NS = 60 * _S
# Without a word for so long the time is counted as unknown, since no later sample may come that would say so.
SILENT_NS = 5 * _S
# mW x ns
PJ_A_JOULE = 10**12
JOULES_A_WATT_HOUR = 3600
SHARES = ("idle", "inference", "other")  # of what the board draws


@dataclass(frozen=True, slots=True)
class PowerSample:
    """What a tick of the steward knows of power. `board_mw`: None where it cannot be read, or cannot be true;
    `idle_mw`: what the board draws without work, as the governor has learned; `working`: engines were at work."""

    now_ns: int
    board_mw: int | None
    idle_mw: int
    working: bool

    def to_json(self) -> str:
        """One line of JSON, for the channel."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> PowerSample:
        """Parse and check; raises PowerError."""
        try:
            got = json.loads(text)
        except ValueError as error:
            raise PowerError(f"a power sample is not JSON: {error}") from error
        if not isinstance(got, dict) or set(got) != {"now_ns", "board_mw", "idle_mw", "working"}:
            raise PowerError("a power sample must be an object with now_ns, board_mw, idle_mw and working")
        now_ns, board, idle, working = got["now_ns"], got["board_mw"], got["idle_mw"], got["working"]
        if type(now_ns) is not int or type(working) is not bool:
            raise PowerError(f"a power sample: now_ns must be a whole number and working true or false, not {got!r}")
        if (board is not None and (type(board) is not int or board < 0)) or type(idle) is not int or idle < 0:
            raise PowerError(f"a power sample: board_mw and idle_mw must be whole numbers from 0, not {got!r}")
        return cls(now_ns, board, idle, working)


@dataclass(slots=True)
class _Account:
    """Of one model and camera: what is settled; what ran since the period began; what ran since the last sample."""

    pj: int = 0
    frames: int = 0
    busy_ns: int = 0
    busy_frames: int = 0
    fresh_ns: int = 0
    fresh_frames: int = 0

    def add(self, other: _Account) -> None:
        self.pj += other.pj
        self.frames += other.frames
        self.busy_ns += other.busy_ns
        self.busy_frames += other.busy_frames
        self.fresh_ns += other.fresh_ns
        self.fresh_frames += other.fresh_frames


class EnergyMeter:
    """The books of one life of main. Accounts are those of the configured pairs of model and camera, nothing else."""

    def __init__(self) -> None:
        self._accounts: dict[str, dict[str, _Account]] = {}
        self._former = _Account()  # all that are configured no more, and what old engines still answer for them
        self._last_ns: int | None = None
        self._pending_pj = self._pending_idle_pj = self._pending_ns = 0
        self._pending_work = False
        self._rested_ns = 0
        self._board_pj = self._idle_pj = self._other_pj = 0
        self._known_ns = self._unknown_ns = 0
        self._unmeasured = 0

    # -- what is configured --------------------------------------------------------------------------------------

    def keep(self, routes: Mapping[str, Iterable[str]]) -> None:
        """From now on these are served: the models of each camera. What stays keeps its figures."""
        before, self._accounts = self._accounts, {}
        for camera, models in routes.items():
            for model in models:
                known = before.get(model, {}).pop(camera, None)
                self._accounts.setdefault(model, {})[camera] = known or _Account()
        for cameras in before.values():
            for account in cameras.values():
                self._former.add(account)

    def stop(self) -> None:
        """Power is governed no more: what is open is settled, and the time from here on is not counted at all."""
        self._drop_fresh()
        self._settle()
        self._last_ns = None

    # -- what happens --------------------------------------------------------------------------------------------

    def ran(self, model: str, cameras: Sequence[str], busy_ns: int) -> None:
        """An engine has answered a batch that took busy_ns of its time; `cameras`: whose frames, one entry a frame."""
        by_camera = self._accounts.get(model, {})
        each_ns = busy_ns // len(cameras)
        for camera in cameras:
            account = by_camera.get(camera, self._former)
            account.fresh_ns += each_ns
            account.fresh_frames += 1

    def take(self, sample: PowerSample) -> None:
        """A sample. One that is older than the last says nothing new."""
        last_ns = self._last_ns
        if last_ns is not None and sample.now_ns <= last_ns:
            return
        self._last_ns = sample.now_ns
        if last_ns is None:
            self._drop_fresh()
            return
        lasted_ns = sample.now_ns - last_ns
        if sample.board_mw is None or lasted_ns > GAP_NS:
            self._unknown_ns += lasted_ns
            self._drop_fresh()
            self._settle()
            return
        self._pending_ns += lasted_ns
        self._pending_pj += sample.board_mw * lasted_ns
        self._pending_idle_pj += sample.idle_mw * lasted_ns
        self._pending_work = self._pending_work or sample.working
        self._rested_ns = 0 if sample.working else self._rested_ns + lasted_ns
        answered = False
        for account in self._all():
            if account.fresh_ns:
                self._rested_ns = 0
            account.busy_ns += account.fresh_ns
            account.busy_frames += account.fresh_frames
            account.fresh_ns = account.fresh_frames = 0
            answered = answered or account.busy_ns > 0
        waits = self._pending_work and not answered and self._pending_ns < WAIT_NS
        if self._pending_ns >= (PERIOD_NS if self._rested_ns >= REST_NS else LONGEST_NS) and not waits:
            self._settle()

    def tick(self, now_ns: int) -> None:
        """Let time act: silence is unknown time."""
        if self._last_ns is not None and now_ns - self._last_ns > SILENT_NS:
            self.take(PowerSample(now_ns, None, 0, False))

    def _all(self) -> Iterable[_Account]:
        for cameras in self._accounts.values():
            yield from cameras.values()
        yield self._former

    def _drop_fresh(self) -> None:
        """Nobody knows what these took: their frames are counted apart, so that no figure for one frame shrinks."""
        for account in self._all():
            self._unmeasured += account.fresh_frames
            account.fresh_ns = account.fresh_frames = 0

    def _settle(self) -> None:
        """Share out the period's energy. What rounds down goes on to the next account: the parts are the whole."""
        total = self._pending_pj
        idle = min(self._pending_idle_pj, total)
        dynamic = total - idle
        self._known_ns += self._pending_ns
        self._board_pj += total
        self._idle_pj += idle
        whole_ns = sum(account.busy_ns for account in self._all())
        upto_ns = given = 0
        for account in self._all():
            if account.busy_ns:
                upto_ns += account.busy_ns
                share = dynamic * upto_ns // whole_ns - given
                account.pj += share
                given += share
            account.frames += account.busy_frames
            account.busy_ns = account.busy_frames = 0
        self._other_pj += dynamic - given
        self._pending_pj = self._pending_idle_pj = self._pending_ns = 0
        self._pending_work = False

    # -- what is known -------------------------------------------------------------------------------------------

    def table(self) -> dict[str, Any]:
        """The `energy` section of `orind status --json`. Joules, watt-hours, s. Board figures are None while no second
        was measured; `joules_per_frame` is None without a frame. All of the settled periods, so that they agree."""
        known = self._known_ns > 0
        inference = self._board_pj - self._idle_pj - self._other_pj
        parts = dict(zip(("board", *SHARES), (self._board_pj, self._idle_pj, inference, self._other_pj), strict=True))
        return {
            **{f"{name}_joules": pj / PJ_A_JOULE if known else None for name, pj in parts.items()},
            "board_watt_hours": self._board_pj / PJ_A_JOULE / JOULES_A_WATT_HOUR if known else None,
            "known_s": self._known_ns / _S,
            "unknown_s": self._unknown_ns / _S,
            "unmeasured_frames": self._unmeasured,
            "models": {
                model: {**_figures(cameras.values()),
                        "cameras": {camera: _figures([account]) for camera, account in cameras.items()}}
                for model, cameras in self._accounts.items()
            },
        }


def _figures(accounts: Iterable[_Account]) -> dict[str, Any]:
    pj = frames = 0
    for account in accounts:
        pj += account.pj
        frames += account.frames
    joules = pj / PJ_A_JOULE
    return {"joules": joules, "frames": frames, "joules_per_frame": joules / frames if frames else None}
