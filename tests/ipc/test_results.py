"""The result area: rows arrive, and rows of another batch are refused."""

from __future__ import annotations

import os

import numpy as np
import pytest

from orind.ipc.errors import IpcError, ResultAreaError
from orind.ipc.results import ResultArea

pytestmark = pytest.mark.usefixtures("no_fd_leak")


def ends(areas: int, frames: int, rows_max: int, row_width: int) -> tuple[ResultArea, ResultArea]:
    """Main's and the engine's."""
    main = ResultArea(areas, frames, rows_max, row_width)
    return main, ResultArea(areas, frames, rows_max, row_width, fd=main.writable_fd())


def test_an_engine_writes_and_main_reads_a_copy() -> None:
    main, engine = ends(2, 3, 10, 6)
    engine.begin(1, 77)
    engine.rows(1, 2, 6)[:2] = np.arange(12).reshape(2, 6)
    engine.rows(1, 0, 2)[:3] = [[1, 2], [3, 4], [5, 6]]
    engine.finish(1, 77)
    rows = main.read(1, 2, 77, 2, 6)
    np.testing.assert_array_equal(rows, np.arange(12, dtype=np.float32).reshape(2, 6))
    np.testing.assert_array_equal(main.read(1, 0, 77, 3, 2), [[1, 2], [3, 4], [5, 6]])
    assert main.read(1, 2, 77, 0, 6).shape == (0, 6) and main.rows(0, 0, 2).shape == (30, 2)
    engine.rows(1, 2, 6)[:] = -1
    np.testing.assert_array_equal(rows[0], np.arange(6))
    engine.close()
    main.close()
    main.close()


def test_main_cannot_write() -> None:
    main = ResultArea(1, 1, 3, 6)
    for write in (lambda: main.begin(0, 1), lambda: main.finish(0, 1), lambda: main.rows(0, 0, 6).fill(1)):
        with pytest.raises(ValueError, match="read-only"):
            write()
    main.close()


def test_areas_and_frames_do_not_overlap() -> None:
    main, engine = ends(2, 2, 3, 6)
    for a in range(2):
        for f in range(2):
            engine.rows(a, f, 6)[:] = 10 * a + f
    assert [float(main.rows(a, f, 6).sum()) for a in range(2) for f in range(2)] == [0.0, 18.0, 180.0, 198.0]
    engine.close()
    main.close()


def test_rows_of_another_batch_are_refused() -> None:
    main, engine = ends(1, 1, 4, 6)
    engine.begin(0, 5)
    with pytest.raises(ResultAreaError, match="5/0, not 5"):
        main.read(0, 0, 5, 1, 6)
    engine.finish(0, 5)
    main.read(0, 0, 5, 1, 6)
    with pytest.raises(ResultAreaError, match="not 4"):
        main.read(0, 0, 4, 1, 6)
    engine.begin(0, 6)
    with pytest.raises(ResultAreaError, match="rewritten"):
        main.read(0, 0, 5, 1, 6)
    engine.close()
    main.close()


@pytest.mark.parametrize(("area", "frame", "rows", "width"), [
    (1, 0, 1, 6), (-1, 0, 1, 6), (0, 1, 1, 6), (0, -1, 1, 6), (0, 0, 5, 6), (0, 0, -1, 6), (0, 0, 1, 25), (0, 0, 1, 0),
])
def test_bounds(area: int, frame: int, rows: int, width: int) -> None:
    main, engine = ends(1, 1, 4, 6)
    engine.begin(0, 1)
    engine.finish(0, 1)
    with pytest.raises(ResultAreaError):
        main.read(area, frame, 1, rows, width)
    engine.close()
    main.close()


def test_refusals() -> None:
    with pytest.raises(ResultAreaError, match="at least 1"):
        ResultArea(1, 0, 1, 1)
    small = ResultArea(1, 1, 1, 6)
    with pytest.raises(IpcError, match="announced"):
        ResultArea(8, 8, 1000, 6, fd=small.writable_fd())
    with pytest.raises(PermissionError):
        ResultArea(1, 1, 1, 6, fd=os.open(f"/proc/self/fd/{small.fd}", os.O_RDONLY))
    small.close()
