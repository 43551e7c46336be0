"""scripts/measure_gpu: a file of tests that does not end well is never told as passed, nor what there was no time for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import bench_gpu
import measure_gpu
import pytest

from orind.kernels.cuda import nvrtc

FILES = {
    "passes": ("def test_a(): pass\n", Counter(passed=1), []),
    "fails": ("def test_a(): assert 0\ndef test_b(): pass\n", Counter(passed=1, failed=1), ["test_fails: test_a"]),
    "hangs": (
        "import time\ndef test_a(): pass\ndef test_b(): time.sleep(60)\n",
        Counter(),
        ["test_hangs: ended with 124 in test_hangs.py::test_b"],
    ),
    "dies": (
        "import os, atexit\natexit.register(os._exit, 139)\ndef test_a(): pass\n",
        Counter(passed=1),
        ["test_dies: ended with 139"],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_tests(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, outcomes, wrong = FILES[name]
    path = tmp_path / f"test_{name}.py"
    path.write_text(text)
    (tmp_path / f"test_{name}.xml").write_text('<testsuite><testcase name="of_before"/></testsuite>')
    monkeypatch.setattr(measure_gpu, "ROOT", tmp_path)
    monkeypatch.setattr(measure_gpu, "STEP_LIMIT_S", 8)
    runner = measure_gpu.Runner(tmp_path, time.monotonic() + 60)
    assert measure_gpu.test_file(path, runner) == (f"test_{name}", outcomes, wrong)


def test_a_command_that_takes_too_long_ends_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_gpu, "LEAST_S", 0.1)
    monkeypatch.setattr(measure_gpu, "KILL_LIMIT_S", 1)
    runner = measure_gpu.Runner(tmp_path, time.monotonic() + 2)
    done = runner.run("sh", "-c", "sleep 600 & echo $!; wait", log="log")
    assert done.returncode == 124 and "not done after" in done.stderr  # by the end of all, long before its own limit
    state, limit = Path(f"/proc/{int(done.stdout)}/stat"), time.monotonic() + 10
    # who is killed closes its files, by which we know of its end, a moment before it is over
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while state.read_text().split()[2] != "Z":
            assert time.monotonic() < limit
            time.sleep(0.01)
    monkeypatch.setattr(measure_gpu, "LEAST_S", 60)
    with pytest.raises(measure_gpu.NotReached):
        runner.run("true", log="log")


def test_what_a_command_leaves_in_another_session_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_gpu, "STEP_LIMIT_S", 1)
    monkeypatch.setattr(measure_gpu, "LEAST_S", 0.1)
    runner = measure_gpu.Runner(tmp_path, time.monotonic() + 60)
    done = runner.run("sh", "-c", "setsid sleep 20 & echo $!; wait", log="log")
    assert done.returncode == 124
    assert Path(f"/proc/{int(done.stdout)}/stat").read_text().split()[2] != "Z", "it runs still"
    os.kill(int(done.stdout), signal.SIGKILL)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell's background job ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_what_runs(tmp_path: Path) -> None:
    runner, pid = measure_gpu.Runner(tmp_path, time.monotonic() + 60), tmp_path / "pid"
    with pytest.raises(KeyboardInterrupt):
        runner.run("sh", "-c", f"echo $$ > {pid}; sleep 0.5; kill -INT $PPID; sleep 600", log="log")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_all_files_of_tests_and_begins_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = "import os, signal, time\ndef test_a():\n    time.sleep(600)\n"
    interrupt = hang.replace("    time", "    os.kill(os.getppid(), signal.SIGINT)\n    time")
    for name, text in (("1", interrupt), ("2", hang), ("3", FILES["passes"][0])):
        (tmp_path / f"test_{name}.py").write_text(text)
    monkeypatch.setattr(measure_gpu, "TESTS", tmp_path)
    monkeypatch.setattr(measure_gpu, "ROOT", tmp_path)
    monkeypatch.setattr(measure_gpu.os, "cpu_count", lambda: 2)
    with pytest.raises(KeyboardInterrupt):
        measure_gpu.tests(measure_gpu.Report(), measure_gpu.Runner(tmp_path, time.monotonic() + 60))
    logs = {path.name: path.read_text() for path in tmp_path.glob("*.log")}
    assert set(logs) == {"test_1.log", "test_2.log"}
    assert all(text.endswith("ended with 124\n") for text in logs.values())


def test_what_no_time_is_left_for_is_told_as_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure_gpu, "machine", lambda _: "A machine.")
    monkeypatch.setattr(measure_gpu.shutil, "which", lambda name: name)
    out = tmp_path / "table.md"
    monkeypatch.setattr("sys.argv", ["measure_gpu", "--gone", str(measure_gpu.LIMIT_S), "--out", str(out)])
    assert measure_gpu.main() == 1
    said = out.read_text()
    assert said == capsys.readouterr().out
    assert "* test_convolution: not run" in said and "| memcheck | not run |" in said
    assert [f"Not run: {name}, no time was left" in said for name in ("counters", "bench")] == [True, True]


def test_a_machine_without_nvidia_smi_is_measured_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Jetson, or one whose driver does not run."""
    version = "{}.{}".format(*nvrtc.load().version)
    monkeypatch.setenv("PATH", "/nowhere")
    said = measure_gpu.machine(measure_gpu.Runner(tmp_path, time.monotonic() + 60))
    assert said.startswith("GPU and driver: not known ([Errno 2] No such file or directory: 'nvidia-smi'); ")
    assert f"NVRTC {version}" in said


def test_what_cannot_be_written_is_refused_in_one_line_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure_gpu, "machine", lambda _: "A machine.")
    missing = str(tmp_path / "missing" / "table.md")
    for arguments, named in ((("--logs", "/dev/null"), "/dev/null"), (("--out", missing), missing),
                             (("--logs", "/proc"), "/proc/machine.log")):
        monkeypatch.setattr("sys.argv", ["measure_gpu", *arguments])
        assert measure_gpu.main() == 1
        out, error = capsys.readouterr()
        assert out == "" and len(error.splitlines()) == 1 and error.startswith("measure_gpu: ") and named in error


def test_without_nvrtc_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvrtc, "candidates", lambda: [Path("/nowhere/libnvrtc.so.12")])
    nvrtc.load.cache_clear()
    monkeypatch.setattr("sys.argv", ["measure_gpu"])
    assert measure_gpu.main() == 1
    assert capsys.readouterr().err.startswith("measure_gpu: NVRTC is not installed: pip install 'orind[cuda]'")


def test_the_bench_says_in_one_line_that_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in bench_gpu.ONE_THREAD.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    monkeypatch.setattr("sys.argv", ["bench_gpu"])
    assert bench_gpu.main() == 1
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("bench_gpu: device cuda: PyCUDA cannot be imported (")
