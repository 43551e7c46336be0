"""A week of an engine's allocations in fast motion: how much of the free memory falls to pieces if nobody renews it.

Makes a synthetic record and replays it on the engine's own allocator and work memory (kernels/memory/pool.py,
kernels/pre/scratch.py). Exit code 1 where fragmentation reaches the limit, or the emergency reserve was touched.

The record: one engine lives through the week and holds every generation that comes. No engine of orind does (a reload
brings new ones, so in truth every pool begins anew): a harder case than the product. A generation serves two to four of
the shipped networks, with what their plans need on the CPU (NETWORKS), at up to four batch sizes. Reloads follow the
shifts of a factory: some a day, in bursts while somebody tunes, few at night; some are refused by the golden check.
Networks are trained anew (same sizes) or replaced (others), added and taken away, built for other batch sizes; now and
then two versions of one run side by side (A/B) until the next reload. A generation is loaded beside the old one, which
then answers what it has; its blocks are freed in any order. Pictures of other sizes make the work memory of
preprocessing grow. As in the daemon one reload is over before the next one begins.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from orind.kernels.memory.errors import PoolExhausted
from orind.kernels.memory.pool import Block, Pool, SizeClass, aligned
from orind.kernels.memory.reservation import Bytes, HostReservation
from orind.kernels.pre.scratch import Scratch

KB, MB = 1 << 10, 1 << 20
LIMIT_PERCENT = 5.0
SAMPLE_S = 30.0
RESERVE = 8 * MB
ROOM = 1.1
"""Of what two generations need side by side; what is more than a generation away from full is what can be in pieces."""
# KB of weights in the executor's form, of work memory, and of the arena of one frame: printed by the memory map
NETWORKS = {
    "part-inspect": (2360, 1920, 616), "blazeface-back": (2470, 4870, 1280), "blazeface-front": (1040, 3040, 492),
    "centerface": (7850, 7690, 13570), "line-segments": (3010, 21850, 8500), "text-direction": (1880, 2490, 450),
    "page-orientation": (10310, 5700, 730), "efficientnet-lite0": (19530, 11610, 3540),
}
BATCHES = (1, 2, 4, 8)
PICTURES = ((320, 240), (640, 480), (1280, 720), (1600, 1200), (1920, 1080), (2448, 2048))
SIDES = (96, 128, 256, 320, 512)


@dataclass(frozen=True)
class Version:
    """One plan, as its blocks; `side` of its square input."""

    name: str
    weights: int
    work: int
    frame: int
    batches: tuple[int, ...]
    side: int

    def replaced(self, rng: random.Random) -> Version:
        """Another network for the same task."""
        factor = math.exp(rng.gauss(0, 0.12))
        sizes = [int(n * factor * math.exp(rng.gauss(0, 0.05))) for n in (self.weights, self.work, self.frame)]
        return replace(self, weights=sizes[0], work=sizes[1], frame=sizes[2])

    def blocks(self) -> list[tuple[str, int]]:
        arenas = [(f"{self.name}: batch {n}", self.frame * n) for n in self.batches]
        return [(f"{self.name}: weights", self.weights), (f"{self.name}: work memory", self.work), *arenas]


def work_arrays(width: int, height: int, side: int) -> dict[str, int]:
    """What kernels/pre asks for to bring an rgb8 picture of that size to side x side."""
    plane = 4 * side * side
    return {
        "lines": min(2 * side, height) * width * 3, "plane": plane, "across": 2 * plane, "part": 2 * plane,
        "down": plane, "pixels": 2 * plane, "looked up": side * side,
    }


@dataclass
class Generation:
    number: int
    versions: list[Version]
    blocks: list[Block] = field(default_factory=list)
    scratch: Scratch | None = None

    @property
    def most(self) -> int:
        largest = [max(work_arrays(*p, v.side)["lines"] for p in PICTURES) + 12 * 4 * v.side**2 for v in self.versions]
        return sum(aligned(n) for v in self.versions for _, n in v.blocks()) + max(largest)


class Memory(HostReservation):
    """The reservation of one generation in the pool that all share; what its arrays hold does not matter here."""

    def __init__(self, pool: Pool, number: int, bytes_: Bytes, on_change: Callable[[Block], None]) -> None:
        self.pool, self._number, self._shared, self._on_change = pool, number, bytes_, on_change

    def take(self, nbytes: int, owner: str) -> Block:
        block = self.pool.allocate(nbytes, owner, f"generation {self._number}")
        self._on_change(block)
        return block

    def give_back(self, block: Block) -> None:
        self.pool.free(block)
        self._on_change(block)

    def array(self, block: Block) -> Bytes:
        return self._shared[: block.nbytes]


class Week:
    """The record and its replay in one: events in the order of their time."""

    def __init__(self, seed: int, hours: float) -> None:
        self._rng, self._end_s = random.Random(seed), hours * 3600.0
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._plan = self._generations(max(6, int(hours)))
        most = max(a.most + b.most for a, b in itertools.pairwise([*self._plan, self._plan[0]]))
        self.pool = Pool(aligned(int(ROOM * most)) + RESERVE, RESERVE)
        self._bytes = np.zeros(self.pool.size, np.uint8)  # never touched
        self._current: Generation | None = None
        self.samples: list[float] = []
        self.worst, self.worst_s, self.lowest_free = 0.0, 0.0, self.pool.free_bytes
        self.counts: Counter[str] = Counter()

    # -- the record ----------------------------------------------------------------------------------------------

    def _generations(self, count: int) -> list[Generation]:
        """Configurations in their order; taken up again from the front where there are more reloads."""
        rng = self._rng
        versions = [self._version(name) for name in rng.sample(sorted(NETWORKS), 3)]
        found = []
        for number in range(count):
            draw, at, extra = rng.random(), rng.randrange(len(versions)), list[Version]()
            if draw < 0.12:
                versions[at] = versions[at].replaced(rng)
            elif draw < 0.20 and len(versions) < 4:
                versions.append(self._version(rng.choice(sorted(NETWORKS))))
            elif draw < 0.28 and len(versions) > 2:
                del versions[at]
            elif draw < 0.36:
                versions[at] = replace(versions[at], batches=tuple(sorted(rng.sample(BATCHES, rng.randrange(1, 5)))))
            elif draw < 0.50:
                extra = [replace(versions[at].replaced(rng), name=f"{versions[at].name} B")]
            # else trained anew, or only settings have changed: the same sizes
            found.append(Generation(number, [*versions, *extra]))
        return found

    def _version(self, name: str) -> Version:
        weights, work, frame = (n * KB for n in NETWORKS[name])
        rng = self._rng
        return Version(name, weights, work, frame, BATCHES[: rng.randrange(1, 5)], rng.choice(SIDES))

    def _pause_s(self) -> float:
        """Until the next reload."""
        if self._rng.random() < 0.4:
            return self._rng.uniform(20, 600)
        day = 6 <= self.now_s / 3600 % 24 < 22
        return 20 + self._rng.expovariate(1 / (2 * 3600 if day else 7 * 3600))

    # -- the replay ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        for after_s, event in ((0.0, self._reload), (1.0, self._picture), (SAMPLE_S, self._sample)):
            self._at(after_s, event)
        while self._events and self._events[0][0] <= self._end_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
            # within an event, as while a generation is freed block by block, nobody asks for memory
            if 100 * self.pool.fragmentation > self.worst:
                self.worst, self.worst_s = 100 * self.pool.fragmentation, self.now_s

    def _at(self, after_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + after_s, next(self._order), event))

    def _changed(self, block: Block) -> None:
        self.counts["changes"] += 1
        self.counts[block.kind.value] += 1
        self.lowest_free = min(self.lowest_free, self.pool.free_bytes)

    def _reload(self) -> None:
        self._at(self._pause_s(), self._reload)
        number = self.counts["generations"]
        self.counts["generations"] += 1
        new = Generation(number, self._plan[number % len(self._plan)].versions)
        self.counts["with two versions"] += any(v.name.endswith(" B") for v in new.versions)
        memory = Memory(self.pool, number, self._bytes, self._changed)
        new.scratch = Scratch(memory)
        try:
            for version in new.versions:
                new.blocks += [memory.take(nbytes, owner) for owner, nbytes in version.blocks()]
        except PoolExhausted:
            self.counts["exhausted"] += 1
        if number and self._rng.random() < 0.08:
            self.counts["refused"] += 1
            self._at(self._rng.uniform(0.2, 15), lambda: self._end(new, memory))
            return
        old, self._current = self._current, new
        if old is not None:
            self._at(self._rng.uniform(0.01, 2), lambda: self._end(old, memory))

    def _end(self, generation: Generation, memory: Memory) -> None:
        assert generation.scratch is not None
        generation.scratch.close()
        self._rng.shuffle(generation.blocks)
        for block in generation.blocks:
            memory.give_back(block)

    def _picture(self) -> None:
        """A camera sends another size than before."""
        self._at(self._rng.expovariate(1 / 900), self._picture)
        if self._current is None:
            return
        version, picture = self._rng.choice(self._current.versions), self._rng.choice(PICTURES)
        scratch = self._current.scratch
        assert scratch is not None
        for name, nbytes in work_arrays(*picture, version.side).items():
            scratch.array(name, (nbytes,), np.uint8)
        scratch.tidy()
        self.counts["pictures of another size"] += 1

    def _sample(self) -> None:
        self._at(SAMPLE_S, self._sample)
        self.samples.append(100 * self.pool.fragmentation)

    # -- what came of it -----------------------------------------------------------------------------------------

    @property
    def sound(self) -> bool:
        return self.worst < LIMIT_PERCENT and not self.pool.emergencies and not self.counts["exhausted"]

    def lines(self, hours: float, seed: int) -> list[str]:
        counts, samples = self.counts, sorted(self.samples)
        kinds = ", ".join(f"{counts[kind.value]} {kind.value}" for kind in SizeClass)
        p50, p99 = (samples[min(len(samples) - 1, int(share * len(samples)))] for share in (0.5, 0.99))
        return [
            f"{hours:g} hours, seed {seed}: {counts['generations']} generations ({counts['refused']} refused, "
            f"{counts['with two versions']} with two versions of a model), {counts['pictures of another size']} "
            "changes of picture size",
            f"{counts['changes']} blocks taken or freed ({kinds})",
            f"reservation {self.pool.size / MB:.0f} MB, least free {self.lowest_free / MB:.0f} MB, reserve used "
            f"{self.pool.emergencies} times, exhausted {counts['exhausted']} times",
            f"fragmentation: P50 {p50:.2f} %, P99 {p99:.2f} % of {len(samples)} samples, max {self.worst:.2f} % after "
            f"any event (hour {self.worst_s / 3600:.1f}); limit {LIMIT_PERCENT:g} %",
        ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/replay_allocations", description=(__doc__ or "").split("\n\n")[0],
        epilog="example: scripts/replay_allocations --hours 168 --seed 1",
    )
    parser.add_argument("--hours", type=float, default=168.0, help="length of the record (default 168, a week)")
    parser.add_argument("--seed", type=int, default=1, help="of the record (default 1)")
    options = parser.parse_args()
    began = time.perf_counter()
    week = Week(options.seed, options.hours)
    week.run()
    print("\n".join(week.lines(options.hours, options.seed)))
    print(f"{'pass' if week.sound else 'FAIL'}, in {time.perf_counter() - began:.1f} s")
    return 0 if week.sound else 1


if __name__ == "__main__":
    sys.exit(main())
