"""How far a plan is from ONNX Runtime, for tests of precisions of which `verify` only tells figures (`ok` None)."""

from __future__ import annotations

import re
from pathlib import Path

from orind.kernels.verify import verify


def least_sqnr_db(plan: Path, onnx: Path) -> float:
    """SQNR in dB on the golden input of the output that loses most; every check with a verdict must have passed."""
    report = verify(plan, onnx, "onnxruntime")
    assert report.ok and any("steps bit for bit" in check.text for check in report.checks)
    found = [re.search(r"SQNR (-?[\d.]+|-?inf|nan) dB", check.text) for check in report.checks
             if check.name.startswith("output ")]
    assert found and all(found)
    return min(float(match[1]) for match in found if match)
