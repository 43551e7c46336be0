"""Streams, events, the legacy default stream, host functions, and the order across streams."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_uint64, c_void_p
from random import Random
from typing import Any

import pytest
from driver_calls import HOST_FUNCTION, NOT_READY, Cuda, Fresh, ends, held, held_by_host
from driver_ptx import KERNELS

INVALID_VALUE, INVALID_HANDLE, NOT_PERMITTED = 1, 400, 800
NON_BLOCKING, DISABLE_TIMING = 1, 2
CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)
Kernels = Callable[[str], int]


def test_a_launch_returns_before_it_has_run(cuda: Cuda, kernels: Kernels, gate: Any) -> None:
    stream, out = cuda.stream(), cuda.allocate(4)
    cuda.check("cuMemsetD32_v2", out, 0, 1)
    with gate(stream):
        cuda.run(kernels("fill"), out, 5, 1, stream=stream)
        assert cuda.call("cuStreamQuery", stream) == NOT_READY
    cuda.check("cuStreamSynchronize", stream)
    assert cuda.call("cuStreamQuery", stream) == 0
    assert cuda.words(out, 1) == [5]


def test_a_stream_waits_for_an_event_of_another(cuda: Cuda, kernels: Kernels) -> None:
    """A host function holds the first stream, so that the device is free and only the event holds the second."""
    first, second, third = (cuda.stream(NON_BLOCKING) for _ in range(3))
    fill, nothing, out, event = kernels("fill"), kernels("nothing"), cuda.allocate(4), cuda.event()
    with held_by_host(cuda, first):
        cuda.run(fill, out, 1, 1, stream=first)
        cuda.check("cuEventRecord", event, first)
        cuda.check("cuStreamWaitEvent", second, event, 0)
        cuda.run(fill, out, 2, 1, stream=second)
        cuda.run(nothing, stream=third)
        assert ends(cuda, third), "the device is free"
        assert cuda.call("cuStreamQuery", second) == NOT_READY
        assert cuda.call("cuEventQuery", event) == NOT_READY
    cuda.check("cuStreamSynchronize", second)
    assert cuda.call("cuEventQuery", event) == 0
    assert cuda.words(out, 1) == [2]


@pytest.mark.parametrize(("flags", "waits"), [(0, True), (NON_BLOCKING, False)])
def test_the_legacy_stream_and_blocking_streams_wait_for_each_other(cuda: Cuda, flags: int, waits: bool) -> None:
    stream, probe, other = cuda.stream(flags), cuda.stream(NON_BLOCKING), cuda.stream()
    address, legacy = cuda.allocate(4), 0
    cuda.check("cuMemsetD8_v2", address, 0, 4)  # a fill is a kernel too, and loaded now
    with held_by_host(cuda, stream):
        cuda.check("cuMemsetD8Async", address, 1, 4, legacy)
        cuda.check("cuMemsetD8Async", address, 1, 4, probe)
        assert ends(cuda, probe)
        if waits:
            time.sleep(0.02)
            assert cuda.call("cuStreamQuery", legacy) == NOT_READY
        else:
            assert ends(cuda, legacy)
        cuda.check("cuMemsetD8Async", address, 1, 4, other)
        if waits:
            time.sleep(0.02)
            assert cuda.call("cuStreamQuery", other) == NOT_READY, "it comes after the legacy stream's work"
        else:
            assert ends(cuda, other)
    cuda.check("cuCtxSynchronize")


def test_host_functions_run_in_order(cuda: Cuda, kernels: Kernels) -> None:
    stream, out = cuda.stream(), cuda.pinned(4)
    seen: list[int] = []
    function = HOST_FUNCTION(lambda _: seen.append(out[1][0]))
    cuda.run(kernels("fill"), out[0], 3, 1, stream=stream)
    cuda.check("cuLaunchHostFunc", stream, function, None)
    cuda.run(kernels("fill"), out[0], 4, 1, stream=stream)
    callback = CALLBACK(lambda _stream, status, _data: seen.append(status))
    cuda.check("cuStreamAddCallback", stream, callback, None, 0)
    cuda.check("cuStreamSynchronize", stream)
    assert seen == [3, 0]
    assert out[1][0] == 4


@pytest.mark.virtual
def test_host_functions_may_not_call_the_driver(cuda: Cuda) -> None:
    """The real driver promises no answer: it may wait for itself."""
    stream, seen = cuda.stream(), [0]
    function = HOST_FUNCTION(lambda _: seen.append(cuda.call("cuCtxSynchronize")))
    cuda.check("cuLaunchHostFunc", stream, function, None)
    cuda.check("cuStreamSynchronize", stream)
    assert seen == [0, NOT_PERMITTED]


def test_events_measure_time_on_the_device(cuda: Cuda, gate: Any) -> None:
    stream, begin, end = cuda.stream(), cuda.event(), cuda.event()
    milliseconds = c_float()
    assert cuda.call("cuEventElapsedTime", byref(milliseconds), begin, end) == INVALID_HANDLE, "never recorded"
    assert cuda.call("cuEventQuery", begin) == 0
    cuda.check("cuEventRecord", begin, stream)
    with gate(stream):
        cuda.check("cuEventRecord", end, stream)
        assert cuda.call("cuEventElapsedTime", byref(milliseconds), begin, end) == NOT_READY
        time.sleep(0.02)
    cuda.check("cuEventSynchronize", end)
    cuda.check("cuEventElapsedTime", byref(milliseconds), begin, end)
    assert milliseconds.value >= 20
    untimed = cuda.event(DISABLE_TIMING)
    cuda.check("cuEventRecord", untimed, stream)
    cuda.check("cuEventSynchronize", untimed)
    assert cuda.call("cuEventElapsedTime", byref(milliseconds), begin, untimed) == INVALID_HANDLE


@pytest.mark.virtual
def test_stale_handles_of_streams_and_events_are_refused(cuda: Cuda) -> None:
    stream, event = cuda.stream(), cuda.event()
    cuda.check("cuStreamDestroy_v2", stream)
    cuda.check("cuEventDestroy_v2", event)
    assert cuda.call("cuEventQuery", event) == INVALID_HANDLE
    assert cuda.call("cuStreamSynchronize", stream) == INVALID_HANDLE
    assert cuda.call("cuStreamSynchronize", 4096) == INVALID_HANDLE


def test_flags_of_streams(cuda: Cuda) -> None:
    assert cuda.call("cuStreamCreate", byref(c_uint64()), 8) == INVALID_VALUE
    flags = c_int()
    cuda.check("cuStreamGetFlags", cuda.stream(NON_BLOCKING), byref(flags))
    assert flags.value == NON_BLOCKING


def test_a_destroyed_stream_still_does_its_work(cuda: Cuda, kernels: Kernels) -> None:
    stream, out = cuda.stream(), cuda.allocate(4)
    cuda.run(kernels("fill"), out, 6, 1, stream=stream)
    cuda.check("cuStreamDestroy_v2", stream)
    cuda.check("cuCtxSynchronize")
    assert cuda.words(out, 1) == [6]


def order_across_streams(cuda: Cuda) -> list[int]:
    """Which of 8 streams comes when, if all have one launch waiting; each writes its number behind the last."""
    kernels = cuda.module(KERNELS)
    fill, gate = cuda.function(kernels, "fill"), cuda.function(kernels, "gate")
    streams = [cuda.stream(NON_BLOCKING) for _ in range(9)]
    marks = [cuda.event() for _ in streams]
    out = cuda.allocate(4)
    with held(cuda, gate, streams[8]):
        time.sleep(0.01)  # the gate is running now: what follows queues up behind it on the one device
        for number in range(8):
            cuda.run(fill, out, number, 1, stream=streams[number])
            cuda.check("cuEventRecord", marks[number], streams[number])
    cuda.check("cuCtxSynchronize")
    base = cuda.event()
    since = c_float()

    def when(number: int) -> float:
        cuda.check("cuEventElapsedTime", byref(since), base, marks[number])
        return since.value

    cuda.check("cuEventRecord", base, 0)
    cuda.check("cuEventSynchronize", base)
    return sorted(range(8), key=when)


@pytest.mark.virtual
def test_the_order_across_streams_follows_the_schedule(fresh: Fresh) -> None:
    assert order_across_streams(fresh()) == list(range(8))
    assert order_across_streams(fresh(ORDER="reverse")) == list(range(8))[::-1]
    random = [order_across_streams(fresh(ORDER="random", SEED=str(seed))) for seed in (1, 2, 3)]
    assert len({tuple(order) for order in random}) > 1


def chain_lengths(cuda: Cuda, seed: int, capture: bool) -> tuple[list[int], list[int]]:
    """60 operations in 5 streams: each takes the word of an earlier one and adds 1, an event standing between them.

    Returns the words and what they must be. Captured, all streams start from the first and are joined to it.
    """
    random, increment = Random(seed), cuda.function(cuda.module(KERNELS), "increment")
    streams = [cuda.stream(random.choice([0, NON_BLOCKING])) for _ in range(5)]
    words, count = cuda.allocate(4 * 61), 60
    cuda.check("cuMemsetD32_v2", words, 0, 61)
    cuda.check("cuCtxSynchronize")  # a fill returns before it is done, and some of the streams wait for no other
    want, events, place = [0], [cuda.event()], [0]
    if capture:
        cuda.check("cuStreamBeginCapture_v2", streams[0], 2)
    cuda.check("cuEventRecord", events[0], streams[0])
    for number in range(1, count + 1):
        taken, at = random.randrange(number), random.randrange(5)
        if place[taken] != at or capture:
            cuda.check("cuStreamWaitEvent", streams[at], events[taken], 0)
        cuda.check("cuMemcpyDtoDAsync_v2", words + 4 * number, words + 4 * taken, 4, streams[at])
        cuda.run(increment, words + 4 * number, block=(1, 1, 1), stream=streams[at])
        events.append(cuda.event())
        cuda.check("cuEventRecord", events[-1], streams[at])
        place.append(at)
        want.append(want[taken] + 1)
    if capture:
        for event in events:
            cuda.check("cuStreamWaitEvent", streams[0], event, 0)
        graph, executable = c_uint64(), c_uint64()
        cuda.check("cuStreamEndCapture", streams[0], byref(graph))
        cuda.check("cuGraphInstantiateWithFlags", byref(executable), graph, 0)
        cuda.check("cuGraphLaunch", executable, streams[1])
    cuda.check("cuCtxSynchronize")
    return cuda.words(words, count + 1), want


@pytest.mark.parametrize("capture", [False, True], ids=["streams", "graph"])
@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_events_order_what_they_stand_between(fresh: Fresh, order: str, capture: bool) -> None:
    cuda = fresh(ORDER=order, SEED="11")
    for seed in range(6):
        got, want = chain_lengths(cuda, seed, capture)
        assert got == want, seed


def test_two_threads_share_a_context(cuda: Cuda, kernels: Kernels) -> None:
    context, fill = cuda.get("cuCtxGetCurrent"), kernels("fill")
    wrong: list[int] = []

    def work(number: int) -> None:
        cuda.check("cuCtxPushCurrent_v2", context)
        stream, out = cuda.stream(), cuda.allocate(256)
        for value in range(50):
            cuda.run(fill, out, number * 1000 + value, 64, grid=(2, 1, 1), stream=stream)
            cuda.check("cuStreamSynchronize", stream)
            wrong.extend(word for word in cuda.words(out, 64) if word != number * 1000 + value)
        cuda.check("cuCtxPopCurrent_v2", None)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
