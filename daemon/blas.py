"""How many threads a matrix product may take: one. Read by NumPy's BLAS when it is first imported.

Used by the command line and for every child of the nursery. Our products are small: more threads wait for each other,
spinning, longer than they compute (facts: two were slower; an INT8 build took five times the CPU time).
"""

from __future__ import annotations

import os

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def prefer_one_thread() -> None:
    """For this process, unless its caller has said otherwise."""
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
