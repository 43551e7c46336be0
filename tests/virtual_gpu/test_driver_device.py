"""Devices, contexts, result codes and the functions that are not implemented."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import threading
from ctypes import byref, c_char_p, c_int, c_uint64
from pathlib import Path

import build
import pytest
from driver_calls import Cuda, Fresh, in_a_thread_of_its_own

INVALID_VALUE, NOT_INITIALISED, INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE = 1, 3, 101, 201, 400
UNSUPPORTED_LIMIT, CONTEXT_IS_DESTROYED, NOT_SUPPORTED = 215, 709, 801
DEVICE_RUNTIME_DEPTH, L2_FETCH_GRANULARITY, PERSISTING_L2 = 3, 5, 6  # CUlimit


def text_of(cuda: Cuda, function: str, code: int) -> str:
    text = c_char_p()
    cuda.call(function, code, byref(text))
    assert text.value is not None
    return text.value.decode()


@pytest.mark.virtual
def test_it_is_an_orin_that_says_it_is_virtual(shared: Cuda) -> None:
    name = ctypes.create_string_buffer(64)
    shared.check("cuDeviceGetName", name, 64, 0)
    assert "virtual" in name.value.decode() and "Orin" in name.value.decode()
    assert shared.get("cuDeviceGetCount", kind=c_int) == 1
    assert shared.get("cuDriverGetVersion", kind=c_int) == 12060
    assert (shared.attribute(75), shared.attribute(76), shared.attribute(16)) == (8, 7, 16)
    assert (shared.attribute(8), shared.attribute(97), shared.attribute(81)) == (48 << 10, 163 << 10, 164 << 10)
    assert shared.call("cuDeviceGet", byref(c_int()), 1) == INVALID_DEVICE
    assert shared.call("cuDeviceGetAttribute", byref(c_int()), 4000, 0) == INVALID_VALUE


@pytest.mark.virtual
def test_nothing_works_before_init(library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "libcuda.so.1"
    copy.write_bytes((library / build.LIBRARY).read_bytes())
    cuda = Cuda(copy)
    assert cuda.call("cuDeviceGetCount", byref(c_int())) == NOT_INITIALISED
    assert cuda.call("cuCtxCreate_v2", byref(c_uint64()), 0, 0) == NOT_INITIALISED
    assert cuda.call("cuInit", 1) == INVALID_VALUE
    cuda.initialise()
    assert cuda.call("cuMemAlloc_v2", byref(c_uint64()), 4) == INVALID_CONTEXT


def test_result_codes_have_their_names_and_texts(shared: Cuda) -> None:
    assert text_of(shared, "cuGetErrorName", 700) == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert text_of(shared, "cuGetErrorString", 700) == "an illegal memory access was encountered"
    for function in ("cuGetErrorName", "cuGetErrorString"):
        text = c_char_p(b"before")
        assert shared.call(function, 4711, byref(text)) == INVALID_VALUE
        assert text.value is None


@in_a_thread_of_its_own
def test_contexts_form_a_stack_of_each_thread(shared: Cuda) -> None:
    first = shared.create_context()
    second = shared.get("cuCtxCreate_v4", None, 0, 0)
    assert shared.get("cuCtxGetCurrent") == second
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(shared.get("cuCtxGetCurrent")))
    other.start()
    other.join()
    assert seen == [0], "another thread has a stack of its own"
    assert shared.get("cuCtxPopCurrent_v2") == second
    assert shared.get("cuCtxGetCurrent") == first
    shared.check("cuCtxPushCurrent_v2", second)
    assert shared.get("cuCtxAttach", 0) == second
    shared.check("cuCtxDetach", second)
    assert shared.get("cuCtxGetCurrent") == second, "it was attached twice"
    shared.check("cuCtxDetach", second)
    assert shared.get("cuCtxGetCurrent") == first
    shared.check("cuCtxDestroy_v2", first)
    assert shared.call("cuCtxSynchronize") == INVALID_CONTEXT


@pytest.mark.virtual
@in_a_thread_of_its_own
def test_stale_handles_of_contexts_are_refused(shared: Cuda) -> None:
    """A real driver takes the handle for what now lies there: it may answer 0."""
    context = shared.create_context()
    event = shared.event()
    shared.check("cuCtxDestroy_v2", context)
    assert shared.call("cuCtxPushCurrent_v2", context) == CONTEXT_IS_DESTROYED
    assert shared.call("cuCtxDestroy_v2", context) == INVALID_CONTEXT
    assert shared.call("cuCtxPushCurrent_v2", 12345) == INVALID_CONTEXT
    primary = shared.get("cuDevicePrimaryCtxRetain", 0)
    shared.check("cuDevicePrimaryCtxRelease_v2", 0)
    assert shared.call("cuCtxDestroy_v2", primary) == INVALID_CONTEXT, "only released, never destroyed"
    shared.create_context()
    assert shared.call("cuEventQuery", event) == INVALID_HANDLE
    shared.check("cuCtxDestroy_v2", shared.get("cuCtxGetCurrent"))


@in_a_thread_of_its_own
def test_a_context_destroyed_by_another_thread_is_named_destroyed(shared: Cuda) -> None:
    context = shared.create_context()
    other = threading.Thread(target=lambda: shared.check("cuCtxDestroy_v2", context))
    other.start()
    other.join()
    assert shared.call("cuCtxSynchronize") == CONTEXT_IS_DESTROYED
    shared.check("cuCtxSetCurrent", None)
    assert shared.get("cuCtxGetCurrent") == 0


@pytest.mark.virtual
def test_destroying_a_context_frees_what_it_owns(shared: Cuda) -> None:
    """Other processes share a real GPU: there, what is free changes by itself."""
    outer = shared.create_context()
    free, total = c_uint64(), c_uint64()
    shared.check("cuMemGetInfo_v2", byref(free), byref(total))
    inner = shared.create_context()
    shared.allocate(1 << 20)
    shared.check("cuCtxDestroy_v2", inner)
    after = c_uint64()
    shared.check("cuMemGetInfo_v2", byref(after), byref(total))
    assert after.value == free.value
    shared.check("cuCtxDestroy_v2", outer)


def test_the_primary_context_is_one_and_counted(shared: Cuda) -> None:
    first = shared.get("cuDevicePrimaryCtxRetain", 0)
    assert shared.get("cuDevicePrimaryCtxRetain", 0) == first
    flags, active = c_uint64(), c_int()
    shared.check("cuDevicePrimaryCtxGetState", 0, byref(flags), byref(active))
    assert active.value == 1
    shared.check("cuDevicePrimaryCtxRelease_v2", 0)
    shared.check("cuDevicePrimaryCtxRelease_v2", 0)
    assert shared.call("cuDevicePrimaryCtxRelease_v2", 0) == INVALID_CONTEXT
    shared.check("cuDevicePrimaryCtxGetState", 0, byref(flags), byref(active))
    assert active.value == 0


@in_a_thread_of_its_own
def test_a_reset_destroys_the_primary_context_for_whom_it_is_current(shared: Cuda) -> None:
    primary = shared.get("cuDevicePrimaryCtxRetain", 0)
    shared.check("cuCtxPushCurrent_v2", primary)
    address = shared.allocate(64)
    shared.check("cuDevicePrimaryCtxReset_v2", 0)
    assert shared.call("cuMemFree_v2", address) == CONTEXT_IS_DESTROYED
    shared.check("cuCtxPopCurrent_v2", None)
    shared.call("cuDevicePrimaryCtxRelease_v2", 0)


@pytest.mark.virtual
@in_a_thread_of_its_own
def test_a_primary_context_that_was_reset_is_used_again_once_retained(shared: Cuda) -> None:
    primary = shared.get("cuDevicePrimaryCtxRetain", 0)
    shared.check("cuDevicePrimaryCtxReset_v2", 0)
    flags, active = c_uint64(), c_int()
    shared.check("cuDevicePrimaryCtxGetState", 0, byref(flags), byref(active))
    assert active.value == 0
    assert shared.call("cuCtxPushCurrent_v2", primary) == CONTEXT_IS_DESTROYED
    assert shared.get("cuDevicePrimaryCtxRetain", 0) == primary
    shared.check("cuCtxPushCurrent_v2", primary)
    shared.check("cuMemFree_v2", shared.allocate(64))
    shared.check("cuCtxPopCurrent_v2", None)
    shared.check("cuDevicePrimaryCtxRelease_v2", 0)
    shared.check("cuDevicePrimaryCtxRelease_v2", 0)


def test_limits_are_kept(cuda: Cuda) -> None:
    cuda.check("cuCtxSetLimit", 0, 4096)
    assert cuda.get("cuCtxGetLimit", 0) == 4096
    cuda.check("cuCtxSetLimit", L2_FETCH_GRANULARITY, 1)  # a hint


@pytest.mark.virtual
def test_limits_of_what_is_not_there_are_refused(cuda: Cuda) -> None:
    for limit in (DEVICE_RUNTIME_DEPTH, PERSISTING_L2, 11):
        assert cuda.call("cuCtxSetLimit", limit, 1) == UNSUPPORTED_LIMIT
        assert cuda.call("cuCtxGetLimit", byref(c_uint64()), limit) == UNSUPPORTED_LIMIT


@pytest.mark.virtual
def test_what_is_not_implemented_says_so_once(cuda: Cuda, capfd: pytest.CaptureFixture[str]) -> None:
    assert cuda.call("cuTexRefCreate", byref(c_uint64())) == NOT_SUPPORTED
    assert cuda.call("cuTexRefCreate", byref(c_uint64())) == NOT_SUPPORTED
    assert capfd.readouterr().err.count("cuTexRefCreate is not implemented") == 1


@pytest.mark.virtual
def test_every_symbol_of_the_list_is_exported_and_no_other(library: Path) -> None:
    listed = set(build.SYMBOLS.read_text().split())
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(library / build.LIBRARY)], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1] for line in done.stdout.splitlines()}
    assert {name for name in exported if name.startswith("cu")} == listed
    ours = {name for name in exported if name.startswith("virtual_gpu_")}
    names = ("configure", "counters", "forms", "last_fault", "reset_counters", "write_counters")
    assert ours == {f"virtual_gpu_{name}" for name in names}
    assert exported == listed | ours


def test_a_child_of_fork_cannot_use_the_driver(fresh: Fresh) -> None:
    cuda = fresh()
    child = os.fork()
    if child == 0:
        os._exit(cuda.call("cuCtxSynchronize") * 10 + cuda.call("cuInit", 0))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == NOT_INITIALISED * 10 + NOT_INITIALISED


@pytest.mark.virtual
def test_sources_are_short_and_say_what_they_are_for() -> None:
    files = [path for folder in build.FOLDERS for path in folder.iterdir() if path.suffix in (".cpp", ".h")]
    assert len(files) > 40
    for path in files:
        lines = path.read_text().splitlines()
        assert len(lines) <= 300, path
        assert re.match(r"// \w", lines[0]), f"{path} opens with what it is for"
