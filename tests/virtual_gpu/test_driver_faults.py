"""Sticky errors, and the faults of the control file: each in an instance of its own."""

from __future__ import annotations

import os
import time
from ctypes import byref, c_char_p, c_int, c_uint64
from pathlib import Path
from typing import Any

import pytest
from driver_calls import Address, CudaError, Fresh
from driver_ptx import KERNELS

pytestmark = pytest.mark.virtual

INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, INVALID_CONTEXT, NOT_READY = 1, 2, 100, 201, 600
ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, ASSERT, UNKNOWN = 700, 702, 710, 999


class Plant:
    """An instance with a control file; `lines` replaces the file as a whole."""

    def __init__(self, fresh: Fresh, folder: Path, *lines: str) -> None:
        self.path = folder / "control"
        self.lines(*lines)
        self.cuda = fresh(CONTROL=str(self.path))
        self.module = self.cuda.module(KERNELS)
        self.out = self.cuda.allocate(64)
        self.cuda.check("cuMemsetD8_v2", self.out, 0, 64)

    def lines(self, *lines: str) -> None:
        part = self.path.with_suffix(".part")
        part.write_text("".join(line + "\n" for line in lines))
        part.replace(self.path)

    def fill(self, value: int, stream: int = 0) -> None:
        self.cuda.run(self.cuda.function(self.module, "fill"), self.out, value, 4, stream=stream)

    def synchronise(self) -> int:
        return self.cuda.call("cuCtxSynchronize")


@pytest.fixture
def plant(fresh: Fresh, tmp_path: Path) -> Any:
    return lambda *lines: Plant(fresh, tmp_path, *lines)


def test_a_fault_is_every_later_answer_of_the_process(fresh: Fresh, capfd: pytest.CaptureFixture[str]) -> None:
    cuda = fresh()
    primary = cuda.get("cuDevicePrimaryCtxRetain", 0)
    module, out = cuda.module(KERNELS), cuda.allocate(64)
    cuda.run(cuda.function(module, "increment"), Address(out + 4096))
    assert cuda.call("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert "increment" in cuda.last_fault() and "line" in cuda.last_fault()
    assert "increment" in capfd.readouterr().err
    calls: list[tuple[Any, ...]] = [
        ("cuCtxSynchronize",),
        ("cuMemAlloc_v2", byref(c_uint64()), 4),
        ("cuMemFree_v2", out),
        ("cuMemcpyDtoD_v2", out, out + 4, 4),
        ("cuStreamCreate", byref(c_uint64()), 0),
        ("cuStreamQuery", 0),
        ("cuEventCreate", byref(c_uint64()), 0),
        ("cuModuleUnload", module),
        ("cuModuleGetFunction", byref(c_uint64()), module, c_char_p(b"fill")),
        ("cuMemGetInfo_v2", byref(c_uint64()), byref(c_uint64())),
    ]
    assert {name: cuda.call(name, *arguments) for name, *arguments in calls} == {c[0]: ILLEGAL_ADDRESS for c in calls}
    cuda.check("cuCtxPopCurrent_v2", None)  # the stack can still be cleared
    assert cuda.call("cuCtxCreate_v2", byref(c_uint64()), 0, 0) == ILLEGAL_ADDRESS
    assert cuda.call("cuDevicePrimaryCtxReset_v2", 0) == ILLEGAL_ADDRESS, "a reset promises no recovery"
    cuda.check("cuCtxPushCurrent_v2", primary)
    assert cuda.call("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert cuda.counters()["faults"] == [cuda.last_fault()]


def test_an_assert_spoils_the_process_too(plant: Any) -> None:
    planted = plant("assert launch=2")
    cuda = planted.cuda
    planted.fill(1)
    assert planted.synchronise() == 0
    planted.fill(2)
    assert planted.synchronise() == ASSERT
    assert cuda.call("cuMemAlloc_v2", byref(c_uint64()), 4) == ASSERT
    assert cuda.call("cuCtxCreate_v2", byref(c_uint64()), 0, 0) == ASSERT
    assert cuda.call("cuDevicePrimaryCtxRetain", byref(c_uint64()), 0) == ASSERT


def test_work_after_a_fault_is_dropped_and_events_complete(plant: Any) -> None:
    planted = plant("illegal_address launch=1")
    stream, event = planted.cuda.stream(), planted.cuda.event()
    planted.cuda.call("cuStreamSynchronize", stream)
    planted.fill(1, stream)
    planted.cuda.call("cuEventRecord", event, stream)
    assert planted.cuda.call("cuStreamSynchronize", stream) == ILLEGAL_ADDRESS
    assert planted.cuda.call("cuEventQuery", event) == ILLEGAL_ADDRESS
    assert "injected 'illegal_address launch=1' at kernel fill" in planted.cuda.last_fault()


def test_the_nth_allocation_fails_once(plant: Any) -> None:
    planted = plant("out_of_memory allocation=3", "out_of_memory allocation=4")
    assert planted.cuda.get("cuMemAlloc_v2", 64)
    assert planted.cuda.call("cuMemHostAlloc", byref(c_uint64()), 64, 0) == OUT_OF_MEMORY
    assert planted.cuda.call("cuMemAlloc_v2", byref(c_uint64()), 64) == OUT_OF_MEMORY
    assert planted.cuda.get("cuMemAlloc_v2", 64)


def test_a_hang_ends_when_its_line_goes(plant: Any) -> None:
    planted = plant("hang launch=2")
    cuda, stream, other = planted.cuda, planted.cuda.stream(1), planted.cuda.stream(1)
    planted.fill(1, stream)
    planted.fill(2, stream)
    planted.fill(3, stream)
    cuda.check("cuMemsetD32Async", planted.out + 32, 5, 1, other)
    cuda.check("cuStreamSynchronize", other)
    time.sleep(0.02)
    assert cuda.call("cuStreamQuery", stream) == NOT_READY
    planted.lines()
    cuda.check("cuStreamSynchronize", stream)
    assert cuda.words(planted.out, 1) == [3]


def test_a_hang_may_end_as_a_time_out(plant: Any) -> None:
    planted = plant("hang launch=1 timeout_ms=30")
    begin = time.monotonic()
    planted.fill(1)
    assert planted.synchronise() == LAUNCH_TIMEOUT
    assert time.monotonic() - begin >= 0.03


def test_one_bit_of_the_first_output_is_flipped_silently(plant: Any) -> None:
    planted = plant("bit_flip launch=2 bit=5")
    for value in (1, 2, 3):
        planted.fill(value)
        words = planted.cuda.words(planted.out, 4)
        assert words == ([2 ^ 1 << 5, 2, 2, 2] if value == 2 else [value] * 4)
    assert planted.synchronise() == 0


def test_a_slow_down_takes_longer_and_changes_nothing(plant: Any) -> None:
    factor, slow, launches = 20_000, 5, 12

    def time_of_one(value: int) -> float:
        begin = time.perf_counter()
        planted.fill(value)
        assert planted.synchronise() == 0
        return time.perf_counter() - begin

    planted = plant(f"slow_down factor={factor} launch={slow}")
    times = [time_of_one(value) for value in range(1, launches + 1)]
    assert planted.cuda.words(planted.out, 4) == [launches] * 4
    # the kernel is slowed down, the way there and back is not, which takes far longer than this kernel
    assert times.pop(slow - 1) > factor / 1000 * min(times)


def test_a_lost_device_answers_nothing_and_is_not_found_again(plant: Any, fresh: Fresh) -> None:
    planted = plant("hang launch=1")
    stream = planted.cuda.stream()
    planted.fill(1, stream)
    planted.lines("device_lost")
    assert planted.cuda.call("cuStreamSynchronize", stream) == UNKNOWN
    assert planted.cuda.call("cuCtxCreate_v2", byref(c_uint64()), 0, 0) == UNKNOWN
    with pytest.raises(CudaError, match=f"cuInit: {NO_DEVICE}"):
        fresh(CONTROL=str(planted.path))


def test_faults_strike_graph_launches_at_a_kernel(plant: Any) -> None:
    planted = plant("bit_flip graph=2 node=2", "illegal_address graph=+3")
    cuda, stream, graph = planted.cuda, planted.cuda.stream(), c_uint64()
    second = cuda.allocate(64)
    fill = cuda.function(planted.module, "fill")
    cuda.check("cuStreamBeginCapture_v2", stream, 0)
    cuda.run(fill, planted.out, 1, 4, stream=stream)
    cuda.run(fill, second, 1, 4, stream=stream)
    cuda.check("cuStreamEndCapture", stream, byref(graph))
    executable = cuda.get("cuGraphInstantiateWithFlags", graph.value, 0)
    for launch in (1, 2):
        cuda.check("cuMemsetD8_v2", planted.out, 0, 64)
        cuda.check("cuMemsetD8_v2", second, 0, 64)
        cuda.check("cuGraphLaunch", executable, stream)
        cuda.check("cuStreamSynchronize", stream)
        assert cuda.words(planted.out, 4) == [1] * 4
        assert cuda.words(second, 4) == ([1] * 4 if launch == 1 else [0, 1, 1, 1])
    cuda.check("cuGraphLaunch", executable, stream)
    assert cuda.call("cuStreamSynchronize", stream) == ILLEGAL_ADDRESS


def test_a_line_may_be_for_one_process_or_strike_once(plant: Any, fresh: Fresh) -> None:
    planted = plant(f"assert launch=1 pid={os.getpid() + 1}", "assert launch=2 once")
    planted.fill(1)
    assert planted.synchronise() == 0
    planted.fill(1)
    assert planted.synchronise() == ASSERT
    other = fresh(CONTROL=str(planted.path))
    function, out = other.function(other.module(KERNELS), "fill"), other.allocate(64)
    for _ in range(3):
        other.run(function, out, 1, 1)
    assert other.call("cuCtxSynchronize") == 0, "it has struck in the first instance"


def test_the_old_and_new_handles_of_a_context_do_not_mix(fresh: Fresh) -> None:
    cuda = fresh()
    first = cuda.get("cuCtxGetCurrent")
    stream = cuda.stream()
    cuda.check("cuCtxDestroy_v2", first)
    cuda.create_context()
    assert cuda.call("cuStreamSynchronize", stream) == 400
    assert cuda.call("cuCtxGetApiVersion", 77, byref(c_int())) == INVALID_CONTEXT
