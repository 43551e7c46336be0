"""The stats page under a writer in another process: never half a write, and a dead writer is reported."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time

import pytest

from orind.ipc import shared_memory, stats_page
from orind.ipc.errors import StatsPageError
from orind.ipc.stats_page import Counters, StatsReader, StatsWriter

pytestmark = pytest.mark.usefixtures("no_fd_leak")

READER = """
import sys
from orind.ipc.stats_page import StatsReader
reader = StatsReader(int(sys.argv[1]))
print('up', flush=True)
last, seen = 0, set()
while len(seen) < 300:
    busy, now, loops = reader.read_counters()
    assert busy == 3 * loops and now == 7 * loops and loops >= last, (busy, now, loops, last)
    last = loops
    seen.add(loops)
    blob = reader.read_blob()
    assert blob == {} or blob['pad'] == 'x' * blob['n'], 'torn'
print('done', flush=True)
"""


def test_a_reader_beside_a_busy_writer_never_sees_half_a_write() -> None:
    writer = StatsWriter()
    fd = writer.readonly_fd()
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == "up\n"
        n = 0
        while reader.poll() is None and n < 3_000_000:
            n += 1
            writer.write_counters(3 * n, 7 * n, n)
            if n % 50 == 0:
                size = (n // 50) % 3000
                writer.write_blob({"n": size, "pad": "x" * size})
                time.sleep(0.0002)  # main rests 10 ms; without any rest a reader may never meet a whole page
        out, err = reader.communicate(timeout=30)
        assert (out, reader.returncode) == ("done\n", 0), err
    os.close(fd)
    writer.close()


def test_values_and_json() -> None:
    writer = StatsWriter()
    reader = StatsReader(writer.readonly_fd())
    assert reader.read_counters() == (0, 0, 0) and reader.read_blob() == {}
    writer.write_counters(5, 6, 7)
    writer.write_blob({"frames": {"ok": 3}, "state": "serving"})
    assert reader.read_counters() == Counters(5, 6, 7)
    assert reader.read_blob() == {"frames": {"ok": 3}, "state": "serving"}
    with pytest.raises(StatsPageError, match="page holds"):
        writer.write_blob({"x": "y" * stats_page.BLOB_BYTES_MAX})
    assert reader.read_blob()["state"] == "serving"
    reader.close()
    writer.close()


def test_a_writer_that_died_in_a_write_is_reported_in_bounded_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_page, "PAUSES_S", (0.0, 0.0, 0.0))
    writer = StatsWriter()
    reader = StatsReader(writer.readonly_fd())
    words = memoryview(writer._map).cast("Q")
    words[stats_page._SEQ_AT // 8] += 1
    words[stats_page._BLOB_SEQ_AT // 8] += 1
    with pytest.raises(StatsPageError, match="3 tries"):
        reader.read_counters()
    with pytest.raises(StatsPageError, match="3 tries"):
        reader.read_blob()
    words[stats_page._SEQ_AT // 8] += 1
    words[stats_page._BLOB_SEQ_AT // 8] += 1
    assert reader.read_counters() == (0, 0, 0)
    words[stats_page._CRC_AT // 8] ^= 1  # what a reordered store on Arm would look like
    words[stats_page._BLOB_LENGTH_AT // 8] = 1 << 40
    with pytest.raises(StatsPageError):
        reader.read_counters()
    with pytest.raises(StatsPageError):
        reader.read_blob()
    words.release()
    reader.close()
    writer.close()


def test_foreign_memory_is_refused() -> None:
    fd = shared_memory.create("orind-test", stats_page.SIZE)
    with pytest.raises(StatsPageError, match="not a stats page"):
        StatsReader(shared_memory.reopen_readonly(fd))
    os.close(fd)


def test_a_reader_cannot_write() -> None:
    writer = StatsWriter()
    reader = StatsReader(writer.readonly_fd())
    with pytest.raises(TypeError):
        struct.pack_into("Q", reader._bytes, 0, 1)
    assert json.dumps(reader.read_blob()) == "{}"
    reader.close()
    writer.close()
