"""The documentation that is made from code, and the commands that README and CONTRIBUTING name."""

from __future__ import annotations

import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_configuration_key_is_documented() -> None:
    path = ROOT / "scripts" / "document_configuration"
    loader = SourceFileLoader("document_configuration", str(path))
    spec = importlib.util.spec_from_loader("document_configuration", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    assert (ROOT / "docs" / "configuration.md").read_text() == module.render()


def test_named_files_exist() -> None:
    for document in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text()
        named = re.findall(r"`((?:scripts|docs|configs|daemon|ipc|kernels|power|systemd|tests)/[A-Za-z0-9_./-]+)", text)
        assert named
        missing = [name for name in named if not (ROOT / name.rstrip("./")).exists() and "*" not in name]
        assert [name for name in missing if not name.endswith("bench_")] == []
