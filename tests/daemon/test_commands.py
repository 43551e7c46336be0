"""The small commands through the command line's own entry: what they print, and their exit codes."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import select
import sys
import threading
import xml.dom.minidom
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from test_http import made_status

from orind.daemon import cli, doctor, log_line, version
from orind.daemon.intake import IMAGE_ENCODINGS
from orind.daemon.status import with_latency
from orind.ipc import picture_files
from orind.ipc.control import ControlServer, Request
from orind.kernels.plan.replacement import NotWritten

Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize(
    ("arguments", "command"), [(["status", "--raet"], "orind status"), (["--raet"], "orind")]
)
def test_an_unknown_option_is_answered_with_the_commands_own_usage(
    capsys: Captured, arguments: list[str], command: str
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    usage, _, error = capsys.readouterr().err.rpartition("\n" + command)
    assert end.value.code == 2 and usage.startswith(f"usage: {command} [-h]")
    assert error.startswith(": error: unrecognized arguments: --raet")


def test_the_version_is_that_of_the_installation(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["--version"]) == 0
    wanted = re.findall(r"^version = (.+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)[0]
    assert capsys.readouterr().out == f"orind {wanted}\n"

    def nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    assert cli.main(["--version"]) == 0 and capsys.readouterr().out == "orind unknown\n"


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
    ("ambient off", {"ambient_c": None}, "ambient: none is given any more"),
    ("budget off", {"budget_w": None}, "budget: the policy's holds"),
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
    line = log_line.LineFormatter(log_line.FORMAT).format(record)
    assert line.startswith("ERROR engine 3: a INFO serving [2Jb") and len(line) == 2006 and line.isprintable()


@pytest.mark.parametrize(("told", "theirs"), [({}, "older"), ({"version": "9.9"}, "9.9")])
def test_a_daemon_of_another_version_is_told_to_be_restarted(
    tmp_path: Path, capsys: Captured, told: dict[str, str], theirs: str
) -> None:
    status = {**with_latency(made_status()), **told}
    if not told:
        del status["version"], status["cameras"]
    assert with_daemon(tmp_path, status, "status")[0] == 1
    assert f"the daemon that runs is orind {theirs}, this is " in capsys.readouterr().err
    assert with_daemon(tmp_path, status, "status", "--json")[0] == 0


def test_status_for_a_person(tmp_path: Path, capsys: Captured) -> None:
    status = with_latency(made_status(reasons=("no ready standby",)))
    code, request = with_daemon(tmp_path, status, "status")
    assert code == 0 and request.op == "status"
    out = capsys.readouterr().out
    assert out.startswith(
        "serving, generation 3, failovers: 2, engines renewed: 1\n  ! no ready standby\n"
        "lost     3 engines: its process ended, by a signal or by itself\n"
        "failover 5 h ago, 1 frame in flight: signal <11>\n"
        f"config   /etc/<orind>.yaml (orind {version.installed()})\n"
        "reload   generation 3 serves\nhttp     http://127.0.0.1:8787\nframes   received 10  ok 7"
    )
    assert "\nengine   active: pid 7 on <cpu>: <Orin> (epoch 1)\n" in out and "latency  total" in out
    assert "\nengine   standby, starting: pid 8 on cpu (epoch 2)\n" in out
    assert "\nprocess  engine (pid 8): not looked at yet\ndevice   <cpu>: 5120.0 MiB free\n" in out
    assert (
        "model    m: 4 of 5 steps run on the CPU (3 MaxPool, 1 Unary), 1 GPU segment\n"
        "         on the CPU: MaxPool: <a>, b, and 1 more\n         on the CPU: Unary: c\n" in out
    )
    assert (
        "camera   <silent>: no frame yet\n"
        "camera   cam: ok 7  rejected 1  last frame 3 h ago; last not ok 2 h ago: rejected: <2> parts\n" in out
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
    size = picture.stat().st_size
    assert out.endswith(f"\n{picture}  {size} bytes\n")
    assert with_daemon(tmp_path, status, "status", "--json", "--memory-map", str(picture))[0] == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == status and said.err == f"{picture}  {picture.stat().st_size} bytes\n"
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
        usage, what, *_, example = capsys.readouterr().out.split("\n\n")
        assert ended.value.code == 0 and usage.startswith(f"usage: orind power {action}")
        assert not what.startswith(("options", "positional")), f"{action} says what it does"
        assert f"orind power {action}" in example and "\nexit code 0: " in example, action


def test_every_option_says_what_it_does() -> None:
    for command in cli.COMMANDS:
        _, parser, _ = cli._parser([command])
        assert parser is not None
        assert [a.option_strings for a in parser._actions if a.option_strings and not a.help] == [], command


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


def test_products_take_one_thread_unless_the_caller_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert cli.main([]) == 2
    assert (os.environ["OPENBLAS_NUM_THREADS"], os.environ["OMP_NUM_THREADS"]) == ("1", "3")


def test_publish_offers_what_a_daemon_takes() -> None:
    assert set(picture_files.ENCODINGS) == {*IMAGE_ENCODINGS, "tensor"}
