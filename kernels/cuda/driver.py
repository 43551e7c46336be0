"""PyCUDA's door to the driver, or in one line why there is none. Called by `device.py` and by the daemon's checker.

Importing it needs the driver's libcuda.so.1, and touches no GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..ir.errors import ProgramError


def load() -> Any:
    """The module pycuda.driver. Raises ProgramError, whatever the import raises."""
    try:
        return importlib.import_module("pycuda.driver")
    except Exception as error:  # compiled for another NumPy or Python it raises what it likes
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ProgramError(
            f"PyCUDA cannot be imported ({said}); scripts/build_pycuda installs it, a driver brings libcuda.so.1"
        ) from error
