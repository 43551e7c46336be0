"""Schedules: near an exact solver's on small graphs, sound on every one, and one stream unless another one pays."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from compiled import int8
from models import detector_onnx, random_net
from ortools.sat.python import cp_model
from published_nets import program_of, resnet50
from test_device import BOARDS

from orind.kernels.ir.program import Program, Tensor
from orind.kernels.ir.steps import Copy, Step, TableI8
from orind.kernels.perf.dependences import dependences
from orind.kernels.perf.device import Device
from orind.kernels.perf.model import Costs, StepCost, costs
from orind.kernels.perf.schedule import Capacity, Schedule, Task, arrange, schedule, tasks_of

AGX = Device.from_dict(BOARDS["agx-orin"], "MAXN")
GRAPHS = 20
UNIT_NS = 1000         # whole microseconds: the exact solver proves its optimum sooner


def random_tasks(seed: int) -> tuple[list[Task], Capacity]:
    """8 to 16 kernels of 7 to 60 us with up to three predecessors each, on 16 SMs and two or three streams."""
    rng = random.Random(seed)
    tasks: list[Task] = []
    for index in range(rng.randint(8, 16)):
        earlier = rng.sample(range(index), min(index, rng.choice((0, 1, 1, 2, 3))))
        tasks.append(Task(rng.randint(7, 60) * UNIT_NS, rng.choice((2, 4, 6, 8, 12, 16)),
                          rng.choice((0, 100, 400, 800)), tuple(sorted(earlier))))
    return tasks, Capacity(16, rng.choice((2, 3)))


def exact_makespan(tasks: list[Task], capacity: Capacity) -> int:
    """CP-SAT, to the proof."""
    model = cp_model.CpModel()
    durations = [t.ns // UNIT_NS for t in tasks]
    horizon = sum(durations)
    starts = [model.new_int_var(0, horizon, f"s{i}") for i in range(len(tasks))]
    spans = [model.new_fixed_size_interval_var(s, d, f"i{i}")
             for i, (s, d) in enumerate(zip(starts, durations, strict=True))]
    end = model.new_int_var(0, horizon, "end")
    for i, task in enumerate(tasks):
        model.add(end >= starts[i] + durations[i])
        for j in task.after:
            model.add(starts[i] >= starts[j] + durations[j])
    for needs, room in (([t.sms for t in tasks], capacity.sms), ([t.dram for t in tasks], capacity.dram),
                        ([1] * len(tasks), capacity.streams)):
        model.add_cumulative(spans, needs, room)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return round(solver.objective_value) * UNIT_NS


def check_sound(tasks: list[Task], starts: list[int], capacity: Capacity) -> int:
    """Every order kept and no resource over its capacity at any moment; the makespan."""
    for task, start in zip(tasks, starts, strict=True):
        assert start >= max((starts[j] + tasks[j].ns for j in task.after), default=0)
    for moment in starts:
        now = [t for t, s in zip(tasks, starts, strict=True) if s <= moment < s + t.ns]
        assert len(now) <= capacity.streams
        assert sum(t.sms for t in now) <= capacity.sms and sum(t.dram for t in now) <= capacity.dram
    return max(s + t.ns for s, t in zip(starts, tasks, strict=True))


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_within_five_per_cent_of_the_exact_solver(seed: int) -> None:
    tasks, capacity = random_tasks(seed)
    found = check_sound(tasks, arrange(tasks, capacity), capacity)
    best = exact_makespan(tasks, capacity)
    assert best <= found <= 1.05 * best


def test_the_same_tasks_give_the_same_schedule() -> None:
    tasks, capacity = random_tasks(3)
    assert arrange(tasks, capacity) == arrange(tasks, capacity)
    assert arrange([], capacity) == []


@pytest.mark.parametrize("task", [Task(5, 17), Task(5, 1, 1001)])
def test_a_task_that_could_never_run_is_refused(task: Task) -> None:
    with pytest.raises(ValueError, match=r"task 1 needs .* more than there is"):
        arrange([Task(5, 1), task], Capacity(16, 2))
    with pytest.raises(ValueError, match="task 0 needs"):
        arrange([Task(5, 1)], Capacity(16, 0))


def image(name: str, offset: int, size: int = 256, start: int = 0, span: int = 16, pitch: int = 16) -> Tensor:
    return Tensor(name, "int8", "nhwc", (1, size // pitch, span), offset, size, 1.0, True, pitch, start, span,
                  ((0, span),))


def line(*steps: Step, tensors: list[Tensor]) -> Program:
    return Program(1, 4096, (), (), {t.name: t for t in tensors}, steps)


def test_dependences_are_those_of_the_bytes() -> None:
    tensors = [image("in", 0), image("a", 256), image("b", 512), image("c", 256), image("d", 768)]
    program = line(TableI8("0", "in", "a", "t"), TableI8("1", "in", "b", "t"), TableI8("2", "a", "d", "t"),
                   TableI8("3", "b", "c", "t"), TableI8("4", "c", "in", "t"), tensors=tensors)
    # 3 writes c over a, which 2 reads; 4 writes over what 0 and 1 read, which lie behind 3 already
    assert dependences(program) == ((), (), (0,), (1, 2), (3,))


def test_parts_of_a_concat_do_not_wait_for_each_other() -> None:
    tensors = [image("in", 0), image("left", 256, 512, 0, 16, 32), image("right", 256, 512, 16, 16, 32),
               image("both", 256, 512, 0, 32, 32), image("out", 768, 512, 0, 32, 32)]
    program = line(TableI8("0", "in", "left", "t"), TableI8("1", "in", "right", "t"),
                   Copy("2", "both", "out", ((0, 0, 32),)), tensors=tensors)
    assert dependences(program) == ((), (), (0, 1))


@pytest.mark.parametrize("seed", range(6))
def test_dependences_keep_the_running_order_of_real_programs(seed: int) -> None:
    """Every reader comes behind the writer of its tensor, whichever way the list is followed."""
    program = int8(random_net(seed))[0].program
    after = dependences(program)
    behind: list[set[int]] = []
    for direct in after:
        behind.append(set(direct).union(*(behind[i] for i in direct)))
    written: dict[str, int] = {}
    for index, step in enumerate(program.steps):
        assert all(written[n] in behind[index] for n in step.reads() if n in written)
        written.update(dict.fromkeys(step.writes(), index))


def two_chains(ns: float, sms: int) -> tuple[Program, Costs]:
    """in -> a0 -> a1 -> a2 and in -> b0 -> b1 -> b2, then both into one."""
    tensors, steps = [image("in", 0)], []
    for row, chain in enumerate("ab"):
        for i in range(3):
            tensors.append(image(f"{chain}{i}", 256 * (1 + 3 * row + i)))
            steps.append(TableI8(f"{chain}{i}", f"{chain}{i - 1}" if i else "in", f"{chain}{i}", "t"))
    program = line(*steps, tensors=tensors)
    return program, Costs(AGX, tuple(StepCost(s.name, ns, ns, ns, "mma", "", sms, 0.0) for s in steps))


def test_a_second_stream_only_where_it_pays() -> None:
    program, narrow = two_chains(20_000, 8)
    found = schedule(program, narrow)
    assert (found.streams, found.serial_ns, found.makespan_ns) == (2, 120_000, 60_000)
    assert all(row.critical and row.start_ns == row.earliest_ns for row in found.rows)
    assert {row.name[0]: row.stream for row in found.rows} in ({"a": 0, "b": 1}, {"a": 1, "b": 0})
    program, wide = two_chains(20_000, 16)
    alone = schedule(program, wide)
    assert (alone.streams, alone.makespan_ns) == (1, 120_000), "kernels that fill the GPU gain nothing"
    assert all(b.start_ns == a.start_ns + 20_000 for a, b in pairwise(alone.rows))
    assert all(row.critical for row in alone.rows)


def test_waits_and_slack() -> None:
    """A short side branch: it has slack, and the join waits for it across the streams."""
    tensors = [image(n, 256 * i) for i, n in enumerate(("in", "a", "b", "c"))]
    program = line(TableI8("a", "in", "a", "t"), TableI8("b", "in", "b", "t"), Copy("c", "a", "c", ((0, 0, 16),)),
                   TableI8("d", "b", "a", "t"), tensors=tensors)
    table = Costs(AGX, tuple(StepCost(n, ns, ns, ns, "mma", "", 4, 0.0)
                             for n, ns in zip("abcd", (50_000, 10_000, 50_000, 20_000), strict=True)))
    found = schedule(program, table)
    rows = {row.name: row for row in found.rows}
    assert found.streams == 2 and found.makespan_ns == 120_000
    assert [rows[n].critical for n in "abcd"] == [True, False, True, True]
    assert rows["b"].latest_finish_ns == 100_000 and rows["b"].earliest_ns == 0
    other = [i for i in (1, 2) if found.rows[i].stream != rows["d"].stream]
    assert other and rows["d"].waits == tuple(other)


def rows_are_sound(found: Schedule, tasks: list[Task]) -> None:
    check_sound(tasks, [r.start_ns for r in found.rows], Capacity(AGX.sms, found.streams))
    for row, task in zip(found.rows, tasks, strict=True):
        assert row.earliest_ns <= row.start_ns <= row.latest_finish_ns - task.ns
        for j in task.after:
            assert found.rows[j].stream == row.stream or j in row.waits
    assert any(row.critical for row in found.rows)


def test_real_programs() -> None:
    for program in (int8(detector_onnx(64))[0].program, int8(random_net(4), batch=2)[0].program):
        table = costs(program, AGX)
        found = schedule(program, table)
        assert found.makespan_ns <= found.serial_ns == sum(round(s.ns) for s in table.steps)
        rows_are_sound(found, tasks_of(program, table))


def test_a_network_without_branches_keeps_one_stream() -> None:
    """ResNet50's tensors of the published list all lie at offset 0: everything waits for everything."""
    program = program_of(resnet50())
    found = schedule(program, costs(program, AGX))
    assert found.streams == 1 and found.makespan_ns == found.serial_ns
