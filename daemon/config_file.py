"""From YAML files to a checked configuration, or to every mistake at once with its file and line.

Runs in the checker only (main parses no YAML). Loads the configuration, the board's facts and the power policy.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..kernels.yaml_lines import LinedYaml, YamlProblem, problems_of
from ..power.board import BoardFacts, Mode
from ..power.envelope import holding_mode
from ..power.errors import SettingsError, SysfsError
from ..power.fan_profile import profiles
from ..power.known_modes import known_modes
from ..power.nvpmodel import ConfMode
from ..power.policy import Policy
from ..power.policy_check import check_policy
from ..power.sysfs import Sysfs
from .config import Config
from .regular_file import CONFIGURATION_BYTES_MAX, NotRegular, check_regular
from .sections import PathText

POLICY_BYTES_MAX = 16_384  # with the board's facts it goes to the steward in one message
PATH: TypeAdapter[str] = TypeAdapter(PathText)
BOARDS = Path(__file__).parent.parent / "configs" / "boards"


class ConfigError(Exception):
    """The configuration is refused. `problems` holds one line a mistake: `FILE:LINE: key: what is wrong`."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class UnknownBoard(Exception):
    """There is no such board, or it has no such mode; the text says which there are."""


@dataclass(frozen=True, slots=True)
class PowerFiles:
    """What the steward needs, as plain tables: the board's facts, its mode ('': not said) and the policy; and where
    jtop reads the sensors, the Python that has jetson-stats."""

    board: dict[str, Any]
    mode: str
    policy: dict[str, Any]
    jtop_python: str | None = None


def load(path: Path) -> Config:
    """Read and check the configuration.

    Raises ConfigError with all mistakes. Paths of plans and policies are made absolute, relative to the file's folder.
    """
    document = read_yaml(path)
    try:
        return _absolute(Config.model_validate(document.value), path.resolve().parent)
    except ValidationError as error:
        raise ConfigError(problems_of(error, document, Config)) from None


def named_plans(path: Path) -> dict[str, str]:
    """By model the plan that a configuration names which may be wrong otherwise.

    A path that is wrong as a text is left out: the schema tells that.
    """
    try:
        models = read_yaml(path).value.get("models")
    except ConfigError:
        return {}
    entries = models.items() if isinstance(models, dict) else ()
    plans = {str(name): entry.get("plan") for name, entry in entries if isinstance(entry, dict)}
    folder = path.resolve().parent
    return {name: str(folder / plan) for name, plan in plans.items() if isinstance(plan, str) and _is_path(plan)}


def _is_path(text: str) -> bool:
    try:
        PATH.validate_python(text)
    except ValidationError:
        return False
    return True


def load_power(config: Config) -> PowerFiles | None:
    """Read the board's facts and the policy that `config.power` names, if any. Raises ConfigError."""
    if config.power is None:
        return None
    policy_path = Path(config.power.policy)
    try:
        board, facts, mode = load_board(config.power.board)
    except UnknownBoard as error:
        raise ConfigError([f"power.board: {error}"]) from None
    if not policy_path.exists():
        raise ConfigError([f"power.policy: {policy_path}: no such file"])
    jtop_python = config.power.jtop_python
    if jtop_python is not None and not (Path(jtop_python).is_file() and os.access(jtop_python, os.X_OK)):
        raise ConfigError([f"power.jtop_python: {jtop_python}: no such program"])
    if not Path(config.power.root).is_dir():
        raise ConfigError([f"power.root: {config.power.root}: no such folder"])
    sysfs = Sysfs(config.power.root)
    compatible = sysfs.read_compatible()
    if compatible and not facts.matches(compatible):
        raise ConfigError([f"power.board: {facts.title} is configured, but the board says it is {compatible[0]}"])
    try:
        fan_profiles = profiles(sysfs)
    except SysfsError:
        fan_profiles = []  # a board without nvfancontrol
    caps = _mode_of(facts, mode, sysfs)
    policy, _ = load_policy(policy_path, facts, caps, config.cameras, fan_profiles)
    return PowerFiles(board, mode, policy, jtop_python)


def load_board(spec: str) -> tuple[dict[str, Any], BoardFacts, str]:
    """The facts of BOARD[:MODE] as a plain table and checked, and the mode ('': not said).

    Raises UnknownBoard, and ConfigError for facts that are not whole.
    """
    name, _, mode = spec.partition(":")
    board = read_board(name)
    facts = facts_of(board)
    modes = [m.name for m in facts.modes]
    if mode and mode not in modes:
        raise UnknownBoard(f"{facts.title} has no mode '{mode}' (known: {', '.join(modes)})")
    return board.value, facts, mode


def read_board(name: str) -> LinedYaml:
    """A file of configs/boards as it is. Raises UnknownBoard, and ConfigError where it cannot be read."""
    known = sorted(p.stem for p in BOARDS.glob("*.yaml"))
    if name not in known:
        raise UnknownBoard(f"no board '{name}' (known: {', '.join(known)})")
    return read_yaml(BOARDS / f"{name}.yaml")


def facts_of(board: LinedYaml) -> BoardFacts:
    """What power needs to know of a board. Raises ConfigError."""
    try:
        return BoardFacts.from_dict(board.value)
    except SettingsError as error:
        raise ConfigError(_problems(board, error)) from None


def load_policy(
    path: Path, facts: BoardFacts, mode: Mode | ConfMode | None, cameras: Collection[str] | None = None,
    fan_profiles: Sequence[str] = (),
) -> tuple[dict[str, Any], Policy]:
    """A policy as a plain table and checked against the board, its mode (None: not known), the cameras (None: they are
    not known) and the fan's profiles (none: not known). Raises ConfigError."""
    document = read_yaml(path)
    try:
        policy = Policy.from_dict(document.value)
        check_policy(policy, facts, mode, fan_profiles)
    except SettingsError as error:
        raise ConfigError(_problems(document, error)) from None
    if (size := len(json.dumps(document.value))) > POLICY_BYTES_MAX:
        raise ConfigError([f"{path}:1: as JSON it has {size} bytes, at most {POLICY_BYTES_MAX} reach the governor: "
                           "shorten names and lists"])
    if cameras is not None and (unknown := [i for i, c in enumerate(policy.priorities) if c not in cameras]):
        raise ConfigError([f"{path}:{document.line_of(('priorities', i))}: priorities[{i}]: no camera "
                           f"{policy.priorities[i]!r} (cameras: {', '.join(cameras)})" for i in unknown])
    return document.value, policy


def _mode_of(facts: BoardFacts, named: str, sysfs: Sysfs) -> Mode | ConfMode | None:
    """The mode that is named, else the one that the board is in; None where it does not say, or says one that nobody
    knows. Its caps are those of the board's own nvpmodel.conf, by which the governor goes too."""
    wanted = named or holding_mode(sysfs)
    if wanted is None:
        return None
    return known_modes(sysfs, facts).mode(wanted) or facts.mode(named)


def with_lines(path: Path, problems: list[str]) -> list[str]:
    """Problems that begin with a key (`a.b: ...`), each with the file in front, and the key's line where it has one."""
    document = read_yaml(path)
    return [_with_line(document, problem) for problem in problems]


def _with_line(document: LinedYaml, problem: str) -> str:
    key = re.split("[.:]", problem, maxsplit=1)[0]
    if problem.startswith(f"{document.path}:") or key not in Config.model_fields:
        return problem
    line = f":{document.line_of_text(problem)}" if key in document.value else ""
    return f"{document.path}{line}: {problem}"


def _problems(document: LinedYaml, error: SettingsError) -> list[str]:
    return [f"{document.path}:{document.line_of(p.where)}: {p}" for p in error.problems]


def read_yaml(path: Path) -> LinedYaml:
    """A file with the lines of its keys. Raises ConfigError where it cannot be read, or is no YAML or no table."""
    try:
        check_regular(str(path), CONFIGURATION_BYTES_MAX)
        return LinedYaml.read(path)
    except NotRegular as error:
        raise ConfigError([f"{path}: {error}"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror or error}"]) from error
    except YamlProblem as error:
        raise ConfigError([str(error)]) from None


def _absolute(config: Config, folder: Path) -> Config:
    """Paths made absolute; `{run_dir}` in an endpoint filled in."""
    raw = config.model_dump()
    raw["run_dir"] = str(folder / raw["run_dir"])
    for entry in raw["models"].values():
        entry["plan"] = str(folder / entry["plan"])
    for entry in [*raw["sources"], *([raw["results"]] if raw["results"] else [])]:
        entry["endpoint"] = entry["endpoint"].replace("{run_dir}", raw["run_dir"])
    if raw["power"] is not None:
        raw["power"]["policy"] = str(folder / raw["power"]["policy"])
        raw["power"]["root"] = str(folder / raw["power"]["root"])
        if raw["power"]["jtop_python"] is not None:
            raw["power"]["jtop_python"] = str(folder / raw["power"]["jtop_python"])
    return Config.model_validate(raw)
