"""The documentation that is made from code, and the commands that README and CONTRIBUTING name."""

from __future__ import annotations

import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("subject", ["configuration", "failover"])
def test_what_is_made_from_code_is_up_to_date(subject: str) -> None:
    """Otherwise run scripts/document_SUBJECT."""
    path = ROOT / "scripts" / f"document_{subject}"
    loader = SourceFileLoader(path.name, str(path))
    spec = importlib.util.spec_from_loader(path.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    assert (ROOT / "docs" / f"{subject}.md").read_text() == module.render()


def test_named_files_exist() -> None:
    for document in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text()
        named = re.findall(r"`((?:scripts|docs|configs|daemon|ipc|kernels|power|systemd|tests)/[A-Za-z0-9_./-]+)", text)
        assert named
        missing = [name for name in named if not (ROOT / name.rstrip("./")).exists()]
        assert [name for name in missing if name != "scripts/bench_"] == []


def test_every_exit_code_is_in_the_readme() -> None:
    from orind.ipc.exit_codes import Exit

    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", text.split("## Exit codes")[1], re.M)
    assert rows == [(str(int(code)), code.meaning) for code in Exit]


def test_every_operator_is_documented() -> None:
    from orind.kernels.importer.versions import VERSIONS
    from orind.kernels.ir.reference import OPERATORS

    text = (ROOT / "docs" / "models.md").read_text()
    listed = re.search(r"Operators: (.*?)\.\s+Resize", text, re.S)
    assert listed is not None
    assert set(re.split(r",\s+", listed[1])) == set(VERSIONS)
    # Constant is folded on reading, Swish becomes SiLU, Upsample becomes Resize; the others are ours
    assert set(OPERATORS) - set(VERSIONS) == {"SiLU", "GeluTanh", "FakeQuantise", "ChannelGather",
                                              "ZeroStuff"}
    assert set(VERSIONS) - set(OPERATORS) == {"Constant", "Swish", "Upsample"}
