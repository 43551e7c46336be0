"""The frames that wait for an engine, by model and rank. Pure: knows no sockets and no slots.

Called by `pipeline.py`. Order: frames to be replayed after an engine's death first and each alone, then critical,
normal, best effort, each first come first served; while power is scarce, within each by the power policy's
`priorities`. Only the newest best-effort frame of a camera is worth an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from .trigger import RANKS, Trigger


class ModelQueue:
    """Frames waiting for one model."""

    def __init__(self, places: Mapping[str, int] | None = None) -> None:
        """`places`: see Queues.places."""
        self._by_rank: tuple[deque[Trigger], ...] = tuple(deque() for _ in RANKS)
        self._places: Mapping[str, int] = {} if places is None else places

    def __len__(self) -> int:
        critical, normal, best_effort = self._by_rank
        return len(critical) + len(normal) + len(best_effort)

    def __iter__(self) -> Iterator[Trigger]:
        places = self._places
        for rank in self._by_rank:
            yield from rank if not places else sorted(rank, key=lambda f: places.get(f.camera, len(places)))

    def push(self, frame: Trigger) -> Trigger | None:
        """Queue a frame. Returns the older best-effort frame of the same camera that it supersedes, or None."""
        waiting = self._by_rank[frame.rank]
        superseded = None
        if frame.rank == RANKS["best_effort"]:
            superseded = next((f for f in waiting if f.camera == frame.camera), None)
            if superseded is not None:
                waiting.remove(superseded)
        waiting.append(frame)
        return superseded

    def head(self) -> Trigger | None:
        return next(iter(self), None)

    def first(self, count: int) -> list[Trigger]:
        found: list[Trigger] = []
        for frame in self:
            if len(found) == count:
                break
            found.append(frame)
        return found

    def take(self, count: int) -> list[Trigger]:
        """Remove and return the first `count` frames."""
        if self._places:
            taken = self.first(count)
            self.discard(taken)
            return taken
        taken = []
        for rank in self._by_rank:
            while rank and len(taken) < count:
                taken.append(rank.popleft())
        return taken

    def discard(self, frames: list[Trigger]) -> None:
        for frame in frames:
            self._by_rank[frame.rank].remove(frame)


class Queues:
    """All models' queues, and the frames that must be replayed alone."""

    def __init__(self) -> None:
        self.models: dict[str, ModelQueue] = {}
        self.places: dict[str, int] = {}
        """Of cameras, 0 first, while power is scarce; empty: each rank first come first served. Those that are not in
        it come after those that are. Changed in place, never replaced."""
        self.retry: deque[Trigger] = deque()

    def __len__(self) -> int:
        return len(self.retry) + sum(map(len, self.models.values()))

    def push(self, frame: Trigger) -> Trigger | None:
        queue = self.models.get(frame.model)
        if queue is None:
            queue = self.models[frame.model] = ModelQueue(self.places)
        return queue.push(frame)

    def in_turn(self) -> list[str]:
        """Models with waiting frames, the most urgent head (rank, then deadline) first."""
        waiting = [name for name, queue in self.models.items() if len(queue)]
        if len(waiting) < 2:
            return waiting
        heads = [
            (head.rank, self.places.get(head.camera, len(self.places)), head.deadline_ns, name) for name, q in
            self.models.items() if (head := q.head()) is not None
        ]
        return [name for *_, name in sorted(heads)]

    def take_late(self, reason_of: Callable[[Trigger], str]) -> list[tuple[Trigger, str]]:
        """Remove and return the frames for which there is a reason why they cannot be served in time."""
        late = [(frame, reason) for frame in self.retry if (reason := reason_of(frame))]
        for frame, _ in late:
            self.retry.remove(frame)
        for queue in self.models.values():
            found = [(frame, reason) for frame in queue if (reason := reason_of(frame))]
            queue.discard([frame for frame, _ in found])
            late += found
        return late

    def first_deadline_ns(self) -> int:
        """The earliest deadline of all that wait; 0 where nothing waits."""
        waiting = [*self.retry, *(frame for queue in self.models.values() for frame in queue)]
        return min((frame.deadline_ns for frame in waiting), default=0)

    def take_all(self) -> list[Trigger]:
        """Remove and return every waiting frame, the ones to be replayed first."""
        frames = list(self.retry)
        self.retry.clear()
        for queue in self.models.values():
            frames += queue.take(len(queue))
        self.models.clear()  # which models there are may be another matter from now on
        return frames
