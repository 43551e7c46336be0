"""Rubbish from the host: files and memory that are not what the virtual GPU is told, a host that is short of memory.

And modules changed at random, loaded in a process of their own.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import build
import pytest
from driver_calls import Cuda, CudaError, Fresh
from driver_ptx import KERNELS
from test_driver_control import run_script
from test_rubbish import kernel

INVALID_VALUE, OUT_OF_MEMORY, INVALID_IMAGE, INVALID_PTX, UNSUPPORTED_PTX = 1, 2, 200, 218, 222
NOBODYS = 4096 * 5  # below what Linux lets a process map


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.mkdir(), "is no regular file"),
        (os.mkfifo, "is no regular file"),
        (lambda path: path.write_text("assert launch=1"), "its last line does not end"),
    ],
)
def test_a_control_file_that_could_hide_a_fault(
    fresh: Fresh, tmp_path: Path, capfd: pytest.CaptureFixture[str], make: object, said: str
) -> None:
    path = tmp_path / "control"
    assert callable(make)
    make(path)
    with pytest.raises(CudaError, match=f"cuInit: {INVALID_VALUE}"):
        fresh(CONTROL=str(path))
    stderr = capfd.readouterr().err
    assert f"VIRTUAL_GPU_CONTROL={path}" in stderr and said in stderr


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("write_text('assert launch=1')", "its last line does not end"),
        ("unlink(), path.mkdir()", "is no regular file"),
    ],
)
def test_a_control_file_that_becomes_one(library: Path, tmp_path: Path, change: str, said: str) -> None:
    control = tmp_path / "control"
    control.touch()
    done = run_script(library, f"path = Path({str(control)!r})\npath.{change}\ntime.sleep(30)\n", CONTROL=str(control))
    assert done.returncode == -6, "SIGABRT"
    assert said in done.stderr


@pytest.mark.virtual
def test_a_control_file_that_goes_takes_its_faults_with_it(fresh: Fresh, tmp_path: Path) -> None:
    path = tmp_path / "control"
    path.write_text("hang launch=1\n")
    cuda = fresh(CONTROL=str(path))
    out = cuda.allocate(64)
    cuda.run(cuda.function(cuda.module(KERNELS), "fill"), out, 3, 4)
    time.sleep(0.02)
    path.unlink()
    cuda.check("cuCtxSynchronize")
    assert cuda.words(out, 4) == [3] * 4


COME_AND_GO = """
import os, sys
texts, control, parent = sys.argv[1:3], sys.argv[3], os.getppid()
while os.getppid() == parent:
    for text in texts:
        os.link(text, control)
        os.unlink(control)
"""


@pytest.mark.virtual
def test_a_control_file_that_goes_while_it_is_read(library: Path, tmp_path: Path) -> None:
    """Between being found and being opened, which takes some of these many tries to meet."""
    control, texts = tmp_path / "control", [tmp_path / "one", tmp_path / "another"]
    control.touch()
    for text in texts:
        text.write_text(f"slow_down factor=2 launch=1  # {text.name}\n")
    paths = [str(path) for path in (*texts, control)]
    more = (
        "import subprocess\n"
        f"Path({str(control)!r}).unlink()\n"
        f"writer = subprocess.Popen([sys.executable, '-c', {COME_AND_GO!r}, *{paths!r}])\n"
        f"while not Path({str(control)!r}).exists(): pass\n"
        "for _ in range(20_000):\n    cuda.check('cuMemFree_v2', cuda.allocate(64))\n"
        "print(writer.poll())\nwriter.kill()\n"
    )
    done = run_script(library, more, CONTROL=str(control))
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


@pytest.mark.virtual
def test_counters_replace_no_device_and_have_a_folder(
    fresh: Fresh, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "none" / "counters"):
        with pytest.raises(CudaError, match=f"cuInit: {INVALID_VALUE}"):
            fresh(COUNTERS=str(path))
        assert f"VIRTUAL_GPU_COUNTERS={path}: takes a file, in a folder" in capfd.readouterr().err


def test_only_memory_of_the_process_is_registered(cuda: Cuda) -> None:
    pages = mmap.mmap(-1, 8192)
    address = ctypes.addressof((ctypes.c_ubyte * 8192).from_buffer(pages))
    ranges = [(NOBODYS, 4096), (address, 2**64 - 1), (2**64 - 4096, 8192), (4096, 2**64 - 8192)]
    assert [cuda.call("cuMemHostRegister_v2", at, size, 0) for at, size in ranges] == [INVALID_VALUE] * 4
    cuda.check("cuMemHostRegister_v2", address + 1, 8190, 0)
    cuda.check("cuMemHostUnregister", address + 1)


@pytest.mark.virtual
def test_memory_that_is_only_read_is_not_registered(cuda: Cuda) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    pages = mmap.mmap(-1, 8192)
    address = ctypes.addressof((ctypes.c_ubyte * 8192).from_buffer(pages))
    assert libc.mprotect(ctypes.c_void_p(address + 4096), ctypes.c_size_t(4096), mmap.PROT_READ) == 0
    assert cuda.call("cuMemHostRegister_v2", address, 8192, 0) == INVALID_VALUE
    cuda.check("cuMemHostRegister_v2", address, 4096, 0)
    cuda.check("cuMemHostUnregister", address)


LOAD = "try:\n    cuda.module(PTX.replace('<2>', '<1000000>'))\nexcept CudaError as error:\n    print(error)\n"
FEWER = (
    "import threading\nfrom rubbish_checks import stacks_of\nstacks_of(1 << 30)\n"
    "try:\n    threading.Thread(target=print).start()\nexcept RuntimeError as error:\n    print(error)\n"
    "print(cuda.launch(FUNCTION, grid=(64, 1, 1)), cuda.call('cuCtxSynchronize'))\n"
)
FLIP = (
    "large = cuda.allocate(256 << 20)\ncuda.run(cuda.function(module, 'fill'), large, 1, 4)\n"
    "print(cuda.call('cuCtxSynchronize'), cuda.last_fault())\n"
)
RUN = "print(cuda.launch(FUNCTION, block=(1024, 1, 1)), cuda.call('cuCtxSynchronize'), cuda.last_fault())\n"


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("body", "left_mib", "then", "said"),
    [
        (".reg .b32 %r<2>;", 96, LOAD, f"cuModuleLoadData: {OUT_OF_MEMORY}"),
        (".local .b8 l[500000];", 96, RUN, f"0 {OUT_OF_MEMORY} k: no memory of the host is left"),
        ("", 96, FLIP, f"{OUT_OF_MEMORY} no memory of the host is left for work"),
        # no stack for another thread: those that there are run all blocks
        ("", 96, FEWER, "can't start new thread\n0 0"),
    ],
)
def test_a_host_that_is_short_of_memory(
    library: Path, tmp_path: Path, body: str, left_mib: int, then: str, said: str
) -> None:
    (tmp_path / "control").write_text("bit_flip launch=2\n")
    ready = f"PTX = {kernel(body)!r}\nFUNCTION = cuda.function(cuda.module(PTX), 'k')\n"
    script = f"{ready}from rubbish_checks import limit_memory\nlimit_memory({left_mib} << 20)\n{then}"
    done = run_script(library, script, CONTROL=str(tmp_path / "control"), THREADS="8")
    assert (done.returncode, done.stdout[: len(said)]) == (0, said), done.stderr


@pytest.mark.virtual
def test_text_changed_at_random_is_taken_or_refused(library: Path) -> None:
    """No crash, no hang, no other code, and no more memory than rubbish_checks.py allows."""
    command = [sys.executable, str(build.HERE / "rubbish_checks.py"), str(library / build.LIBRARY), "12000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, (done.returncode, "the last seed is", done.stdout[-20:], done.stderr[-500:])
    codes = {int(code): count for code, count in json.loads(done.stdout.splitlines()[-1]).items()}
    assert set(codes) <= {0, OUT_OF_MEMORY, INVALID_IMAGE, INVALID_PTX, UNSUPPORTED_PTX}
    assert codes[0] > 100 and codes[INVALID_PTX] > 100, codes
