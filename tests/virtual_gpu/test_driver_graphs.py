"""Stream capture and graphs: what becomes a node, what ends a capture badly, launches, counting."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import pytest
from driver_calls import HOST_FUNCTION, Cuda, Fresh
from driver_ptx import KERNELS

INVALID_VALUE, ILLEGAL_STATE = 1, 401
UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED = range(900, 905)
ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = range(905, 909)
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NON_BLOCKING = 1
KERNEL, MEMCPY, MEMSET, HOST = 0, 1, 2, 3
Kernels = Callable[[str], int]


def begin(cuda: Cuda, stream: int, mode: int = GLOBAL) -> None:
    cuda.check("cuStreamBeginCapture_v2", stream, mode)


def end(cuda: Cuda, stream: int) -> int:
    graph = c_uint64()
    cuda.check("cuStreamEndCapture", stream, byref(graph))
    return graph.value


def end_code(cuda: Cuda, stream: int) -> int:
    return cuda.call("cuStreamEndCapture", stream, byref(c_uint64()))


def status(cuda: Cuda, stream: int) -> int:
    value = c_int()
    cuda.check("cuStreamIsCapturing", stream, byref(value))
    return value.value


def instantiate(cuda: Cuda, graph: int) -> int:
    return cuda.get("cuGraphInstantiateWithFlags", graph, 0)


def node_types(cuda: Cuda, graph: int) -> list[int]:
    count = c_size_t()
    cuda.check("cuGraphGetNodes", graph, None, byref(count))
    nodes = (c_uint64 * count.value)()
    if count.value:
        cuda.check("cuGraphGetNodes", graph, nodes, byref(count))
    types = []
    for node in nodes:
        kind = c_int()
        cuda.check("cuGraphNodeGetType", node, byref(kind))
        types.append(kind.value)
    return types


def test_a_captured_stream_does_nothing_until_its_graph_is_launched(cuda: Cuda, kernels: Kernels) -> None:
    stream, out, called = cuda.stream(), cuda.allocate(16), []
    cuda.check("cuMemsetD32_v2", out, 0, 4)
    function = HOST_FUNCTION(lambda _: called.append(1))
    begin(cuda, stream)
    assert status(cuda, stream) == 1
    cuda.check("cuMemsetD32Async", out, 3, 1, stream)
    cuda.run(kernels("increment"), out, stream=stream)
    cuda.check("cuMemcpyDtoDAsync_v2", out + 4, out, 4, stream)
    cuda.check("cuLaunchHostFunc", stream, function, None)
    cuda.run(kernels("increment"), out, stream=stream)
    graph = end(cuda, stream)
    assert status(cuda, stream) == 0
    cuda.check("cuCtxSynchronize")
    assert cuda.words(out, 2) == [0, 0] and not called
    assert node_types(cuda, graph) == [MEMSET, KERNEL, MEMCPY, HOST, KERNEL]
    executable = instantiate(cuda, graph)
    cuda.check("cuGraphDestroy", graph)
    for _ in range(3):
        cuda.check("cuGraphLaunch", executable, stream)
    cuda.check("cuStreamSynchronize", stream)
    assert cuda.words(out, 2) == [5, 4] and len(called) == 3
    cuda.check("cuGraphExecDestroy", executable)


@pytest.mark.virtual
def test_launches_of_graphs_are_counted_apart(cuda: Cuda, kernels: Kernels) -> None:
    stream, out = cuda.stream(), cuda.allocate(16)
    cuda.check("cuMemsetD32_v2", out, 0, 4)
    begin(cuda, stream)
    for _ in range(2):
        cuda.run(kernels("increment"), out, stream=stream)
    executable = instantiate(cuda, end(cuda, stream))
    before = cuda.counters()
    for _ in range(3):
        cuda.check("cuGraphLaunch", executable, stream)
    after = cuda.counters()
    assert after["graph_launches"] - before["graph_launches"] == 3
    assert after["single_launches"] == before["single_launches"]
    runs = [c["kernels"].get("increment", {"in_graphs": 0})["in_graphs"] for c in (before, after)]
    assert runs[1] - runs[0] == 6
    cuda.check("cuGraphExecDestroy", executable)
    assert cuda.call("cuGraphLaunch", executable, stream) == INVALID_VALUE


def test_an_event_takes_the_capture_to_another_stream_and_back(fresh: Fresh) -> None:
    """Two branches of three kernels each, in whichever order the schedule takes them; the join comes last."""
    for order in ("forward", "reverse", "random"):
        cuda = fresh(ORDER=order, SEED="5")
        module = cuda.module(KERNELS)
        fill, increment = cuda.function(module, "fill"), cuda.function(module, "increment")
        stream, side, fork, join = cuda.stream(), cuda.stream(NON_BLOCKING), cuda.event(), cuda.event()
        out = cuda.allocate(16)
        begin(cuda, stream)
        cuda.run(fill, out, 10, 2, stream=stream)
        cuda.check("cuEventRecord", fork, stream)
        cuda.check("cuStreamWaitEvent", side, fork, 0)
        assert status(cuda, side) == 1
        for _ in range(3):
            cuda.run(increment, out, stream=stream)
            cuda.run(increment, out + 4, stream=side)
        cuda.check("cuEventRecord", join, side)
        assert end_code(cuda, side) == UNMATCHED
        assert end_code(cuda, stream) == INVALIDATED
        begin(cuda, stream)
        cuda.run(fill, out, 10, 2, stream=stream)
        cuda.check("cuEventRecord", fork, stream)
        cuda.check("cuStreamWaitEvent", side, fork, 0)
        for _ in range(3):
            cuda.run(increment, out, stream=stream)
            cuda.run(increment, out + 4, stream=side)
        cuda.check("cuEventRecord", join, side)
        cuda.check("cuStreamWaitEvent", stream, join, 0)
        cuda.check("cuMemcpyDtoDAsync_v2", out + 8, out, 8, stream)
        executable = instantiate(cuda, end(cuda, stream))
        for _ in range(2):
            cuda.check("cuGraphLaunch", executable, stream)
        cuda.check("cuStreamSynchronize", stream)
        assert cuda.words(out, 4) == [13, 13, 13, 13]


def test_unjoined_work_is_named(cuda: Cuda, kernels: Kernels) -> None:
    stream, side, fork = cuda.stream(), cuda.stream(), cuda.event()
    begin(cuda, stream)
    cuda.check("cuEventRecord", fork, stream)
    cuda.check("cuStreamWaitEvent", side, fork, 0)
    cuda.run(kernels("nothing"), stream=side)
    assert end_code(cuda, stream) == UNJOINED
    assert status(cuda, side) == 0


def allocate(cuda: Cuda, _stream: int) -> int:
    return cuda.call("cuMemAlloc_v2", byref(c_uint64()), 64)


def synchronise(cuda: Cuda, stream: int) -> int:
    return cuda.call("cuStreamSynchronize", stream)


def query(cuda: Cuda, stream: int) -> int:
    return cuda.call("cuStreamQuery", stream)


def synchronise_context(cuda: Cuda, _stream: int) -> int:
    return cuda.call("cuCtxSynchronize")


def legacy_launch(cuda: Cuda, _stream: int) -> int:
    return cuda.call("cuLaunchHostFunc", 0, HOST_FUNCTION(lambda _: None), None)


def wait_for_outside(cuda: Cuda, stream: int) -> int:
    event, other = cuda.event(), cuda.stream(NON_BLOCKING)
    cuda.check("cuEventRecord", event, other)
    return cuda.call("cuStreamWaitEvent", stream, event, 0)


def query_event(cuda: Cuda, stream: int) -> int:
    event = cuda.event()
    cuda.check("cuEventRecord", event, stream)
    return cuda.call("cuEventQuery", event)


def callback(cuda: Cuda, stream: int) -> int:
    function = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)(lambda *_: None)
    return cuda.call("cuStreamAddCallback", stream, function, None, 0)


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (allocate, UNSUPPORTED),
        (synchronise, UNSUPPORTED),
        (query, UNSUPPORTED),
        (synchronise_context, UNSUPPORTED),
        (callback, UNSUPPORTED),
        (legacy_launch, IMPLICIT),
        (wait_for_outside, ISOLATION),
        (query_event, CAPTURED_EVENT),
    ],
)
def test_what_ends_a_capture_badly(cuda: Cuda, kernels: Kernels, step: Callable[[Cuda, int], int], code: int) -> None:
    stream = cuda.stream()
    begin(cuda, stream)
    cuda.run(kernels("nothing"), stream=stream)
    assert step(cuda, stream) == code
    assert status(cuda, stream) == 2
    assert cuda.launch(kernels("nothing"), stream=stream) == INVALIDATED
    assert end_code(cuda, stream) == INVALIDATED
    assert status(cuda, stream) == 0
    cuda.check("cuStreamSynchronize", stream)


def test_two_captures_do_not_merge(cuda: Cuda) -> None:
    first, second, event = cuda.stream(), cuda.stream(), cuda.event()
    begin(cuda, first)
    begin(cuda, second)
    cuda.check("cuEventRecord", event, first)
    assert cuda.call("cuStreamWaitEvent", second, event, 0) == MERGE
    assert (end_code(cuda, first), end_code(cuda, second)) == (INVALIDATED, INVALIDATED)


def test_a_relaxed_capture_allows_unsafe_calls(cuda: Cuda) -> None:
    stream = cuda.stream(NON_BLOCKING)
    begin(cuda, stream, RELAXED)
    assert allocate(cuda, stream) == 0
    cuda.check("cuGraphDestroy", end(cuda, stream))
    mode = c_int(RELAXED)
    cuda.check("cuThreadExchangeStreamCaptureMode", byref(mode))
    assert mode.value == GLOBAL
    begin(cuda, stream)
    assert allocate(cuda, stream) == 0
    end(cuda, stream)
    cuda.check("cuThreadExchangeStreamCaptureMode", byref(mode))


def test_captures_and_other_threads(cuda: Cuda) -> None:
    context, stream, codes = cuda.get("cuCtxGetCurrent"), cuda.stream(), []

    def other(step: Callable[[], int]) -> int:
        def work() -> None:
            cuda.check("cuCtxPushCurrent_v2", context)
            codes.append(step())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return codes[-1]

    begin(cuda, stream, THREAD_LOCAL)
    assert other(lambda: allocate(cuda, stream)) == 0, "only this thread is bound by a thread-local capture"
    assert other(lambda: end_code(cuda, stream)) == WRONG_THREAD
    assert end_code(cuda, stream) == ILLEGAL_STATE, "refused, and over all the same"
    assert status(cuda, stream) == 0
    begin(cuda, stream, GLOBAL)
    assert other(lambda: allocate(cuda, stream)) == UNSUPPORTED
    assert end_code(cuda, stream) == INVALIDATED


def test_capture_begins_and_ends_in_order(cuda: Cuda) -> None:
    stream = cuda.stream()
    assert end_code(cuda, stream) == ILLEGAL_STATE
    assert cuda.call("cuStreamBeginCapture_v2", 0, GLOBAL) == UNSUPPORTED, "not the legacy stream"
    assert cuda.call("cuStreamBeginCapture_v2", stream, 3) == INVALID_VALUE
    begin(cuda, stream)
    assert cuda.call("cuStreamBeginCapture_v2", stream, GLOBAL) == ILLEGAL_STATE
    identity, value = c_uint64(), c_int()
    cuda.check("cuStreamGetCaptureInfo_v2", stream, byref(value), byref(identity), None, None, None)
    assert value.value == 1 and identity.value
    graph = end(cuda, stream)
    assert node_types(cuda, graph) == []
    nodes, none = (c_uint64 * 1)(), c_size_t(0)
    assert cuda.call("cuGraphGetNodes", graph, nodes, byref(none)) == INVALID_VALUE, "an array with room for none"


@pytest.mark.virtual
def test_a_handle_that_is_no_graph_is_refused(cuda: Cuda) -> None:
    assert cuda.call("cuGraphInstantiateWithFlags", byref(c_uint64()), 4096, 0) == INVALID_VALUE


def test_a_graph_keeps_its_module(cuda: Cuda) -> None:
    module, stream, out = cuda.module(KERNELS), cuda.stream(), cuda.allocate(4)
    fill = cuda.function(module, "fill")
    begin(cuda, stream)
    cuda.run(fill, out, 8, 1, stream=stream)
    executable = instantiate(cuda, end(cuda, stream))
    cuda.check("cuModuleUnload", module)
    cuda.check("cuGraphLaunch", executable, stream)
    cuda.check("cuStreamSynchronize", stream)
    assert cuda.words(out, 1) == [8]
