"""The configuration file: every mistake at once, each with file, line, key and what to do; boards and policies too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from orind.daemon.config import Config
from orind.daemon.config_file import ConfigError, load, load_power
from orind.daemon.sections import MODELS_MAX

GOOD = """\
models:
  parts: {plan: parts.plan}
cameras:
  line1:
    model: parts
    deadline_ms: 100
sources:
  - {name: in, endpoint: "ipc:///run/orind/frames"}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "orind.yaml"
    path.write_text(text)
    return path


def problems(folder: Path, text: str) -> list[str]:
    """Without the file's name, which every line begins with."""
    path = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == "\n".join(caught.value.problems)
    assert all(p.startswith(f"{path}") for p in caught.value.problems)
    return [p.removeprefix(f"{path}:").strip() for p in caught.value.problems]


def test_a_small_file_is_enough_and_paths_are_relative_to_it(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD + "run_dir: run\n"))
    assert config.models["parts"].plan == str(tmp_path / "parts.plan") and config.run_dir == str(tmp_path / "run")
    assert config.cameras["line1"].priority == "normal" and config.engine.device == "cpu"
    assert Config.model_validate(config.model_dump()) == config, "it crosses to main as JSON"


def test_absolute_paths_stay(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD.replace("parts.plan", "/plans/p.plan")))
    assert config.models["parts"].plan == "/plans/p.plan" and config.run_dir == "/run/orind"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("    deadline_ms: 100", "    dedline_ms: 100"), [
            "6: cameras.line1.dedline_ms: unknown key; did you mean 'deadline_ms'?"]),
        (("cameras:", "camera:"), ["3: camera: unknown key; did you mean 'cameras'?"]),
        (("    deadline_ms: 100", "    colour: red"), [
            "4: cameras.line1.deadline_ms: required key is missing",
            "6: cameras.line1.colour: unknown key (known: model, priority, deadline_ms, rate_limit_hz, rate_burst, "
            "optional, degraded, held_age_max_ms)"]),
        (("deadline_ms: 100", "deadline_ms: fast"), [
            "6: cameras.line1.deadline_ms: input should be a valid number, got 'fast'"]),
        (("deadline_ms: 100", "deadline_ms: '100'"), [
            "6: cameras.line1.deadline_ms: input should be a valid number, got '100'"]),
        (("deadline_ms: 100", "deadline_ms: -1"), [
            "6: cameras.line1.deadline_ms: input should be greater than 0, got -1"]),
        (("model: parts", "model: partz"), ["5: cameras.line1.model: no model 'partz' (models: parts)"]),
        (("{plan: parts.plan}", "{}"), ["2: models.parts.plan: required key is missing"]),
        (("ipc:///run/orind/frames", "tcp://0.0.0.0"), [
            "8: sources.0.endpoint: endpoint 'tcp://0.0.0.0': tcp needs a port, as in tcp://127.0.0.1:5555"]),
        (("{plan: parts.plan}", "[1]"), [
            "2: models.parts: input should be a valid dictionary or instance of ModelEntry, got [1]"]),
        (("model: parts", "model: {parts: 9, partz: 1}"), ["5: cameras.line1.model: no model 'partz' (models: parts)"]),
        (("model: parts", "model: {parts: many}"), [
            "5: cameras.line1.model.parts: input should be a valid integer, got 'many'"]),
        (("model: parts", "model: 3"), [
            "5: cameras.line1.model: should be a model, or a table `MODEL: SHARE` of versions, got 3"]),
        (("line1:", "? [a]\n  :"), None),
    ],
)
def test_a_mistake_is_named_with_line_and_remedy(
    tmp_path: Path, change: tuple[str, str], said: list[str] | None
) -> None:
    found = problems(tmp_path, GOOD.replace(*change))
    assert said is None or sorted(found) == sorted(said)


def test_an_endpoint_of_systemds_is_taken_to_bind_only(tmp_path: Path) -> None:
    text = GOOD.replace("ipc:///run/orind/frames", "systemd:frames")
    assert load(write(tmp_path, text)).sources[0].endpoint == "systemd:frames"
    (found,) = problems(tmp_path, text.replace("name: in", "name: in, attach: connect"))
    assert found.endswith("sources: 'in': systemd:frames is bound already: attach must be bind")
    (found,) = problems(tmp_path, text.replace("systemd:frames", "systemd:a b"))
    assert found.startswith("8: sources.0.endpoint: ") and "FileDescriptorName= of the socket unit" in found


def test_an_endpoint_of_another_kind(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GOOD.replace("ipc:///run/orind/frames", "http://x"))
    assert found == "8: sources.0.endpoint: should be ipc:///path, tcp://host:port or systemd:name, got 'http://x'"


def test_a_run_dir_that_makes_an_endpoint_too_long_is_refused_at_the_endpoint(tmp_path: Path) -> None:
    text = GOOD.replace("ipc:///run/orind/frames", "ipc://{run_dir}/frames") + f"run_dir: {'a' * 95}\n"
    assert "{run_dir}" in text
    [found] = problems(tmp_path, text)
    assert found.startswith("8: sources.0.endpoint: ") and "107" in found


@pytest.mark.parametrize("key", ["run_dir", "plan"])
@pytest.mark.parametrize("character", ["\\0", "\\n", "\\t", "\\ud800"])
def test_a_path_with_a_control_character_is_refused(tmp_path: Path, key: str, character: str) -> None:
    value = f'"a{character}b"'
    text = GOOD.replace("parts.plan", value) if key == "plan" else GOOD + f"run_dir: {value}\n"
    [found] = problems(tmp_path, text)
    assert f"{key}: should be a path without control characters or halves of characters, got " in found


def test_only_run_dir_is_filled_in(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GOOD.replace("/run/orind/frames", "{rundir}/frames"))
    assert found == "8: sources.0.endpoint: endpoint 'ipc://{rundir}/frames': only {run_dir} is filled in, not {rundir}"


def test_no_models_at_all(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GOOD.replace("models:\n  parts: {plan: parts.plan}\n", "models: {}\n"))
    assert found.endswith("1: models: must have at least 1 of them, has 0")


def test_no_pattern_is_shown_to_a_person(tmp_path: Path) -> None:
    text = GOOD.replace("name: in", "name: a b") + "power: {board: 'Orin!', policy: x}\n"
    assert problems(tmp_path, text) == [
        "8: sources.0.name: should be 1 to 48 of the characters A-Z a-z 0-9 _ . -, got 'a b'",
        "9: power.board: should be board[:MODE], such as agx-orin:MODE_30W, got 'Orin!'",
    ]
    assert "pattern" not in str(Config.model_json_schema()["$defs"]["SourceEntry"]["properties"]["name"])


def test_several_mistakes_at_once(tmp_path: Path) -> None:
    text = GOOD + "slots: {count: 1}\nengin: {}\nstop: {drain_timeout_s: no}\n"
    assert problems(tmp_path, text.replace("deadline_ms: 100", "deadline_ms: x")) == [
        "6: cameras.line1.deadline_ms: input should be a valid number, got 'x'",
        "9: slots.count: input should be greater than or equal to 4, got 1",
        "10: engin: unknown key; did you mean 'engine'?",
        "11: stop.drain_timeout_s: input should be a valid number, got False",
    ]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("engine: {heartbeat_ms: 100, heartbeat_missed_ms: 100}",
         ["9: engine.heartbeat_missed_ms: 100 must be above engine.heartbeat_ms = 100"]),
        ("batching: {max_size: 4, window_ms: 100}",
         ["9: batching.window_ms: 100 leaves nothing of the tightest cameras.*.deadline_ms = 100"]),
        ("batching: {mode: adaptive, max_size: 4, short_window_ms: 6}",
         ["9: batching.min_size: 4 must be below batching.max_size = 4 in mode adaptive",
          "9: batching.short_window_ms: 6 must not be above batching.window_ms = 5"]),
        ("batching: {max_size: 4, long_queue: 20}",
         ["9: batching.long_queue: has a meaning in mode adaptive only, batching.mode is window"]),
        ("batching: {mode: fixed, max_size: 4, window_ms: 7}",
         ["9: batching.window_ms: has a meaning in mode window or adaptive only, batching.mode is fixed"]),
        ("results: {endpoint: 'tcp://*:8787'}\nhttp: {}",
         ["10: http.port: 8787 is the port of tcp://*:8787 too"]),
        ("stop: {drain_timeout_s: 2}",
         ["9: stop.drain_timeout_s: 2 s must be above engine.batch_watchdog_ms = 2000, "
          "or a drain cuts off a running batch"]),
        ("results: {endpoint: 'ipc:///run/orind/frames'}",
         ["7: sources: the endpoint 'ipc:///run/orind/frames' is used twice"]),
        ("engine: {heartbeat_missed_ms: 1}\nstop: {drain_timeout_s: 1}",
         ["9: engine.heartbeat_missed_ms: 1 must be above engine.heartbeat_ms = 100",
          "10: stop.drain_timeout_s: 1 s must be above decode.timeout_ms = 1000, "
          "or a drain cuts off a JPEG that is being decoded",
          "10: stop.drain_timeout_s: 1 s must be above engine.batch_watchdog_ms = 2000, "
          "or a drain cuts off a running batch"]),
        ("engine: {golden_interval_s: 3}",
         ["9: engine.golden_timeout_ms: 2000 must be at most half of engine.golden_interval_s = 3, when a standby "
          "is asked again: later its last answer would have run out before it is given up"]),
        ("slots: {count: 8}\nbatching: {max_size: 16}",
         ["10: batching.max_size: 16 frames are never there at once, slots.count is 8"]),
        ("slots: {count: 8}\nhealth: {queue_max: 8}",
         ["10: health.queue_max: 8 frames never wait: slots.count = 8 holds them, those in flight included; "
          "it must be below"]),
        ("standby: {device: 'cuda:1', last_resort: cpu}",
         ["9: standby.device: cuda:1 is for engine.device = cuda, which is cpu",
          "9: standby.last_resort: cpu is for engine.device = cuda, which is cpu already"]),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, more: str, said: list[str]) -> None:
    assert problems(tmp_path, GOOD + more + "\n") == said


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "1e300"])
def test_a_time_is_finite_and_bounded(tmp_path: Path, value: str) -> None:
    """Else a bad reload would end in an overflow in main instead of a refusal."""
    [said] = problems(tmp_path, GOOD + f"engine: {{batch_watchdog_ms: {value}}}\n")
    assert said.startswith("9: engine.batch_watchdog_ms: input should be")


def test_names_used_twice(tmp_path: Path) -> None:
    text = GOOD + '  - {name: in, endpoint: "tcp://*:5555"}\n'
    assert problems(tmp_path, text) == ["7: sources: the name 'in' is used twice"]
    assert "duplicate key 'line1' (also in line 4)" in problems(
        tmp_path, GOOD.replace("sources:", "  line1: {}\nsources:")
    )[0]


def test_a_camera_name_is_measured_in_bytes(tmp_path: Path) -> None:
    name = "ä" * 40
    assert problems(tmp_path, GOOD.replace("line1", name)) == [
        f"4: cameras.{name}: a camera's name has at most 64 bytes in UTF-8"
    ]


def test_more_models_than_an_engine_can_be_given(tmp_path: Path) -> None:
    raw = yaml.safe_load(GOOD)
    raw["models"] = {f"m{n}": {"plan": "p"} for n in range(MODELS_MAX + 1)}
    (found,) = problems(tmp_path, yaml.safe_dump(raw))
    assert found.endswith(f"models: must have at most {MODELS_MAX} of them, has {MODELS_MAX + 1}")


def test_no_file_no_permission_no_yaml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path)
    assert problems(tmp_path, "models: [\n")[0].startswith("2: not valid YAML")
    assert problems(tmp_path, "- a\n") == ["1: expected a table of `key: value` lines"]


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, GOOD)

    def denied(self: Path) -> bytes:
        raise PermissionError(13, os.strerror(13), str(self))

    monkeypatch.setattr(Path, "read_bytes", denied)  # root reads everything
    with pytest.raises(ConfigError, match="Permission denied"):
        load(path)


# -- power ---------------------------------------------------------------------------------------------------------

POLICY = """\
name: test
boards: [agx-orin]
budget_w: 30
"""


def powered(folder: Path, policy: str = POLICY, board: str = "agx-orin:MODE_30W") -> Config:
    (folder / "policy.yaml").write_text(policy)
    (folder / "tree").mkdir(exist_ok=True)
    return load(write(folder, GOOD + f"power: {{board: '{board}', policy: policy.yaml, root: tree}}\n"))


def power_problems(config: Config) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_power(config)
    return caught.value.problems


def test_no_power_section_is_no_power(tmp_path: Path) -> None:
    assert load_power(load(write(tmp_path, GOOD))) is None


def test_the_boards_facts_and_the_policy_are_read(tmp_path: Path) -> None:
    config = powered(tmp_path)
    assert config.power is not None and config.power.root == str(tmp_path / "tree")
    files = load_power(config)
    assert files is not None
    assert (files.board["name"], files.mode, files.policy["budget_w"]) == ("agx-orin", "MODE_30W", 30)


def test_the_shipped_policies_fit_their_boards(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "configs" / "power"
    shipped = sorted(folder.glob("*.yaml"))
    assert shipped
    for path in shipped:
        board = yaml.safe_load(path.read_text())["boards"][0]
        assert load_power(powered(tmp_path, path.read_text(), board)) is not None


def test_another_board_than_the_configured_one(tmp_path: Path) -> None:
    tree = tmp_path / "tree/sys/firmware/devicetree/base"
    tree.mkdir(parents=True)
    (tree / "compatible").write_bytes(b"nvidia,p3768-0000+p3767-0000\0nvidia,p3767-0000\0nvidia,tegra234\0")
    policy = Path(__file__).parents[2] / "configs" / "power" / "agx-orin-30w.yaml"
    path = tmp_path / "orind.yaml"
    path.write_text(GOOD + f"power: {{board: agx-orin, policy: {policy}, root: tree}}\n")
    with pytest.raises(ConfigError) as refused:
        load_power(load(path))
    assert "the board says it is nvidia,p3768-0000+p3767-0000" in refused.value.problems[0]


def test_jtop_as_the_source_needs_an_interpreter_that_is_there(tmp_path: Path) -> None:
    def with_source(more: str) -> str:
        return GOOD + f"power: {{board: agx-orin, policy: policy.yaml, root: tree, {more}}}\n"

    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "tree").mkdir()
    (found,) = problems(tmp_path, with_source("source: jtop"))
    assert "power.jtop_python: source jtop needs the Python interpreter that has jetson-stats" in found
    (found,) = problems(tmp_path, with_source("jtop_python: /usr/bin/python3"))
    assert "power.jtop_python: is for power.source = jtop, which is sysfs" in found
    config = load(write(tmp_path, with_source("source: jtop, jtop_python: jtop/bin/python")))
    assert power_problems(config) == [f"power.jtop_python: {tmp_path}/jtop/bin/python: no such program"]
    (tmp_path / "jtop/bin").mkdir(parents=True)
    (tmp_path / "jtop/bin/python").write_text("#!/bin/sh\n")
    assert power_problems(config) == [f"power.jtop_python: {tmp_path}/jtop/bin/python: no such program"]
    (tmp_path / "jtop/bin/python").chmod(0o755)
    files = load_power(config)
    assert files is not None and files.jtop_python == f"{tmp_path}/jtop/bin/python"


def test_unknown_board_and_mode(tmp_path: Path) -> None:
    (found,) = power_problems(powered(tmp_path, board="raspberry"))
    assert found.startswith("power.board: no board 'raspberry' (known: agx-orin, ")
    (found,) = power_problems(powered(tmp_path, board="agx-orin:TURBO"))
    assert "has no mode 'TURBO' (known: MAXN, " in found
    assert "power.board" in problems(tmp_path, GOOD + "power: {board: 'A B', policy: p}\n")[0]


def test_a_policy_with_mistakes_names_its_own_lines(tmp_path: Path) -> None:
    found = power_problems(powered(tmp_path, POLICY.replace("budget_w", "budget_v") + "tj_limit_c: hot\n"))
    assert found and all(f.startswith(str(tmp_path / "policy.yaml:")) for f in found)
    assert any(":3:" in f for f in found) and any(":4:" in f for f in found)


def test_a_policy_beyond_the_module_is_refused(tmp_path: Path) -> None:
    assert power_problems(powered(tmp_path, POLICY.replace("30", "900")))


def test_a_missing_policy(tmp_path: Path) -> None:
    config = powered(tmp_path)
    (tmp_path / "policy.yaml").unlink()
    assert power_problems(config) == [f"power.policy: {tmp_path / 'policy.yaml'}: no such file"]


def test_broken_board_facts_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boards: Any = "orind.daemon.config_file.BOARDS"
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "agx-orin.yaml").write_text("name: agx-orin\nrails: 5\n")
    monkeypatch.setattr(boards, tmp_path / "boards")
    found = power_problems(powered(tmp_path))
    assert found and "agx-orin.yaml:" in found[0]
