"""The small commands through the command line's own entry: what they print, and their exit codes."""

from __future__ import annotations

import configparser
import errno
import json
import logging
import os
import select
import shutil
import signal
import socket
import sys
import threading
import xml.dom.minidom
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from test_http import made_status

from orind.daemon import cli, doctor, named_inputs, notify, serve, verify_command
from orind.daemon.descriptors import LimitTooLow
from orind.daemon.intake import IMAGE_ENCODINGS
from orind.daemon.nursery_client import NurseryClient
from orind.daemon.poller import Poller
from orind.daemon.run_directory import RunDirectory
from orind.daemon.signals import HANDLED, SignalInbox
from orind.daemon.status import with_latency
from orind.ipc import meminfo, picture_files
from orind.ipc.control import ControlServer, Request
from orind.ipc.lock import InstanceLock
from orind.kernels.plan.file import write_plan
from orind.kernels.plan.replacement import NotWritten
from orind.kernels.pre import jpeg
from orind.power.sysfs import Sysfs

Captured = pytest.CaptureFixture[str]


class Daemon:
    """A control socket in a thread, with an answer for each request."""

    def __init__(self, folder: Path, answer: Callable[[Request], dict[str, Any]]) -> None:
        self.asked: list[Request] = []
        self._server = ControlServer(folder / "control")
        self._answer = answer
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._server, self._stop, *self._server.clients], [], [])
            if self._stop in ready:
                return
            self._server.accept()
            for client in self._server.clients:
                request = self._server.receive(client)
                if request is not None:
                    self.asked.append(request)
                    self._server.reply(client, self._answer(request))

    def close(self) -> None:
        os.write(self._stopped, b"x")
        self._thread.join()
        self._server.close()
        os.close(self._stop)
        os.close(self._stopped)


def with_daemon(folder: Path, answer: dict[str, Any], *arguments: str) -> tuple[int, Request]:
    daemon = Daemon(folder, lambda request: answer)
    try:
        return cli.main([*arguments, "--run-dir", str(folder)]), daemon.asked[0]
    finally:
        daemon.close()


# -- talking to a daemon -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "reload", "rollback", "drain"])
def test_without_a_daemon_it_is_69_with_a_hint(tmp_path: Path, capsys: Captured, command: str) -> None:
    assert cli.main([command, "--run-dir", str(tmp_path)]) == 69
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"orind {command}: {tmp_path}/control: ")
    assert "is orind serving?" in said.err and "Traceback" not in said.err
    assert said.err.endswith("; --run-dir names the run_dir of another daemon\n")


@pytest.mark.parametrize("command", ["status", "reload", "rollback", "drain"])
def test_a_daemon_that_is_busy_is_75_with_its_words(tmp_path: Path, capsys: Captured, command: str) -> None:
    code, _ = with_daemon(tmp_path, {"ok": False, "error": "busy: 16 clients are connected, try again"}, command)
    said = capsys.readouterr()
    assert (code, said.out) == (75, "")
    assert said.err == f"orind {command}: busy: 16 clients are connected, try again\n"


@pytest.mark.parametrize(("words", "given", "said"), [
    ("budget 18 --for 10m", {"budget_w": 18.0, "for_s": 600.0}, "budget of 18 W for 600 s"),
    ("budget 18.5 --for 90s", {"budget_w": 18.5, "for_s": 90.0}, "budget of 18.5 W for 90 s"),
    ("ambient 41 --for 1.5h", {"ambient_c": 41.0, "for_s": 5400.0}, "ambient of 41 C for 5400 s"),
    ("ambient off", {"ambient_c": None}, "ambient: what was asked for has ended"),
])
def test_a_budget_and_the_ambient_temperature_are_asked_for(
    tmp_path: Path, capsys: Captured, words: str, given: dict[str, Any], said: str
) -> None:
    code, request = with_daemon(tmp_path, {"ok": True, "result": "taken"}, "power", *words.split())
    assert (code, request.op, request.given, capsys.readouterr().out) == (0, "power", given, f"{said}\n")


def test_what_is_taken_while_nobody_governs_is_said(tmp_path: Path, capsys: Captured) -> None:
    result = "taken, but the governor does not run: no GPU clock under /"
    code, _ = with_daemon(tmp_path, {"ok": True, "result": result}, "power", "budget", "18", "--for", "1m")
    said = capsys.readouterr()
    assert (code, said.out, said.err) == (0, "budget of 18 W for 60 s\n", f"orind power budget: {result}\n")


def test_a_refused_request_is_1_with_the_reason(tmp_path: Path, capsys: Captured) -> None:
    answer = {"ok": False, "result": "refused: for_s must lie in 1 to 86400"}
    for wrong, why in ((("18",), "say with --for how long"), (("off", "--for", "10m"), "off ends it now")):
        assert cli.main(["power", "budget", *wrong, "--run-dir", str(tmp_path / "none")]) == 2
        assert why in capsys.readouterr().err
    code, _ = with_daemon(tmp_path, answer, "power", "budget", "18", "--for", "1m")
    said = capsys.readouterr()
    assert (code, said.out, said.err) == (1, "", "orind power budget: refused: for_s must lie in 1 to 86400\n")
    assert cli.main(["power", "budget", "18", "--for", "1m", "--run-dir", str(tmp_path / "none")]) == 69


@pytest.mark.parametrize(("words", "why"), [
    ("budget 18 --for 10", "'10' is no length of time: such as 90s, 10m, 8h"),
    ("budget 18 --for soon", "'soon' is no length of time"),
    ("budget much --for 10m", "'much' is no number, nor off"),
])
def test_a_number_and_a_length_of_time_are_wanted(words: str, why: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["power", *words.split()])
    assert ended.value.code == 2 and why in capsys.readouterr().err


def test_a_log_line_stays_one_line_and_bounded() -> None:
    text = "a\nINFO serving\x1b[2J" + "b" * 9000
    record = logging.LogRecord("orind", logging.ERROR, "", 0, "engine 3: %s", (text,), None)
    line = serve.LineFormatter("%(levelname)s %(message)s").format(record)
    assert line.startswith("ERROR engine 3: a INFO serving [2Jb") and len(line) == 2006 and line.isprintable()


def test_status_for_a_person(tmp_path: Path, capsys: Captured) -> None:
    status = with_latency(made_status(reasons=("no ready standby",)))
    code, request = with_daemon(tmp_path, status, "status")
    assert code == 0 and request.op == "status"
    out = capsys.readouterr().out
    assert out.startswith(
        "serving, generation 3, failovers: 2, engines renewed: 1\n  ! no ready standby\nreload   generation 3 serves\n"
        "http     http://127.0.0.1:8787\nframes   received 10  ok 7"
    )
    assert "active   active    pid 7 on <cpu> (epoch 1)" in out and "latency  total" in out
    assert (
        "model    m: 4 of 5 steps run on the CPU (3 MaxPool, 1 Unary), 1 GPU segment\n"
        "         on the CPU: MaxPool: <a>, b, and 1 more\n         on the CPU: Unary: c\n" in out
    )
    assert "model    m: ok 6  error 1\n" in out and "model    n: no frames yet\n" in out
    assert "power    21.5 of 30.0 W, junction unreadable C, GPU 600 of at most 612 MHz\nboard    Orin <x>" in out
    assert out.endswith(
        "energy   0.083 Wh in 10 s: idle 67%, inference 33%, other 0%; unknown for 4 s\n"
        "         12 frames ran while power was unknown and are in no figure\n"
        "         m: 3.3333 J a frame above idle, 30 frames (<front> 3.3333, back 3.3333)\n"
    )


def test_status_draws_the_memory_of_the_engines(tmp_path: Path, capsys: Captured) -> None:
    status, picture = with_latency(made_status()), tmp_path / "map.svg"
    assert with_daemon(tmp_path, status, "status", "--memory-map", str(picture))[0] == 0
    drawn = xml.dom.minidom.parse(str(picture))
    assert drawn.documentElement.tagName == "svg" and "emergency reserve, 8.0 MiB" in picture.read_text()
    assert "         memory 3.0 MiB of 64.0 MiB used in 3 blocks, 53.0 MiB free" in (out := capsys.readouterr().out)
    assert "process  main (pid 5): 30.0 MiB private, 40 descriptors, 3 threads; grows: threads\n" in out
    assert cli.main(["status", "--memory-map", str(tmp_path / "none" / "map.svg")]) == 1
    assert capsys.readouterr().err.startswith(f"status --memory-map {tmp_path}/none/map.svg: No such file or directory")


def test_a_map_that_cannot_be_written_after_all(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise NotWritten(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("orind.daemon.status_command.replacing", refuse)
    assert with_daemon(tmp_path, with_latency(made_status()), "status", "--memory-map", str(tmp_path / "m.svg"))[0] == 1
    assert "status --memory-map" in (said := capsys.readouterr().err) and "No space left on device" in said


def test_status_as_json_and_unfit_to_serve(tmp_path: Path, capsys: Captured) -> None:
    status = with_latency(made_status(ok=False))
    assert with_daemon(tmp_path, status, "status", "--json")[0] == 1
    assert json.loads(capsys.readouterr().out) == status
    assert with_daemon(tmp_path, {**status, "power": {"budget_w": None}}, "status")[0] == 1
    assert "power  " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "wait", "code", "out", "err"),
    [
        ({"ok": True, "result": "reload requested"}, False, 0, "reload requested\n", ""),
        ({"ok": True, "result": "generation 2 serves", "problems": [], "notes": ["slots need a restart"]}, True, 0,
         "generation 2 serves\n", "note: slots need a restart\n"),
        ({"ok": False, "result": "refused", "problems": ["a.yaml:3: x", "a.yaml:4: y"], "notes": []}, True, 1,
         "refused\n", "a.yaml:3: x\na.yaml:4: y\n"),
    ],
)
def test_reload(
    tmp_path: Path, capsys: Captured, answer: dict[str, Any], wait: bool, code: int, out: str, err: str
) -> None:
    for op in ("reload", "rollback"):
        got, request = with_daemon(tmp_path, answer, op, *(["--wait"] if wait else []))
        assert (got, request.op, request.wait) == (code, op, wait)
        assert tuple(capsys.readouterr()) == (out, err)


def test_drain(tmp_path: Path, capsys: Captured) -> None:
    code, request = with_daemon(tmp_path, {"ok": True, "result": "draining"}, "drain")
    assert (code, request.op, capsys.readouterr().out) == (0, "drain", "draining\n")


def test_power_restore(tmp_path: Path, capsys: Captured) -> None:
    assert cli.main(["power", "restore", "--run-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "nothing to restore\n"


# -- the command line ----------------------------------------------------------------------------------------------


def test_every_command_has_help_with_an_example(capsys: Captured) -> None:
    for command in cli.COMMANDS:
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0 and "example" in capsys.readouterr().out, command
    for action in ("restore", "modes", "mode", "fan", "budget", "ambient"):
        with pytest.raises(SystemExit) as ended:
            cli.main(["power", action, "--help"])
        assert ended.value.code == 0 and f"orind power {action}" in capsys.readouterr().out.split("example")[1], action


def test_no_command_is_wrong_usage_and_shows_the_exit_codes(capsys: Captured) -> None:
    assert cli.main([]) == 2
    assert "exit codes:" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(["explode"])
    assert ended.value.code == 2 and "invalid choice" in capsys.readouterr().err


def test_an_interrupt_and_a_reader_that_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def interrupted(options: Any) -> int:
        raise KeyboardInterrupt

    def nobody_reads(options: Any) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(doctor, "run", interrupted)
    assert cli.main(["doctor"]) == 130
    assert tuple(capsys.readouterr()) == ("", "orind doctor: ended by Ctrl-C\n")
    with monkeypatch.context() as importing:
        importing.setattr(cli.importlib, "import_module", interrupted)
        assert cli.main(["build"]) == 130, "while its modules are imported"
    monkeypatch.setattr(doctor, "run", nobody_reads)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, (tmp_path / name).open("w"))
    assert cli.main(["doctor"]) == 0 and sys.stdout.closed and sys.stderr.closed


# -- doctor --------------------------------------------------------------------------------------------------------


def test_doctor_says_what_is_there(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "INVOCATION_ID"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["doctor", "--json"]) == 0
    found = {f["name"]: f for f in json.loads(capsys.readouterr().out)}
    assert found["libraries"]["level"] == "ok" and "pyzmq" in found["libraries"]["text"]
    assert set(found) == {"python", "libraries", "jpeg", "systemd", "cuda", "board", "memory", "limits"}
    assert "NVRTC 12.6" in found["cuda"]["text"]
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out.count("\n") == len(found)


def test_doctor_fails_for_what_serve_cannot_do_without(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def none(name: str) -> str:
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", none)
    monkeypatch.setenv("INVOCATION_ID", "x")
    monkeypatch.setattr(jpeg, "available", lambda: False)
    assert cli.main(["doctor"]) == 69
    out = capsys.readouterr().out
    assert "error    libraries  missing: numpy" in out and "error    systemd" in out and "warning  jpeg" in out
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "1")
    assert doctor._notify().level == "ok"
    assert doctor._cuda().text.endswith("PyCUDA 1")
    monkeypatch.setattr(doctor.nvrtc, "candidates", list)
    doctor.nvrtc.load.cache_clear()
    assert doctor._cuda().text.startswith("no NVRTC") and doctor._cuda().level == "ok"
    monkeypatch.undo()
    doctor.nvrtc.load.cache_clear()


def test_doctor_refuses_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9))
    assert doctor._python().level == "error"


@pytest.mark.parametrize(
    ("release", "level", "text"),
    [
        ("# R36 (release), REVISION: 4.3, GCID: 38968081", "ok", "L4T 36.4.3"),
        ("# R35 (release), REVISION: 5.0, GCID: 35550185", "warning", "has not been tested"),
        ("# R36", "ok", "not a Jetson"),
        (None, "ok", "not a Jetson"),
    ],
)
def test_doctor_knows_the_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None, level: str, text: str
) -> None:
    (tmp_path / "etc").mkdir()
    if release is not None:
        (tmp_path / "etc" / "nv_tegra_release").write_text(release + "\n")
    monkeypatch.setattr(doctor, "Sysfs", lambda _: Sysfs(tmp_path))
    found = doctor._board()
    assert found.level == level and text in found.text, found


# -- build, inspect, verify ----------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(models.identity_onnx(2), str(tmp_path / "identity.onnx"))
    return tmp_path / "identity.onnx"


def test_a_plan_is_built_inspected_and_verified(tmp_path: Path, model: Path, capsys: Captured) -> None:
    plan = tmp_path / "identity.plan"
    assert cli.main(["build", str(model), "-o", str(plan), "--precision", "fp32"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{plan}  sha256 ") and " s] read identity.onnx" in said.err
    sha256 = said.out.split()[-1]
    assert cli.main(["inspect", str(plan), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["sha256"] == sha256 and table["input"] == {"dtype": "uint8", "shape": [2, 4096, 1]}
    assert cli.main(["inspect", str(plan)]) == 0
    assert f"{plan}: identity, tensor, fp32" in capsys.readouterr().out
    assert cli.main(["verify", str(plan), "--onnx", str(model)]) == 0
    assert "FAILED" not in capsys.readouterr().out
    assert cli.main(["verify", str(plan), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert cli.main(["verify", str(plan), "--images", str(tmp_path)]) == 2
    assert "--images needs --onnx MODEL" in capsys.readouterr().err
    pictures = ["--images", str(tmp_path / "pictures")]
    assert cli.main(["verify", str(plan), "--onnx", str(model), *pictures]) == 66
    assert "pictures: no such folder" in capsys.readouterr().err
    (tmp_path / "pictures").mkdir()
    assert cli.main(["verify", str(plan), "--onnx", str(model), *pictures]) == 65
    assert "pictures: holds no pictures" in capsys.readouterr().err
    np.save(tmp_path / "pictures" / "a.npy", np.ones((2, 4096, 1), np.uint8))
    assert cli.main(["verify", str(plan), "--onnx", str(model), *pictures]) == 0
    assert "accuracy, 1 images" in capsys.readouterr().out


def test_build_refuses_what_cannot_be_built(tmp_path: Path, model: Path, capsys: Captured) -> None:
    out = ["-o", str(tmp_path / "x.plan")]
    assert cli.main(["build", str(tmp_path / "none.onnx"), *out]) == 66
    assert "no such file" in capsys.readouterr().err
    assert cli.main(["build", str(model), *out]) == 65
    assert "INT8 needs a spec" in capsys.readouterr().err
    (tmp_path / "spec.yaml").write_text("name: x\ntsk: tensor\n")
    assert cli.main(["build", str(model), "--spec", str(tmp_path / "spec.yaml"), *out]) == 65
    assert "spec.yaml:2: tsk: unknown key" in capsys.readouterr().err
    truncated = tmp_path / "cut.onnx"
    truncated.write_bytes(model.read_bytes()[:50])
    assert cli.main(["build", str(truncated), *out, "--precision", "fp32"]) == 65
    assert "cut.onnx" in capsys.readouterr().err and not (tmp_path / "x.plan").exists()


def test_build_without_its_extra_says_what_to_install(
    tmp_path: Path, model: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.startswith(("orind.kernels.build", "orind.kernels.importer")):
            monkeypatch.delitem(sys.modules, name)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnx", None)
        assert cli.main(["build", str(model), "-o", str(tmp_path / "x")]) == 69
    assert "onnx is missing; install orind[build]" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "orind.kernels.build", None)
    with pytest.raises(ImportError, match=r"orind\.kernels\.build"):
        cli.main(["build", str(model), "-o", str(tmp_path / "x")])


@pytest.mark.parametrize(("library", "extra"), [("onnxruntime", "test"), ("onnx", "build")])
def test_verify_names_the_extra_that_brings_what_is_missing(
    model: Path, identity_plan: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, library: str, extra: str
) -> None:
    def missing(*given: Any) -> None:
        raise ImportError(library, name=library)

    monkeypatch.setattr(verify_command, "verify", missing)
    words = ["verify", str(identity_plan), "--onnx", str(model), "--reference", "onnxruntime"]
    assert cli.main(words) == 69
    assert capsys.readouterr().err == f"orind verify: {library} is missing; install orind[{extra}]\n"
    brings = configparser.ConfigParser()
    brings.read(Path(__file__).parents[2] / "setup.cfg")
    assert f"\n{library}>=" in brings["options.extras_require"][extra]


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_what_is_no_plan_is_65_and_what_is_not_there_66(
    tmp_path: Path, capsys: Captured, command: str, identity_plan: Path
) -> None:
    assert cli.main([command, str(tmp_path / "none.plan")]) == 66
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "x").write_bytes(b"MZ" * 3000)
    assert cli.main([command, str(tmp_path / "x")]) == 65
    broken = Path(shutil.copy(identity_plan, tmp_path / "broken.plan"))
    data = bytearray(broken.read_bytes())
    data[-300] ^= 1
    broken.write_bytes(data)
    assert cli.main([command, str(broken)]) in (1, 65)
    said = capsys.readouterr()
    assert "Traceback" not in said.err and "damaged" in said.err + said.out


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_container_that_is_no_model_is_65(tmp_path: Path, capsys: Captured, command: str) -> None:
    path = tmp_path / "x.plan"
    write_plan(path, {"x": np.zeros(4, np.float32)}, {})
    assert cli.main([command, str(path)]) == 65
    assert "make it with orind build" in capsys.readouterr().err
    write_plan(path, {"x": np.zeros(4, np.float32)}, {"spec": "{}", "program": "x"})
    assert cli.main([command, str(path)]) == (65 if command == "inspect" else 1)  # to verify, it is a failed check
    said = capsys.readouterr()
    assert "cannot be read" in said.out or said.err.startswith(f"orind {command}: ")


# -- serve ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def signals_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in HANDLED}
    yield
    SignalInbox.install_early().close()
    for number, handler in before.items():
        signal.signal(number, handler)


def serving(folder: Path, plan: Path | str, run_dir: Path | str = "run") -> Path:
    path = folder / "orind.yaml"
    path.write_text(
        f"run_dir: '{run_dir}'\nmodels: {{m: {{plan: '{plan}'}}}}\ncameras: {{cam: {{model: m, deadline_ms: 100}}}}\n"
        f"sources: [{{name: in, endpoint: 'ipc://{folder}/in'}}]\ndecode: {{workers: 0}}\n"
    )
    return path


def test_serve_of_a_folder_says_so(tmp_path: Path, capsys: Captured, signals_restored: None) -> None:
    assert cli.main(["serve", str(tmp_path)]) == 66
    assert capsys.readouterr().err == f"orind serve: {tmp_path}: cannot be read: it is a folder\n"


def test_serve_refuses_a_bad_configuration_with_every_mistake(
    tmp_path: Path, capsys: Captured, signals_restored: None
) -> None:
    path = serving(tmp_path, "none.plan")
    path.write_text(path.read_text() + "colour: red\nshape: round\n")
    assert cli.main(["serve", str(path)]) == 78
    assert capsys.readouterr().err.count("unknown key") == 2


def test_a_second_instance_is_busy(
    tmp_path: Path,
    identity_plan: Path,
    capsys: Captured,
    signals_restored: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "run").mkdir()
    path = serving(tmp_path, identity_plan)
    path.write_text(path.read_text() + "engine: {heartbeat_missed_ms: 60000}\n")
    caplog.set_level(logging.INFO, "orind")
    with InstanceLock(tmp_path / "run" / "lock"):
        assert cli.main(["serve", str(path)]) == 75
    assert f"another orind (pid {os.getpid()}) holds" in capsys.readouterr().err
    assert [record.getMessage() for record in caplog.records] == [
        f"orind starts: pid {os.getpid()}, checks {path}",
        f"the configuration is good: run_dir {tmp_path}/run; engines on cpu start",
        "note: engine.heartbeat_missed_ms: 60000 and up to 30 ms for a take-over do not stay below the 200 ms within "
        "which a standby is to serve after an idle engine hangs",
    ]
    assert (tmp_path / "run" / "lock").exists(), "it was there before"


def test_a_refused_start_leaves_no_run_directory_behind(
    tmp_path: Path, identity_plan: Path, capsys: Captured, signals_restored: None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = serving(tmp_path, identity_plan, "new/run")
        port = taken.getsockname()[1]
        path.write_text(path.read_text().replace(
            "sources: [", f"sources: [{{name: a, endpoint: 'ipc://{{run_dir}}/a'}}, "
            f"{{name: b, endpoint: 'tcp://127.0.0.1:{port}'}}, "))
        before = sorted(tmp_path.iterdir())
        assert cli.main(["serve", str(path)]) == 75
        assert f"tcp://127.0.0.1:{port}" in capsys.readouterr().err
        assert sorted(tmp_path.iterdir()) == before
        (tmp_path / "new").mkdir()
        assert cli.main(["serve", str(path)]) == 75
        assert list((tmp_path / "new").iterdir()) == [], "what was there stays"


def test_a_folder_that_somebody_else_uses_meanwhile_stays(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run"):
        held = InstanceLock(tmp_path / "run" / "theirs.lock")
    held.close()
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["theirs.lock"]


def test_a_run_directory_that_cannot_be_made(
    tmp_path: Path, identity_plan: Path, capsys: Captured, signals_restored: None
) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["serve", str(serving(tmp_path, identity_plan, tmp_path / "file" / "run"))]) == 1
    assert f"orind serve: {tmp_path}/file/run: Not a directory" in capsys.readouterr().err


def test_serve_without_what_systemd_needs(
    tmp_path: Path, capsys: Captured, signals_restored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise notify.NotifyError("the Python module 'systemd' is missing")

    monkeypatch.setattr(serve, "connect", refuse)
    path = tmp_path / "x.yaml"
    path.write_text("models: {}")
    assert cli.main(["serve", str(path)]) == 69
    assert "orind serve: the Python module 'systemd' is missing" in capsys.readouterr().err


class CheckStandIn:
    """A checker that hangs, or was killed."""

    closed = 0

    def __init__(self, *_: object) -> None:
        self.answer: dict[str, Any] | None = None

    def tick(self, now_ns: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        type(self).closed += 1


class KilledCheck(CheckStandIn):
    def __init__(self, *_: object) -> None:
        self.answer = {"problems": ["the checker process ended without an answer"], "passing": True}


def test_a_stop_during_the_first_check_is_heard(
    tmp_path: Path, signals_restored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "ConfigCheck", CheckStandIn)
    assert cli.main(["serve", str(serving(tmp_path, "p.plan"))]) == 0
    assert CheckStandIn.closed == 1


class SlowCheck(CheckStandIn):
    """Answers when a reload has been asked for."""

    def tick(self, now_ns: int) -> None:
        os.kill(os.getpid(), signal.SIGUSR2)
        self.answer = {"problems": []}


def test_a_reload_that_is_asked_for_during_the_first_check_is_kept(
    signals_restored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "ConfigCheck", SlowCheck)
    signals, poller, nursery = SignalInbox.install_early(), Poller(), NurseryClient()
    try:
        assert serve._check(Path("x.yaml"), nursery, poller, signals) is not None
        assert signals.take() == [signal.SIGUSR2]
    finally:
        nursery.close()
        signals.close()


def test_a_checker_that_was_killed_is_no_bad_configuration(
    tmp_path: Path, capsys: Captured, signals_restored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """78 would keep systemd from starting it again."""
    monkeypatch.setattr(serve, "ConfigCheck", KilledCheck)
    assert cli.main(["serve", str(serving(tmp_path, "p.plan"))]) == 1
    assert "the checker process ended without an answer" in capsys.readouterr().err


def test_memory_that_others_have_now_is_no_bad_configuration(
    tmp_path: Path, capsys: Captured, signals_restored: None
) -> None:
    """The nursery and the checker are real, and a file that would fit if nothing else ran."""
    now = meminfo.read()
    with (tmp_path / "p.plan").open("wb") as file:
        file.truncate((meminfo.room() + now.total) // 2)
    assert cli.main(["serve", str(serving(tmp_path, "p.plan"))]) == 1
    assert "p.plan: its copy in memory takes" in capsys.readouterr().err
    with (tmp_path / "p.plan").open("wb") as file:
        file.truncate(2 * now.total)
    assert cli.main(["serve", str(serving(tmp_path, "p.plan"))]) == 78, "it will never fit"


def test_a_nursery_that_cannot_be_started_now_is_tried_again_and_a_limit_that_is_too_low_is_not(
    tmp_path: Path, capsys: Captured, signals_restored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    path = serving(tmp_path, "p.plan")
    with monkeypatch.context() as patched:
        patched.setattr(serve.NurseryClient, "__init__", short)
        assert cli.main(["serve", str(path)]) == 1
    assert "orind serve: the nursery cannot be started: Resource temporarily unavailable" in capsys.readouterr().err
    for error, code in (
        (LimitTooLow(errno.EMFILE, "the limit of open files is 3"), 69),
        (OSError(errno.EMFILE, "Too many open files"), 1),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 1),
        (OSError(errno.EADDRINUSE, "Address already in use"), 75),
    ):
        monkeypatch.setattr(serve, "_check", raising(error))
        assert cli.main(["serve", str(path)]) == code
        assert capsys.readouterr().err.endswith(f"orind serve: {error.strerror}\n")


def raising(error: Exception) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


def test_a_file_that_cannot_be_opened_for_want_of_descriptors_is_not_missing(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = serving(tmp_path, "p.plan")
    for number, code in ((errno.ENFILE, 1), (errno.EIO, 1), (errno.EACCES, 66)):
        with monkeypatch.context() as patched:
            patched.setattr(named_inputs.os, "open", raising(OSError(number, os.strerror(number))))
            ended = cli.main(["serve", str(path)])
        assert ended == code
        assert capsys.readouterr().err == f"orind serve: {path}: cannot be read: {os.strerror(number)}\n"


def test_products_take_one_thread_unless_the_caller_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert cli.main([]) == 2
    assert (os.environ["OPENBLAS_NUM_THREADS"], os.environ["OMP_NUM_THREADS"]) == ("1", "3")


def test_publish_offers_what_a_daemon_takes() -> None:
    assert set(picture_files.ENCODINGS) == {*IMAGE_ENCODINGS, "tensor"}
