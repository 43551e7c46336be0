"""When each kernel may start, when it must be over, which ones the frame's time hangs on, and whether a second stream
would help.

Callers: the report, `orind inspect --board`; the CUDA executor records its graph from `stream` and `waits`. Pure. Two
kernels run side by side only where the SMs, the DRAM rate and the streams suffice for both. One stream stays unless the
model predicts more than `GAIN` from another: the model is not good enough to bet on less.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.program import Program
from .dependences import dependences
from .model import Costs

GAIN = 1.05
STREAMS_MAX = 3
DRAM = 1000                             # the whole DRAM rate, in permille
SEARCH = 120_000                        # over the square of the number of tasks: how many schedules a search tries
SEED = 20_260


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel: how long it runs (ns), what it holds meanwhile, and the tasks that it follows (smaller indices)."""

    ns: int
    sms: int
    dram: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Capacity:
    sms: int
    streams: int
    dram: int = DRAM


@dataclass(frozen=True, slots=True)
class Row:
    """A step's place in time (ns from the first start). `earliest` and `latest_finish` take the data's order and the
    chosen order on shared resources into account; `critical`: any delay delays the frame. `waits`: steps of other
    streams to wait for."""

    name: str
    stream: int
    start_ns: int
    earliest_ns: int
    latest_finish_ns: int
    critical: bool
    waits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """The side table of a program on a device. `serial_ns`: one stream; `makespan_ns`: the streams chosen."""

    streams: int
    serial_ns: int
    makespan_ns: int
    rows: tuple[Row, ...]


def tasks_of(program: Program, costs: Costs) -> list[Task]:
    """The kernels of a program with their predicted times and needs."""
    return [Task(round(c.ns), c.sms, min(DRAM, round(DRAM * c.dram_ns / c.ns)), after)
            for c, after in zip(costs.steps, dependences(program), strict=True)]


def schedule(program: Program, costs: Costs) -> Schedule:
    """The schedule of a program: as few streams as the gain allows."""
    tasks = tasks_of(program, costs)
    names = [step.name for step in costs.steps]
    serial = sum(task.ns for task in tasks)
    chosen, starts = 1, _one_after_the_other(tasks)
    makespan = serial
    for streams in range(2, STREAMS_MAX + 1):
        found = arrange(tasks, Capacity(costs.device.sms, streams))
        end = max((s + t.ns for s, t in zip(found, tasks, strict=True)), default=0)
        if end * GAIN < makespan:
            chosen, starts, makespan = streams, found, end
    return Schedule(chosen, serial, makespan, _rows(names, tasks, starts, Capacity(costs.device.sms, chosen), makespan))


def _one_after_the_other(tasks: Sequence[Task]) -> list[int]:
    starts, at = [], 0
    for task in tasks:
        starts.append(at)
        at += task.ns
    return starts


def arrange(tasks: Sequence[Task], capacity: Capacity) -> list[int]:
    """Start times (ns) with a small makespan. Serial list scheduling with several priorities, improved by turning the
    schedule round, then by a seeded search around these; the same tasks always give the same answer.

    Raises ValueError for a task that could never run.
    """
    for index, task in enumerate(tasks):
        if task.sms > capacity.sms or task.dram > capacity.dram or capacity.streams < 1:
            raise ValueError(f"task {index} needs {task.sms} SMs and {task.dram} permille of DRAM: more than there is")
    after = [task.after for task in tasks]
    before = _turned(after)
    tails, heads = _longest(tasks, before, reverse=True), _longest(tasks, after)
    priorities: list[list[float]] = [
        [-float(tails[i]) for i in range(len(tasks))],
        [float(heads[i] - tails[i]) for i in range(len(tasks))],
        [-float(tails[i] + t.ns * t.sms / capacity.sms) for i, t in enumerate(tasks)],
        [float(i) for i in range(len(tasks))]]
    best = min((_improved(tasks, after, before, capacity, p) for p in priorities), key=lambda s: _end(tasks, s))
    bound = max((heads[i] + tails[i] for i in range(len(tasks))), default=0)
    bound = max(bound, -(-sum(t.ns * t.sms for t in tasks) // capacity.sms))
    chance = random.Random(SEED)
    for _ in range(SEARCH // max(1, len(tasks)) ** 2):
        if _end(tasks, best) <= bound:
            break
        spread = max(1.0, _end(tasks, best) * chance.choice((0.1, 0.3, 0.6)))
        centre: Sequence[float] = chance.choice([best, *priorities[:3]])
        found = _improved(tasks, after, before, capacity, [s + chance.uniform(0, spread) for s in centre])
        best = min(best, found, key=lambda s: _end(tasks, s))
    return best


def _end(tasks: Sequence[Task], starts: Sequence[int]) -> int:
    return max((s + t.ns for s, t in zip(starts, tasks, strict=True)), default=0)


def _turned(after: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    followers: list[list[int]] = [[] for _ in after]
    for j, earlier in enumerate(after):
        for i in earlier:
            followers[i].append(j)
    return [tuple(f) for f in followers]


def _longest(tasks: Sequence[Task], after: Sequence[Sequence[int]], reverse: bool = False) -> list[int]:
    """Longest chain before each task (`reverse`, with the followers: from its own start to the end)."""
    found = [0] * len(tasks)
    for i in (reversed(range(len(tasks))) if reverse else range(len(tasks))):
        chain = (found[j] + (0 if reverse else tasks[j].ns) for j in after[i])
        found[i] = max(chain, default=0) + (tasks[i].ns if reverse else 0)
    return found


def _improved(tasks: Sequence[Task], after: Sequence[Sequence[int]], before: Sequence[Sequence[int]],
              capacity: Capacity, priority: Sequence[float]) -> list[int]:
    """List scheduling forwards, then backwards from the end and forwards again while that makes it shorter."""
    starts = _place(tasks, after, before, capacity, priority)
    while True:
        mirrored = _place(tasks, before, after, capacity, [-(s + t.ns) for s, t in zip(starts, tasks, strict=True)])
        again = _place(tasks, after, before, capacity,
                       [-(s + t.ns) for s, t in zip(mirrored, tasks, strict=True)])
        if _end(tasks, again) >= _end(tasks, starts):
            return starts
        starts = again


def _place(tasks: Sequence[Task], after: Sequence[Sequence[int]], before: Sequence[Sequence[int]],
           capacity: Capacity, priority: Sequence[float]) -> list[int]:
    """Each task, the smallest priority first among those whose predecessors are placed, at its first sound time."""
    starts, ends = [0] * len(tasks), [0] * len(tasks)
    missing = [len(a) for a in after]
    ready = [i for i, count in enumerate(missing) if count == 0]
    placed: list[int] = []
    while ready:
        i = min(ready, key=lambda r: (priority[r], r))
        ready.remove(i)
        earliest = max((ends[j] for j in after[i]), default=0)
        alive = [j for j in placed if ends[j] > earliest]
        moments = sorted({earliest, *(ends[j] for j in alive)})
        starts[i] = next(at for at in moments if _fits(tasks, starts, ends, alive, i, at, capacity))
        ends[i] = starts[i] + tasks[i].ns
        placed.append(i)
        for j in before[i]:
            missing[j] -= 1
            if not missing[j]:
                ready.append(j)
    return starts


def _fits(tasks: Sequence[Task], starts: Sequence[int], ends: Sequence[int], alive: Sequence[int], i: int, at: int,
          capacity: Capacity) -> bool:
    """Whether task i can run from `at`: at its own start and at each start within, what runs then leaves enough."""
    task = tasks[i]
    beside = [j for j in alive if starts[j] < at + task.ns and ends[j] > at]
    for moment in {at, *(starts[j] for j in beside if starts[j] > at)}:
        running = [tasks[j] for j in beside if starts[j] <= moment < ends[j]]
        if (len(running) >= capacity.streams or task.sms + sum(t.sms for t in running) > capacity.sms
                or task.dram + sum(t.dram for t in running) > capacity.dram):
            return False
    return True


def _rows(names: Sequence[str], tasks: Sequence[Task], starts: Sequence[int], capacity: Capacity,
          makespan: int) -> tuple[Row, ...]:
    """Streams, and the times that each step has left, given the order chosen for those that cannot run together."""
    order = sorted(range(len(tasks)), key=lambda i: (starts[i], i))
    streams, free = [0] * len(tasks), [0] * capacity.streams
    for i in order:
        streams[i] = next(s for s, until in enumerate(free) if until <= starts[i])
        free[streams[i]] = starts[i] + tasks[i].ns
    follows: list[set[int]] = [set(task.after) for task in tasks]
    for at, j in enumerate(order):
        for i in order[:at]:
            if starts[i] + tasks[i].ns <= starts[j] and (streams[i] == streams[j] or not _together(
                    tasks[i], tasks[j], capacity)):
                follows[j].add(i)
    earliest, latest = [0] * len(tasks), [makespan] * len(tasks)
    for j in order:
        earliest[j] = max((earliest[i] + tasks[i].ns for i in follows[j]), default=0)
    for j in reversed(order):
        for i in follows[j]:
            latest[i] = min(latest[i], latest[j] - tasks[j].ns)
    return tuple(Row(names[i], streams[i], starts[i], earliest[i], latest[i], latest[i] - earliest[i] == tasks[i].ns,
                     tuple(sorted(j for j in tasks[i].after if streams[j] != streams[i])))
                 for i in range(len(tasks)))


def _together(a: Task, b: Task, capacity: Capacity) -> bool:
    return a.sms + b.sms <= capacity.sms and a.dram + b.dram <= capacity.dram and capacity.streams > 1
