"""scripts/measure_gpu: a file of tests that does not end well is never told as passed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import measure_gpu
import pytest

FILES = {
    "passes": ("def test_a(): pass\n", Counter(passed=1), []),
    "fails": ("def test_a(): assert 0\ndef test_b(): pass\n", Counter(passed=1, failed=1), ["test_fails: test_a"]),
    "hangs": (
        "import time\ndef test_a(): pass\ndef test_b(): time.sleep(60)\n",
        Counter(),
        ["test_hangs: ended with 124 in test_hangs.py::test_b"],
    ),
    "dies": (
        "import os, atexit\natexit.register(os._exit, 139)\ndef test_a(): pass\n",
        Counter(passed=1),
        ["test_dies: ended with 139"],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_tests(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, outcomes, wrong = FILES[name]
    path = tmp_path / f"test_{name}.py"
    path.write_text(text)
    (tmp_path / f"test_{name}.xml").write_text('<testsuite><testcase name="of_before"/></testsuite>')
    monkeypatch.setattr(measure_gpu, "ROOT", tmp_path)
    monkeypatch.setattr(measure_gpu, "STEP_LIMIT_S", 8)
    assert measure_gpu.test_file(path, tmp_path) == (f"test_{name}", outcomes, wrong)
