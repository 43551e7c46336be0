"""What the checker says about plans: good ones sealed, every bad one named; and its answer over the wire."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from orind.daemon import check_command, checker, run_directory
from orind.daemon.checker import Checked, check, describe
from orind.daemon.plans import read_interface
from orind.daemon.regular_file import CONFIGURATION_BYTES_MAX, NotRegular, check_regular
from orind.ipc import meminfo
from orind.ipc.fd_passing import recv_with_fds
from orind.kernels.build import build_plan
from orind.kernels.plan import memfd
from orind.kernels.plan.file import PlanFile, write_plan
from orind.kernels.pre import jpeg
from orind.kernels.spec import ModelSpec
from orind.kernels.yaml_lines import LinedYaml


def write(folder: Path, plan: Path | str, more: str = "") -> Path:
    path = folder / "orind.yaml"
    path.write_text(
        f"models: {{m: {{plan: '{plan}'}}}}\ncameras: {{cam: {{model: m, deadline_ms: 100}}}}\n"
        f"sources: [{{name: in, endpoint: 'ipc:///run/orind/in'}}]\n{more}"
    )
    return path


@pytest.fixture
def plan(tmp_path: Path, identity_plan: Path) -> Path:
    return Path(shutil.copy(identity_plan, tmp_path / "p.plan"))


def problem(path: Path) -> str:
    result = check(path)
    assert result.plans == [] and len(result.problems) == 1, result.problems
    place, _, text = result.problems[0].partition(": ")
    assert re.fullmatch(re.escape(str(path)) + r"(:\d+)?", place), place
    return text


def test_a_good_plan_is_held_sealed_whatever_happens_to_its_file(tmp_path: Path, plan: Path, no_fd_leak: None) -> None:
    checked = check(write(tmp_path, "p.plan"))
    assert checked.problems == [] and checked.config is not None
    (held,) = checked.plans
    plan.write_bytes(b"")
    with PlanFile.open_fd(held.fd) as sealed:
        sealed.verify()
        assert sealed.sha256 == held.sha256 and sealed.size == held.bytes
    assert (held.name, held.path, held.spec.task) == ("m", str(plan), "tensor")
    assert held.interface.input_dtype == "uint8" and held.interface.row_width == 1
    checked.close()


def test_a_flipped_byte_is_named_with_its_tensor(tmp_path: Path, plan: Path) -> None:
    data = bytearray(plan.read_bytes())
    data[-300] ^= 1
    plan.write_bytes(data)
    said = problem(write(tmp_path, plan))
    assert said.startswith(f"models.m.plan: {plan}: ") and "damaged" in said


@pytest.mark.parametrize("keep", [0, 10, 1000, -1])
def test_a_truncated_plan(tmp_path: Path, plan: Path, keep: int, no_fd_leak: None) -> None:
    plan.write_bytes(plan.read_bytes()[:keep])
    said = problem(write(tmp_path, plan))
    assert said.startswith(f"models.m.plan: {plan}: ")


def test_a_missing_plan_and_a_folder(tmp_path: Path) -> None:
    assert problem(write(tmp_path, "none.plan")).endswith("none.plan: cannot be opened: No such file or directory")
    assert f"{tmp_path}: " in problem(write(tmp_path, tmp_path))


def test_a_plan_and_a_policy_are_named_with_their_lines(tmp_path: Path, plan: Path) -> None:
    path = write(tmp_path, "none.plan", "power: {board: agx-orin, policy: none.yaml}\n")
    lines = path.read_text().splitlines()
    at = {key: 1 + next(n for n, line in enumerate(lines) if line.startswith(key)) for key in ("models:", "power:")}
    said = check(path).problems
    assert said[0].startswith(f"{path}:{at['power:']}: power.policy: {tmp_path / 'none.yaml'}: no such file")
    assert said[1].startswith(f"{path}:{at['models:']}: models.m.plan: ")


def test_mistakes_of_both_stages_are_said_at_once(tmp_path: Path, plan: Path, no_fd_leak: None) -> None:
    path = write(tmp_path, "none.plan")
    whole = path.read_text()
    for wrong, why in (
        (whole.replace("model: m,", "model: mm,"), ":2: cameras.cam.model: no model 'mm'"),
        (whole + "healt: {}\n", ":4: healt: unknown key; did you mean 'health'?"),
    ):
        path.write_text(wrong)
        said = [text.removeprefix(str(path)) for text in check(path).problems]
        assert len(said) == 2 and said[0].startswith(why)
        assert said[1].startswith(f":1: models.m.plan: {tmp_path}/none.plan: cannot be opened")
        path.write_text(wrong.replace("none.plan", "p.plan"))
        assert len(check(path).problems) == 1, "a good plan is closed again"
    for models in ("[]", "{m: 3}", "{m: {plan: 3}}"):
        (tmp_path / "odd.yaml").write_text(f"models: {models}\n")
        assert not [text for text in check(tmp_path / "odd.yaml").problems if "cannot be opened" in text]
    for name in ('""', '"a\\0b"', '"a\\tb"', '"a\\ud800b"'):
        (tmp_path / "odd.yaml").write_text(f"models: {{m: {{plan: {name}}}}}\n")
        told = [text for text in check(tmp_path / "odd.yaml").problems if "models.m.plan" in text]
        assert len(told) == 1 and "a path without control characters" in told[0], "once, for its own reason"


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        assert problem(write(tmp_path, path)).endswith("is no regular file: a pipe or a device cannot be checked")
        assert check(path).problems == [f"{path}: is no regular file: a pipe or a device cannot be checked"]
    policy = f"power: {{board: agx-orin, policy: {tmp_path}/pipe}}\n"
    assert any("pipe: is no regular file" in text for text in check(write(tmp_path, "none", policy)).problems)
    (tmp_path / "long.yaml").write_bytes(b"#" * (CONFIGURATION_BYTES_MAX + 1))
    assert "at most 4194304 are read" in check(tmp_path / "long.yaml").problems[0]
    with pytest.raises(NotRegular, match="zero byte"):
        check_regular("a\0b")


def test_a_file_that_is_no_plan(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"MZ" * 5000)
    assert "not a plan" in problem(write(tmp_path, "x"))


def test_a_plan_of_another_version(tmp_path: Path, plan: Path, no_fd_leak: None) -> None:
    data = plan.read_bytes().replace(b"orind-plan-1", b"orind-plan-9")
    plan.write_bytes(data)
    said = problem(write(tmp_path, plan))
    assert "orind-plan-9" in said and "build it again" in said.replace("rebuild", "build it again")


def test_a_plan_without_spec_or_program(tmp_path: Path, plan: Path, no_fd_leak: None) -> None:
    import numpy as np

    with PlanFile.open_path(plan) as good:
        metadata = dict(good.metadata)
    for key in ("format", "crc32"):
        metadata.pop(key, None)
    for part in ("spec", "program"):
        less = {key: text for key, text in metadata.items() if key != part}
        write_plan(plan, {"x": np.zeros(4, np.float32)}, less)
        assert problem(write(tmp_path, plan)) == (
            f"models.m.plan: {plan}: it holds no {part}: make it with orind build"
        )
    write_plan(plan, {"x": np.zeros(4, np.float32)}, {**metadata, "spec": '{"name": 3}'})
    assert "spec.name" in problem(write(tmp_path, plan))


def test_a_plan_that_only_holds_larger_batches(tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModelSpec.for_tensor("m", (4, 8)).to_json()
    real = ModelSpec.from_json
    monkeypatch.setattr(ModelSpec, "from_json", staticmethod(lambda text: real(spec)))
    assert problem(write(tmp_path, plan)) == (
        "models.m.plan: its smallest batch is 4, batching.max_size is 1"
    )


def test_a_plan_whose_copy_does_not_fit_into_memory_is_refused_with_the_figures(
    tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch, no_fd_leak: None
) -> None:
    size = plan.stat().st_size
    for total, passing in ((1000, False), (size, True)):
        monkeypatch.setattr(meminfo, "read", lambda total=total: meminfo.Memory(total, 999))
        assert problem(write(tmp_path, plan)) == (
            f"models.m.plan: {plan}: its copy in memory takes {size} bytes, 999 are available"
        )
        assert check(write(tmp_path, plan)).passing is passing


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOSPC, errno.EIO])
def test_a_shortage_is_told_from_a_mistake_and_does_not_hide_one(
    tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch, no_fd_leak: None, number: int
) -> None:
    def short(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(memfd.os, "memfd_create", short)
    checked = check(write(tmp_path, plan))
    assert checked.passing and checked.problems[0].endswith(f"cannot be copied into memory: {os.strerror(number)}")
    wrong = check(write(tmp_path, plan, "power: {board: nowhere, policy: p.yaml}\n"))
    assert len(wrong.problems) == 2 and not wrong.passing
    assert not check(write(tmp_path, "none.plan")).passing
    assert not check(write(tmp_path, plan, "colour: red\n")).passing


def test_a_configuration_that_the_disk_does_not_give_now_is_no_mistake(
    tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, plan)
    for number, passing in ((errno.EIO, True), (errno.EACCES, False)):
        def refuse(_: Path, number: int = number) -> LinedYaml:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(LinedYaml, "read", refuse)
        checked = check(path)
        assert (checked.problems, checked.passing) == ([f"{path}: {os.strerror(number)}"], passing)


def test_versions_that_share_a_camera_take_and_give_the_same(tmp_path: Path, plan: Path, no_fd_leak: None) -> None:
    import models
    import onnx

    onnx.save(models.identity_onnx(5), str(tmp_path / "other.onnx"))
    other = build_plan(tmp_path / "other.onnx", None, [], tmp_path / "other.plan", "fp32").path
    path = tmp_path / "orind.yaml"
    for second, said in ((plan, ""), (other, "takes uint8 [5, 4096, 1], gives [1, 5, 1]")):
        path.write_text(
            f"models:\n  v1: {{plan: '{plan}'}}\n  v2: {{plan: '{second}'}}\ncameras:\n  cam:\n    deadline_ms: 100\n"
            "    model: {v1: 90, v2: 10}\nsources: [{name: in, endpoint: 'ipc:///run/orind/in'}]\n"
        )
        checked = check(path)
        expected = [
            f"{path}:7: cameras.cam.model: v2 is of task tensor, {said}, v1 is of task tensor, takes uint8 "
            "[3, 4096, 1], gives [1, 3, 1]: versions that share a camera take and give the same"
        ]
        assert checked.problems == (expected if said else [])
        checked.close()


def test_jpeg_workers_without_the_library(tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg, "available", lambda: False)
    assert problem(write(tmp_path, plan)).startswith("decode.workers: ")
    assert check(write(tmp_path, plan, "decode: {workers: 0}\n")).problems == []


def test_mistakes_of_file_and_power_are_told_together(tmp_path: Path) -> None:
    found = check(write(tmp_path, "p", "colour: red\n")).problems
    assert len(found) == 2 and "unknown key" in found[0] and "p: cannot be opened" in found[1]
    result = check(write(tmp_path, "none", "power: {board: nowhere, policy: p.yaml}\n"))
    assert len(result.problems) == 2 and "no board 'nowhere'" in result.problems[0]
    assert "none: cannot be opened" in result.problems[1]


def test_what_the_checker_says_is_enough_to_serve(tmp_path: Path, plan: Path, no_fd_leak: None) -> None:
    checked = check(write(tmp_path, plan))
    wire = json.loads(json.dumps(describe(checked)))
    (said,) = wire["plans"]
    assert ModelSpec.from_json(said["spec"]) == checked.plans[0].spec
    assert read_interface(said["interface"]) == checked.plans[0].interface
    assert wire["power"] is None and wire["config"]["models"]["m"]["plan"] == str(plan)
    checked.close()
    assert describe(Checked(problems=["x"])) == {
        "problems": ["x"], "passing": False, "config": None, "power": None, "plans": []
    }


def test_the_process_answers_once_with_plans_as_descriptors(
    tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(checker, "begin_child", lambda: None)
    monkeypatch.setattr(checker, "stand_back", lambda: None)
    monkeypatch.setattr(sys, "argv", ["checker", str(theirs.detach()), str(write(tmp_path, plan))])
    assert checker.main() == 0
    with ours:
        message = recv_with_fds(ours)
        assert message is not None and message.fields == {"op": "checked"} and len(message.fds) == 2
        blob, held = message.fds
        with os.fdopen(blob, "rb") as file:
            file.seek(0)
            assert json.loads(file.read())["plans"][0]["name"] == "m"
        with PlanFile.open_fd(held) as sealed:
            sealed.verify()
        os.close(held)
        assert recv_with_fds(ours) is None


def run_check(path: Path, as_json: bool = False) -> int:
    parser = argparse.ArgumentParser()
    check_command.add_arguments(parser)
    return check_command.run(parser.parse_args([str(path), *(["--json"] if as_json else [])]))


def test_the_command_says_what_a_good_configuration_means(
    tmp_path: Path, plan: Path, capsys: pytest.CaptureFixture[str], no_fd_leak: None
) -> None:
    policy = Path(__file__).parents[2] / "configs" / "power" / "agx-orin-30w.yaml"
    (tmp_path / "tree").mkdir()
    path = write(tmp_path, plan, f"power: {{board: agx-orin, policy: '{policy}', root: tree}}\n")
    assert run_check(path) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{path}: fit to serve\n")
    for words in (
        "model m:",
        "camera cam: model m, normal, answered within 100 ms",
        "router binds ipc:///run/orind/in",
        "changing them takes a restart",
        "detected within 150 ms when idle",
        "engines: about 2 x 21 MiB and 1 MiB for results; a reload needs that once more",
        "within 20 s",
        "agx-orin under",
    ):
        assert words in out
    assert run_check(path, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["power"]["board"]["name"] == "agx-orin"


def test_cpus_that_the_machine_does_not_have_are_refused_by_key(tmp_path: Path, plan: Path, no_fd_leak: None) -> None:
    made = check(write(tmp_path, plan, "engine: {cpus: [0, 9999]}\nrealtime: {cpus: [-1]}\n"))
    last = os.sysconf("SC_NPROCESSORS_CONF") - 1
    assert [problem.split(": ", 1)[1] for problem in made.problems] == [
        f"engine.cpus: there is no CPU 9999, this machine has 0 to {last}",
        f"realtime.cpus: there is no CPU -1, this machine has 0 to {last}",
    ]


def test_slots_that_hold_no_input_of_a_tensor_model_are_refused(tmp_path: Path, plan: Path, no_fd_leak: None) -> None:
    made = check(write(tmp_path, plan, f"slots: {{bytes: {3 * 4096 - 1}}}\n"))
    assert [problem.split(": ", 1)[1] for problem in made.problems] == [
        "slots.bytes: 12287 do not hold an input of models.m, which has 12288: no frame of it could come in"
    ]
    good = check(write(tmp_path, plan, f"slots: {{bytes: {3 * 4096}}}\n"))
    assert not good.problems
    good.close()


def test_a_run_dir_that_is_or_lies_in_a_file_is_refused(tmp_path: Path, plan: Path, no_fd_leak: None) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for place in ("p.plan", "p.plan/a/b", "dangling", "dangling/x", "loop", "loop/x"):
        assert problem(write(tmp_path, plan, f"run_dir: {place}\n")) == (
            f"run_dir: {tmp_path}/{place}: {tmp_path}/{place.split('/')[0]} is not a folder"
        )
    assert problem(write(tmp_path, plan, f"run_dir: {'a' * 300}\n")).endswith("a: File name too long")
    good = check(write(tmp_path, plan, "run_dir: not/yet/there\n"))
    assert good.problems == [] and not (tmp_path / "not").exists()
    good.close()


def test_a_run_dir_where_this_user_may_not_look_is_left_to_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    assert run_directory.problem(tmp_path / "run") is None


def test_the_command_notes_what_the_configuration_gives_up(
    tmp_path: Path, plan: Path, capsys: pytest.CaptureFixture[str], no_fd_leak: None
) -> None:
    for more in ("", "engine: {heartbeat_missed_ms: 169}\n"):
        assert run_check(write(tmp_path, plan, more)) == 0
        assert "note:" not in capsys.readouterr().out
    assert run_check(write(tmp_path, plan, "engine: {heartbeat_missed_ms: 170}\n")) == 0
    assert (
        "  note: a hung idle engine is replaced after about 200 ms; the aim is less than 200 ms (lower "
        "engine.heartbeat_missed_ms)\n"
    ) in capsys.readouterr().out


def test_what_is_no_file_is_said_to_be_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path, "cannot be read: it is a folder"),
        (tmp_path / "none", "no such file"),
        (tmp_path / "pipe", "cannot be read: it is a pipe, a socket or a device, not a file"),
    ):
        assert run_check(path) == 66
        assert capsys.readouterr().err == f"orind check: {path}: {reason}\n"


def test_the_command_lists_every_mistake_and_exits_78(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "p", "colour: red\nshape: round\n")
    assert run_check(path) == 78
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("unknown key") == 2
    assert run_check(path, as_json=True) == 78
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 3, "the plan is missing too"
