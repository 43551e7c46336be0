"""The sensors that come from jtop's reader: a process that dies, hangs, says nonsense or is not there is lost sensors.

The readers here are programs that speak the real protocol; the real one over the real service: tests/jtop.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stand_ins import MS
from steward_link import SECTION, run_steward

from orind.daemon import jtop_source
from orind.daemon.jtop_source import LINE_BYTES_MAX, SILENT_NS, JtopSource
from orind.ipc.stats_page import StatsWriter
from orind.power.actuators import Caps
from orind.power.board import BoardFacts
from orind.power.limits import Limits
from orind.power.plant.board import PlantBoard
from orind.power.plant.model import PlantModel
from orind.power.readers import jtop_reader

S = 1_000_000_000
BOARD = Path(__file__).parents[2] / "configs" / "boards" / "orin-nx.yaml"
SAMPLE = {
    "began_ns": 100 * S, "interval_s": 0.25, "gpu_hz": 918_000_000, "gpu_permille": 500, "cpu_khz": 1_984_000,
    "fan_permille": 400, "rails": {"VDD_IN": [5_000, 2_400], "VDD_CPU_GPU_CV": [5_000, 1_200], "VDD_SOC": [5_000, 400]},
    "zones": dict.fromkeys(("tj", "cpu", "gpu", "soc0", "soc1", "soc2"), 50_000),
}
WAIT = "sys.stdin.read()"


class Reader:
    """A source whose reader does what `body` says, with `SAMPLE` and a clock of ours, which begins at 100 s."""

    def __init__(self, folder: Path) -> None:
        self.now = 100 * S
        self.folder = folder
        self.source: JtopSource | None = None

    def start(self, body: str) -> JtopSource:
        program = self.folder / "python"
        program.write_text(f"#!{sys.executable} -IS\nimport os, sys, time\nSAMPLE = {json.dumps(SAMPLE)!r}\n{body}\n")
        program.chmod(0o755)
        facts = BoardFacts.from_dict(yaml.safe_load(BOARD.read_text()))
        self.source = JtopSource(str(program), facts, lambda: self.now)
        return self.source

    def until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.fixture
def reader(tmp_path: Path, no_fd_leak: None) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    if made.source is not None:
        made.source.close()
        made.source.close()


def test_samples_become_readings_and_an_old_one_is_none(reader: Reader) -> None:
    source = reader.start(f"print(SAMPLE, flush=True)\n{WAIT}")
    source.wait_for_first()
    seen = source.read()
    assert (seen.board_mw, seen.tj_mc, seen.faults) == (12_000, 50_000, ())
    reader.now += S
    assert source.read().faults == ("jtop: the last sample is older than 550 ms",)


def test_a_reader_that_ends_is_lost_sensors_and_is_started_anew(reader: Reader) -> None:
    began = reader.folder / "began"
    body = f"BEGAN = {str(began)!r}\nopen(BEGAN, 'a').write('x')\nprint(SAMPLE, flush=True)"
    source = reader.start(f"{body}\nif os.path.getsize(BEGAN) < 3: os._exit(3)\n{WAIT}")
    reader.until(lambda: source.read() is not None and source._reader is None and source._killed is None)
    reader.now += S
    # the second, at once after a second; its failure waits no longer than that of the first, since it had served
    assert "jtop: the reader has ended" in source.read().faults[-1]
    reader.until(lambda: source.read() is not None and source._reader is None and source._killed is None)
    reader.now += S
    reader.until(lambda: source.read() is not None and began.read_text() == "xxx")
    assert source._reader is not None and source._reader.poll() is None


def test_its_last_words_are_the_reason(reader: Reader) -> None:
    source = reader.start("""print('{"error": "The jtop.service is not active"}', flush=True); sys.exit(1)""")
    source.wait_for_first()
    assert source.read().faults == ("jtop: no sample", "jtop: The jtop.service is not active")


@pytest.mark.parametrize(("body", "reason"), [
    ("print('hot', flush=True)", "jtop: no sample of jtop: b'hot'"),
    (f"sys.stdout.write('x' * {LINE_BYTES_MAX + 1}); sys.stdout.flush()",
     f"jtop: a line of more than {LINE_BYTES_MAX} bytes is no sample"),
])
def test_nonsense_ends_it(reader: Reader, body: str, reason: str) -> None:
    source = reader.start(f"{body}\n{WAIT}")
    reader.until(lambda: source.read().faults[-1] != "jtop: no sample")
    assert source.read().faults == ("jtop: no sample", reason) and source._reader is None


def test_a_silent_one_is_replaced(reader: Reader) -> None:
    source = reader.start(WAIT)
    process = source._reader
    assert process is not None and source.read().board_mw is None
    reader.now += SILENT_NS + 1
    assert source.read().faults[-1] == "jtop: the reader has been silent for 5 s and is replaced"
    process.wait(30)
    reader.now += S
    source.read()
    assert source._reader is not None and source._reader is not process


def test_a_reader_that_the_kernel_holds_is_not_waited_for_and_has_no_second_beside_it(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = reader.start(WAIT)
    process = source._reader
    assert process is not None
    with monkeypatch.context() as held:
        held.setattr(process, "wait", lambda timeout=None: pytest.fail("a tick waits"))
        held.setattr(process, "poll", lambda: None)
        for _ in range(3):
            reader.now += SILENT_NS + 1
            assert source.read().faults[-1] == "jtop: the reader has been silent for 5 s and is replaced"
            assert source._reader is None
    process.wait(30)
    source.read()
    assert source._reader is not None and source._reader is not process


def test_an_interpreter_that_is_not_there(reader: Reader) -> None:
    source = reader.start(WAIT)
    source.close()
    (reader.folder / "python").unlink()
    reader.now += 10 * S
    source.wait_for_first()
    assert source.read().faults[-1].endswith("/python cannot be run: No such file or directory")


def test_the_wait_for_the_first_sample_has_a_bound(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jtop_source, "FIRST_SAMPLE_S", 0.2)
    source = reader.start(WAIT)
    source._clock = time.monotonic_ns
    source.wait_for_first()
    assert source._sample is None and source._reader is not None


def test_it_ends_with_its_standard_input(reader: Reader) -> None:
    """The real program, with an interpreter that has no jetson-stats: its last words; and its thread at the end."""
    source = reader.start(f"os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])")
    source.wait_for_first()
    assert "has no jetson-stats: No module named 'jtop'" in source.read().faults[-1]
    with pytest.raises(SystemExit), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jtop_reader.os, "read", lambda fd, size: b"")
        patch.setattr(jtop_reader.os, "_exit", sys.exit)
        jtop_reader._end_with_standard_input()


class _Jtop:
    """What the reader uses of jtop's client, over values of a board."""

    interval = 0.25

    def __init__(self, **changed: Any) -> None:
        import datetime

        self.uptime = datetime.timedelta(seconds=float(Path("/proc/uptime").read_text().split()[0]) - 0.5)
        rail = {"volt": 5_000, "curr": 1_000, "power": 5_000}
        self.power = {"rail": {"VDD_SOC": rail}, "tot": {"name": "VDD_IN", **rail}}
        self.gpu = {"gpu": {"freq": {"cur": 816_000}, "status": {"load": 51.2}}}
        self.cpu = {"cpu": [{"online": True, "freq": {"cur": 1_200_000}}, {"online": False}]}
        self.fan = {"pwmfan": {"speed": [44.7]}}
        self.temperature = {"tj": {"temp": 51.968}, "cv0": {"temp": -256}}
        self.__dict__ |= changed


def test_a_sample_of_the_reader() -> None:
    before = time.monotonic_ns()
    said = jtop_reader._sample(_Jtop())
    assert 0.4 * S < before - said.pop("began_ns") < 0.6 * S + (time.monotonic_ns() - before)
    assert said == {
        "interval_s": 0.25, "rails": {"VDD_SOC": [5_000, 1_000], "VDD_IN": [5_000, 1_000]},
        "zones": {"tj": 51_968, "cv0": None}, "gpu_hz": 816_000_000, "gpu_permille": 512, "cpu_khz": 1_200_000,
        "fan_permille": 447,
    }
    bare = jtop_reader._sample(_Jtop(gpu={}, fan={}, power={"rail": {}, "tot": {"power": 0}}, cpu={"cpu": []}))
    assert bare["rails"] == {} and [bare[name] for name in ("gpu_hz", "cpu_khz", "fan_permille")] == [None] * 3


def test_the_steward_governs_by_what_jtop_says_and_takes_its_death_for_hot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_fd_leak: None
) -> None:
    plant = PlantBoard(tmp_path / "board", PlantModel(seed=1))
    cap = plant.root / plant.layout.max_freq
    before = cap.read_text()
    rails = {"VDD_GPU_SOC": [19_000, 940], "VDD_CPU_CV": [19_000, 120], "VIN_SYS_5V0": [5_000, 1_440],
             "VDDQ_VDD2_1V8AO": [5_000, 320]}
    ends = tmp_path / "ends"
    body = f"""import json, os, sys, time
sample = {SAMPLE | {"rails": rails}!r}
while not os.path.exists({str(ends)!r}):
    print(json.dumps(sample | {{"began_ns": time.monotonic_ns()}}), flush=True)
    time.sleep(0.05)
"""
    (tmp_path / "python").write_text(f"#!{sys.executable} -IS\n{body}")
    (tmp_path / "python").chmod(0o755)
    during: list[str] = []
    facts = BoardFacts.from_dict(SECTION["board"])
    Caps(plant.root, facts, tmp_path / "state.json").set_gpu_max(408_000_000, "then the steward was killed")
    waited: list[tuple[str, bool]] = []
    wait_for_first = JtopSource.wait_for_first

    def wait(self: JtopSource) -> None:
        wait_for_first(self)
        waited.append((cap.read_text(), self._sample is not None))

    monkeypatch.setattr(JtopSource, "wait_for_first", wait)

    def talk(sock: socket.socket, said: list[dict[str, Any]]) -> None:
        with sock:
            while not any(message.get("report", {}).get("board_w") for message in said):
                said.append(json.loads(sock.recv(65_536)))
            during.append(cap.read_text())
            ends.touch()
            while "limits" not in said[-1] or Limits.from_json(said[-1]["limits"]).level != "hot":
                said.append(json.loads(sock.recv(65_536)))

    stats = StatsWriter()
    stats.write_counters(5 * MS, 10 * S, 1)
    section = {**SECTION, "root": str(plant.root), "state": str(tmp_path / "state.json"),
               "jtop_python": str(tmp_path / "python")}
    code, said = run_steward(monkeypatch, stats, section, talk)
    stats.close()
    reports = [message["report"] for message in said if "report" in message]
    assert waited == [("408000000\n", True)], "a cap that was left behind stays until there is something to govern by"
    assert code == 0 and reports[0]["board_w"] == 27.34 and reports[0]["faults"] == []
    assert during != [before] and cap.read_text() == before, "the caps are ours, and put back"
    assert any("jtop: the reader has ended" in fault for report in reports for fault in report["faults"])
