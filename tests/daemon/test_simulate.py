"""`orind simulate`: what it predicts, in which forms, and what it refuses."""

from __future__ import annotations

import builtins
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from orind.daemon import cli, simulate_command
from orind.daemon.batcher import WAKE_NS
from orind.daemon.simulate_setup import _outside, in_words
from orind.daemon.simulate_times import StatedTimes
from orind.daemon.trace_file import Series, TraceError, read_ambient, read_load
from orind.power.plant.fault_file import FaultState

ROOT = Path(__file__).resolve().parents[2]
POLICY = ROOT / "configs/power/agx-orin-30w.yaml"
Captured = pytest.CaptureFixture[str]


def _simulate(*more: object, load: object = None, ambient: object = 45, board: str = "agx-orin", hours: float = 0.005,
              policy: Path = POLICY, times: tuple[object, ...] = ("--frame-ms", "8@1300.5"),
              rules: tuple[object, ...] = ("--deadline-ms", 100)) -> int:
    load = ROOT / "configs/power/load.csv" if load is None else load
    given = ["--board", board, "--ambient", ambient, "--load", load, "--hours", hours, *times, *rules, *more]
    return cli.main(["simulate", *map(str, [policy, *given])])


def _trace(folder: Path, text: str) -> Path:
    path = folder / "load.csv"
    path.write_text(text)
    return path


def _json(captured: Captured) -> dict[str, Any]:
    told = json.loads(captured.readouterr().out)
    assert isinstance(told, dict)
    return told


# -- what it predicts ----------------------------------------------------------------------------------------------


def test_figures_and_course_agree_and_nothing_is_lost(tmp_path: Path, capsys: Captured) -> None:
    load = _trace(tmp_path, "t_s,frames_per_s\n0,40\n10,90\n20,0\n25,repeat\n")
    assert _simulate("--json", "-", load=load, hours=0.02) == 0
    told = _json(capsys)
    found, series = told["summary"], told["series"]
    assert told["what"] == "simulated board; nothing was measured on an Orin"
    assert (told["board"], told["mode"], told["budget_w"]) == ("agx-orin", "MAXN", 30.0)
    energy_j = sum(w * s for w, s in zip(series["board_w"], series["lasted_s"], strict=True))
    assert found["energy_wh"] * 3600 == pytest.approx(energy_j, rel=1e-3)
    assert found["board_w_mean"] == pytest.approx(energy_j / 72, rel=1e-3) and found["length_s"] == 72
    frames = found["frames"]
    assert frames["offered"] == frames["answered"] + frames["expired"] + frames["dropped"] + frames["waiting"]
    for name in ("offered", "answered", "expired", "dropped"):
        assert frames[name] == sum(series[name]), name
    assert abs(frames["offered"] - (3 * 1300 - 0)) <= 90 and frames["expired"] > 0
    assert found["j_per_frame"] == pytest.approx(energy_j / frames["answered"], rel=1e-3)
    assert found["tj_c_max"] == max(series["tj_c"]) and found["over_budget_s"] == 0 and found["throttled_s"] == 0
    assert found["full_load_s"] > 15 and found["within_tolerance"] > 0.9 and found["level_s"] == {"free": 72.0}
    assert {len(values) for values in series.values()} == {72}


def test_the_same_seed_tells_the_same_and_another_does_not(capsys: Captured) -> None:
    runs = []
    for seed in (3, 3, 4):
        assert _simulate("--json", "-", "--seed", seed) == 0
        runs.append(_json(capsys))
    assert runs[0] == runs[1] and runs[0]["series"] != runs[2]["series"]


def test_text_and_files(tmp_path: Path, capsys: Captured) -> None:
    picture, table, faults = tmp_path / "run.png", tmp_path / "run.json", tmp_path / "faults.json"
    faults.write_text('[{"t_s": 5, "missing": ["tj"], "fan_works": false}, {"t_s": 9}]')
    load = _trace(tmp_path, "t_s,frames_per_s,camera\n0,60,left\n0,30,right\n")
    assert _simulate("--plot", picture, "--json", table, "--faults", faults, "--fan", "quiet", load=load) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Jetson AGX Orin 64 GB, mode MAXN, policy agx-orin-30w: simulated board; nothing")
    for said in ("stated: 8 ms a frame at 1300.5 MHz", "load.csv of left, right, its last line holds to the end; dead",
                 "board power, mean", "seconds over budget + 1.5 W", "  expired", "J a frame answered", "level hot",
                 "0:00:05  fault: zone tj: lost; taken for hot: junction temperature lost", "GPU clock while busy, MHz",
                 "expired, frames/s", f"{picture}  {picture.stat().st_size} bytes"):
        assert said in out, said
    assert "simulated 0:00:00 of 0:00:18" in err and Image.open(io.BytesIO(picture.read_bytes())).size[0] == 1650
    told = json.loads(table.read_text())
    assert told["fan"] == "quiet" and told["summary"]["frames"]["paced"] > 0
    assert any("taken for hot" in event["text"] for event in told["summary"]["events"])


def test_a_plan_a_mode_and_a_configuration(identity_plan: Path, tmp_path: Path, capsys: Captured) -> None:
    config = tmp_path / "orind.yaml"
    config.write_text("models: {m: {plan: m.plan}}\ncameras: {line1: {model: m, deadline_ms: 40}}\n"
                      'sources: [{name: a, endpoint: "ipc:///x"}]\nbatching: {max_size: 2}\nslots: {count: 9}\n')
    ambient = tmp_path / "ambient.csv"
    ambient.write_text("t_s,ambient_c\n0,20\n18,38\n")
    assert _simulate("--json", "-", board="agx-orin:MODE_30W", times=("--plan", identity_plan),
                     rules=("--config", config), ambient=ambient) == 0
    told = _json(capsys)
    assert told["mode"] == "MODE_30W" and told["top_mhz"] == 612
    assert "agx-orin:MODE_30W, a model's prediction" in told["frame_time"]
    assert told["ambient"] == "ambient.csv, 20 to 38 C"
    assert "of line1" in told["load"] and "deadline 40 ms, batches of up to 2, 9 slots" in told["load"]
    assert told["series"]["ambient_c"][0] == pytest.approx(20.45, abs=0.1) and told["series"]["ambient_c"][-1] > 37
    assert max(told["series"]["cap_mhz"]) <= 612 and told["summary"]["frames"]["expired"] == 0


SCHEDULE = """budget_w: 30
schedule:
  time_zone: Europe/Berlin
  windows: [{name: night, days: [mon], from: "22:00", to: "06:00", budget_w: 18}]
"""


def test_a_schedule_holds_at_its_time(tmp_path: Path, capsys: Captured) -> None:
    policy, load = tmp_path / "policy.yaml", _trace(tmp_path, "t_s,frames_per_s\n0,90\n")
    policy.write_text(SCHEDULE)
    more = ("--start", "2026-03-02T21:59", "--plot", tmp_path / "run.png", "--json", tmp_path / "run.json")
    assert _simulate(*more, policy=policy, load=load, hours=0.05) == 0
    out = capsys.readouterr().out
    assert "budget 18 to 30 W" in out and "0:01:00  budget 18.0 W: schedule, night" in out
    told = json.loads((tmp_path / "run.json").read_text())
    series, found = told["series"], told["summary"]
    assert (series["budget_w"][59], series["budget_w"][60]) == (30, 18) and told["start"] == "2026-03-02T21:59"
    late = series["board_w"][70:]
    assert abs(sum(late) / len(late) - 18) < 0.5 and abs(sum(series["board_w"][20:60]) / 40 - 30) < 0.5
    assert found["within_tolerance"] > 0.9, "each second against the budget that held in it"
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_the_limit_of_quiet_hours_is_told_beside_the_policys(tmp_path: Path, capsys: Captured) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(SCHEDULE + "quiet: {budget_w: 18, tj_warn_c: 60, tj_limit_c: 65}\n")
    load = _trace(tmp_path, "t_s,frames_per_s\n0,10\n")
    assert _simulate("--start", "2026-03-02T21:00", policy=policy, load=load, hours=0.002) == 0
    assert "limit 85 C (65 C when quiet), throttle 99 C" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "start", "said"), [
    (SCHEDULE, None, "policy.yaml has a schedule: say with --start when the run begins, as 2026-03-02T06:00, in the "
                     "time of Europe/Berlin"),
    (SCHEDULE, "yesterday", "--start yesterday: must be as 2026-03-02T06:00"),
    (SCHEDULE, "2026-03-29T02:30", "must be as 2026-03-02T06:00, and an hour that there is in Europe/Berlin"),
    (SCHEDULE, "9999-12-31T23:59", "--start 9999-12-31T23:59: must be as 2026-03-02T06:00"),
    ("budget_w: 30\n", "2026-03-02T06:00", "has no schedule; leave it out")])
def test_when_the_run_begins(tmp_path: Path, capsys: Captured, text: str, start: str | None, said: str) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)
    assert _simulate(*(() if start is None else ("--start", start)), policy=policy) == 2
    assert said in capsys.readouterr().err


def test_the_governor_is_told_the_ambient_temperature(tmp_path: Path, capsys: Captured) -> None:
    policy, ambient = tmp_path / "policy.yaml", tmp_path / "ambient.csv"
    policy.write_text("budget_w: 30\nambient: [{ambient_c: 20, budget_w: 30}, {ambient_c: 40, budget_w: 20}]\n")
    ambient.write_text("t_s,ambient_c\n0,20\n18,38\n")
    assert _simulate("--json", "-", policy=policy, ambient=ambient) == 0
    told = _json(capsys)
    assert told["series"]["budget_w"][0] > 29 and told["series"]["budget_w"][-1] == pytest.approx(21.25, abs=0.3)
    assert any("ambient" in event["text"] for event in told["summary"]["events"])


def test_a_board_that_overheats_switches_itself_off_and_it_is_said(tmp_path: Path, capsys: Captured) -> None:
    """80 C around it, no fan, and a load that no clock lowers."""
    policy, faults = tmp_path / "policy.yaml", tmp_path / "faults.json"
    policy.write_text("budget_w: 30\n")
    faults.write_text('{"fan_works": false, "extra_w": 40, "refuse_writes": true}')
    assert _simulate("--faults", faults, policy=policy, ambient=80, hours=0.05) == 0
    out = capsys.readouterr().out
    assert "the board reached its shutdown temperature and switched itself off" in out and "switched off at 0:0" in out


def test_a_short_last_second_and_a_tick_that_divides_no_second(tmp_path: Path, capsys: Captured) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("budget_w: 30\ntick_ms: 300\ndwell_ms: 300\n")
    assert _simulate("--json", "-", policy=policy) == 0
    series = _json(capsys)["series"]
    assert sum(series["lasted_s"]) == pytest.approx(18.0) and series["t_s"][1] == pytest.approx(1.2)


# -- what it refuses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "said"), [
    ("", ":1: empty; the first line must be t_s,frames_per_s"),
    ("a,b\n", ":1: the first line must be t_s,frames_per_s or t_s,frames_per_s,camera, not 'a,b'"),
    ("t_s,frames_per_s\n", ":1: there is no line with values"),
    ("t_s,frames_per_s\n0,x\n", ":2: frames_per_s must be a number in 0 to 10000, not 'x'"),
    ("t_s,frames_per_s\n0,-1\n", ":2: frames_per_s must be a number in 0 to 10000, not '-1'"),
    ("t_s,frames_per_s\n0,nan\n", ":2: frames_per_s must be a number"),
    ("t_s,frames_per_s\n-3,1\n", ":2: t_s must be a number in 0 to"),
    ("t_s,frames_per_s\n5,1\n# note\n\n5,2\n", ":5: t_s must ascend: 5 comes after 5; sort the lines"),
    ("t_s,frames_per_s,camera\n5,1,a\n4,1,b\n3,1,a\n", ":4: t_s must ascend: 3 comes after 5 of camera 'a'"),
    ("t_s,frames_per_s\n0,1,2\n", ":2: must have 2 values, not 3"),
    ("t_s,frames_per_s,camera\n0,1,\n", ":2: camera must be a name of 1 to 64 bytes"),
    ("t_s,frames_per_s\n5,1\n5,repeat\n", ":3: the series must begin anew after its last time, not at 5 s"),
    ("t_s,frames_per_s\n5,1\nx,repeat\n", ":3: t_s must be a number"),
    ("t_s,frames_per_s\n5,1\n6,repeat\n7,1\n", ":4: nothing comes after the line with 'repeat'"),
    ("t_s,frames_per_s,camera\n" + "".join(f"0,1,c{n}\n" for n in range(65)), "names 65 cameras, at most 64"),
    ("t_s,frames_per_s\n" + "0,x\n" * 25, ": and 5 more"),
    ("t_s,frames_per_s\n" + "\n" * 100_001, ": 100002 lines, at most 100000 are read"),
    ("\udcff", ": not UTF-8 text (byte 0)")])
def test_a_load_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "load.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(TraceError) as caught:
        read_load(path)
    assert str(path) in str(caught.value) and said in str(caught.value)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    with path.open("wb") as file:
        file.truncate((8 << 20) + 1)
    with pytest.raises(TraceError, match="at most 8388608 are read"):
        read_load(path)


def test_ambient_is_interpolated_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ambient.csv"
    path.write_text("t_s,ambient_c\n10,20\n20,30\n40,repeat\n")
    series = read_ambient(path)
    assert [series.interpolated(t) for t in (0, 10, 15, 20, 30, 40, 55)] == [20, 20, 25, 30, 30, 20, 25]
    assert Series((0.0,), (7.0,)).interpolated(5) == 7


def test_a_series_has_its_steps() -> None:
    steps = Series((5.0, 6.0), (1.0, 2.0), 10.0).steps()
    assert [next(steps) for _ in range(6)] == [(0, 0), (5, 1), (6, 2), (10, 0), (15, 1), (16, 2)]
    assert list(Series((0.0,), (1.0,)).steps()) == [(0.0, 0.0), (0.0, 1.0)]


@pytest.mark.parametrize(("faults", "said"), [
    ("{", "Expecting property name"),
    ('{"missing": ["tk"]}', "at 0 s: there is no sensor 'tk' (known: VDDQ_VDD2_1V8AO, VDD_CPU_CV"),
    ('[{"t_s": 3, "renumber_hwmons": true}]', "at 3 s: renumber_hwmons is for a board with files"),
    ('{"ambient_c": 50}', "take ambient_c out and give --ambient a file")])
def test_faults_that_cannot_be_used(tmp_path: Path, capsys: Captured, faults: str, said: str) -> None:
    path = tmp_path / "faults.json"
    path.write_text(faults)
    assert _simulate("--faults", path) == 65
    err = capsys.readouterr().err
    assert err.startswith(f"orind simulate: {path}: ") and said in err


@pytest.mark.parametrize(("changed", "code", "said"), [
    ({"board": "tx2"}, 2, "--board tx2: no board 'tx2' (known: agx-orin, orin-nano, orin-nano-super, orin-nx)"),
    ({"board": "agx-orin:MODE_40W"}, 2, "has no mode 'MODE_40W' (known: MAXN,"),
    ({"board": "orin-nx"}, 78, "agx-orin-30w.yaml:4: boards: made for agx-orin, but the board is orin-nx"),
    ({"load": "/no/load.csv"}, 66, "/no/load.csv: no such file"),
    ({"ambient": "/no/ambient.csv"}, 66, "/no/ambient.csv: no such file"),
    ({"times": ("--plan", "/no/a.plan")}, 66, "/no/a.plan: no such file"),
    ({"times": ("--plan", POLICY)}, 65, "agx-orin-30w.yaml"),
    ({"rules": ("--config", POLICY)}, 78, "agx-orin-30w.yaml:")])
def test_what_is_named_must_be_there_and_fit(capsys: Captured, changed: dict[str, Any], code: int, said: str) -> None:
    assert _simulate(**changed) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("orind simulate: ") and said in err


@pytest.mark.parametrize("more", [("--hours", "0"), ("--hours", "49"), ("--hours", "x"), ("--frame-ms", "8"),
                                  ("--frame-ms", "0@1300"), ("--frame-ms", "1.2.3@1300"), ("--ambient", "81"),
                                  ("--deadline-ms", "-1"), ("--plan", "a.plan"), ("--fan", "loud")])
def test_usage(more: tuple[str, str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as caught:
        _simulate(*more)
    assert caught.value.code == 2 and "orind simulate: error: argument" in capsys.readouterr().err


def test_a_number_that_is_too_large_is_told_the_largest(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        _simulate("--deadline-ms", "600001")
    assert "must be a number above 0, at most 600000, not '600001'" in capsys.readouterr().err


def test_cameras_that_a_configuration_does_not_have(tmp_path: Path, capsys: Captured) -> None:
    config = tmp_path / "orind.yaml"
    config.write_text("models: {m: {plan: m.plan}}\n"
                      "cameras: {a: {model: m, deadline_ms: 40}, b: {model: m, deadline_ms: 9}}\n"
                      'sources: [{name: a, endpoint: "ipc:///x"}]\n')
    assert _simulate(load=_trace(tmp_path, "t_s,frames_per_s\n0,1\n"), rules=("--config", config)) == 65
    assert "has several cameras (a, b): add a column `camera`" in capsys.readouterr().err
    assert _simulate(load=_trace(tmp_path, "t_s,frames_per_s,camera\n0,1,c\n"), rules=("--config", config)) == 65
    assert "has no camera 'c' (known: a, b)" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["", "100,repeat\n"])
def test_more_frames_than_anybody_waits_for(tmp_path: Path, capsys: Captured, end: str) -> None:
    load = _trace(tmp_path, f"t_s,frames_per_s\n0,9999\n{end}")
    assert _simulate(load=load, hours=1) == 65
    assert "more than 20000000 frames; lower the rates, or --hours" in capsys.readouterr().err


def test_a_plan_whose_batches_the_rule_does_not_allow(monkeypatch: pytest.MonkeyPatch, identity_plan: Path,
                                                      capsys: Captured) -> None:
    from orind.daemon import simulate_setup

    plain = simulate_setup.programs_from_text
    monkeypatch.setattr(simulate_setup, "programs_from_text", lambda text: {4: plain(text)[1]})
    assert _simulate(times=("--plan", identity_plan)) == 78
    assert "its smallest batch is 4, batching.max_size is 1" in capsys.readouterr().err
    monkeypatch.setattr(simulate_setup, "programs_from_text", lambda text: {})
    assert _simulate(times=("--plan", identity_plan)) == 65
    assert "it holds no program" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--plot", "--json"])
def test_outputs_are_looked_at_before_the_work(tmp_path: Path, capsys: Captured, option: str,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_command, "set_up", lambda options: pytest.fail("no work for nothing"))
    assert _simulate(option, tmp_path / "no" / "run") == 1
    assert f"simulate {option} {tmp_path}/no/run: " in capsys.readouterr().err
    load = _trace(tmp_path, "t_s,frames_per_s\n0,1\n")
    assert _simulate(option, load, load=load) == 2
    assert "that is the load itself; name another file" in capsys.readouterr().err


def test_two_outputs_are_two_files(tmp_path: Path, capsys: Captured) -> None:
    assert _simulate("--plot", tmp_path / "run", "--json", tmp_path / "run") == 2
    assert "--plot and --json both name" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_disk_that_is_full_when_the_run_is_over(tmp_path: Path, capsys: Captured,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    from orind.kernels.plan.replacement import NotWritten

    def full(path: Path) -> None:
        raise NotWritten(28, "No space left on device", str(path))

    monkeypatch.setattr(simulate_command, "replacing", full)
    assert _simulate("--json", tmp_path / "run.json") == 1
    assert "No space left on device" in capsys.readouterr().err


def test_without_matplotlib_it_says_so_before_the_work(tmp_path: Path, capsys: Captured,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert _simulate("--plot", tmp_path / "run.png") == 69
    assert "--plot: drawing needs matplotlib: pip install 'orind[plot]'" in capsys.readouterr().err


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate_command, "seconds", interrupted)
    assert _simulate("--plot", tmp_path / "run.png", "--json", tmp_path / "run.json") == 130
    assert capsys.readouterr().err.endswith("orind simulate: ended by Ctrl-C\n") and not list(tmp_path.iterdir())


def test_faults_in_words() -> None:
    assert in_words(FaultState()) == "no fault"
    state = FaultState(missing=("tj",), stuck=("gpu",), forced={"cpu": -5}, slow_s={"soc0": 2.0}, refuse_writes=True,
                       fan_works=False, extra_w=4.0, reset_mode=(3, None))
    assert in_words(state) == ("fan dead, tj lost, gpu stuck, cpu shows -5, soc0 2 s late, writes refused, +4 W, "
                               "mode 3 set")


def test_the_governor_is_told_what_main_tells_it_of_frames_and_deadlines() -> None:
    told = _outside(1_300_500_000, 41.5, None, StatedTimes(10.0, 600.0, 4), 30_000_000 + WAKE_NS)
    assert told.deadline is not None and told.deadline.value == pytest.approx(200e6, rel=1e-3), "10 ms at 600 MHz"
    assert told.frame is not None and told.frame.value == pytest.approx(6e6, rel=1e-3)
    assert told.ambient is not None and told.ambient.value == 41_500 and told.wall_s is None
    again = _outside(408_000_000, 41.5, 1e9, StatedTimes(10.0, 600.0, 4), 30_000_000 + WAKE_NS)
    assert again.deadline is not None and again.deadline.value == pytest.approx(200e6, rel=1e-3), "whatever the clock"
    assert again.wall_s == 1e9
