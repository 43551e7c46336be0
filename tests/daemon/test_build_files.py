"""What `orind build`, `inspect` and `verify` read and write: never an input replaced, never a pipe waited for, never a
traceback where the disk says no."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from orind.daemon import cli
from orind.kernels.plan import replacement
from orind.kernels.plan.file import PlanFile, write_plan

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of tensors (m.onnx), a spec, a picture folder."""
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3, 8, 8]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "only")], "g", info[:1], info[1:])
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    (tmp_path / "m.yaml").write_text("name: m\ntask: regress\ninput: {}\n")
    (tmp_path / "pictures").mkdir()
    Image.fromarray(np.full((8, 8, 3), 9, np.uint8)).save(tmp_path / "pictures" / "a.png")
    return tmp_path


@pytest.fixture
def soon() -> Iterator[None]:
    """What waits for ever fails."""
    signal.alarm(30)
    yield
    signal.alarm(0)


def build(folder: Path, out: Path | str, *more: str) -> int:
    return cli.main(["build", str(folder / "m.onnx"), "--spec", str(folder / "m.yaml"), "--precision", "fp32",
                     "--calibrate", str(folder / "pictures"), "-o", str(out), *more])


def test_an_input_is_never_the_output(folder: Path, capsys: Captured) -> None:
    (folder / "link").symlink_to("m.onnx")
    for name, what in (("m.onnx", "model"), ("link", "model"), ("m.yaml", "spec"),
                       ("pictures/a.png", "calibration picture")):
        before = (folder / name).read_bytes()
        assert build(folder, folder / name) == 2
        said = capsys.readouterr().err
        assert said == f"orind build: -o {folder / name}: that is the {what} itself; name another file\n"
        assert (folder / name).read_bytes() == before
    assert (folder / "link").is_symlink()


def test_a_file_of_weights_is_never_the_output(folder: Path, capsys: Captured) -> None:
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3, 8, 8]) for n in ("x", "y")]
    weight = numpy_helper.from_array(np.full((1, 3, 8, 8), 2, np.float32), "w")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"], "only")], "g", info[:1], info[1:], [weight])
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "m.onnx",
                    save_as_external_data=True, location="m.plan", size_threshold=0)
    before = (folder / "m.plan").read_bytes()
    assert build(folder, folder / "m.plan") == 2
    assert "that is the model's file of weights itself; name another" in capsys.readouterr().err
    assert (folder / "m.plan").read_bytes() == before and build(folder, folder / "n.plan") == 0


def test_an_output_that_cannot_be_written_is_said_before_the_work(
        folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    before = sorted(folder.iterdir())
    for name, why in (("pictures", "Is a directory"), ("none/x.plan", "No such file or directory"),
                      ("m.yaml/x.plan", "Not a directory"), ("x" * 256, "File name too long"),
                      ("pipe", "Is a pipe, a socket or a device"), ("loop", "Too many levels of symbolic links")):
        assert build(folder, folder / name) == 1
        said = capsys.readouterr().err
        assert said == f"orind build: -o {folder / name}: {why}; name a file that can be written\n"
    monkeypatch.chdir(folder)
    assert build(folder, "") == 1 and "-o .: Is a directory" in capsys.readouterr().err
    assert build(folder, "/dev/full") == 1 and "/dev/full: Is a pipe, a socket or a dev" in capsys.readouterr().err
    assert build(folder, "/proc/x.plan") == 1 and "/proc/x.plan: No such file" in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before


def test_links_stay_and_long_names_are_written(folder: Path) -> None:
    (folder / "link").symlink_to("real.plan")
    for _ in range(2):                                           # dangling, then not
        assert build(folder, folder / "link") == 0
        assert (folder / "link").is_symlink() and not (folder / "real.plan").is_symlink()
    name = "x" * 255
    assert build(folder, folder / name) == 0
    with PlanFile.open_path(folder / name) as plan:
        plan.verify()


def test_a_full_disk_is_a_message_and_the_old_plan_stays(
        folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    out = folder / "m.plan"
    out.write_bytes(b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(replacement.os, "fsync", full)
    before = sorted(folder.iterdir())
    assert build(folder, out) == 1
    assert f"orind build: -o {out}: No space left on device; name a file" in capsys.readouterr().err
    assert out.read_bytes() == b"old" and sorted(folder.iterdir()) == before


def test_what_a_killed_build_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    out = tmp_path / "m.plan"
    pid = os.fork()
    if not pid:
        with replacement.replacing(out) as file:
            file.write(b"half")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    left = list(tmp_path.iterdir())
    assert len(left) == 1 and left[0].name.endswith(".tmp") and left[0].read_bytes() == b"half"
    living = left[0].with_name(f"{left[0].name[:-12]}00000000.tmp")
    other = tmp_path / f".orind-{0:08x}.00000000.tmp"
    other.touch()
    with living.open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_plan(out, {"x": np.zeros(3)}, {})
        assert sorted(tmp_path.iterdir()) == sorted([other, living, out])
    write_plan(out, {"x": np.zeros(3)}, {})
    assert sorted(tmp_path.iterdir()) == sorted([other, out])


@pytest.mark.usefixtures("soon")
def test_what_is_no_file_is_not_read(folder: Path, capsys: Captured) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    device = "cannot be read: it is a pipe, a socket or a device, not a file"
    for path, why in ((folder / "pipe", device), (Path("/dev/zero"), device),
                      (folder, "cannot be read: it is a folder"),
                      (folder / "none", "no such file"),
                      (folder / "loop", "cannot be read: Too many levels of symbolic links"),
                      (folder / "m.yaml" / "x", "cannot be read: Not a directory")):
        out = str(folder / "x.plan")
        for command, arguments in (("build", [str(path), "-o", out]), ("build", [str(path), "--explain"]),
                                   ("build", [str(folder / "m.onnx"), "--spec", str(path), "-o", out]),
                                   ("inspect", [str(path)]), ("verify", [str(path)]),
                                   ("verify", [str(folder / "m.yaml"), "--onnx", str(path)])):
            assert cli.main([command, *arguments]) == 66
            assert capsys.readouterr().err == f"orind {command}: {path}: {why}\n"
    for path, why in ((folder / "pipe", "is no folder"), (folder / "none", "no such folder")):
        given = [str(folder / "m.yaml"), "--onnx", str(folder / "m.onnx"), "--images", str(path)]
        assert cli.main(["verify", *given]) == 66
        assert capsys.readouterr().err == f"orind verify: {path}: {why}\n"
    os.mkfifo(folder / "pictures" / "b.png")
    assert build(folder, folder / "x.plan") == 65
    assert "pictures/b.png: cannot be read" in capsys.readouterr().err
