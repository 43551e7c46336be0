"""What an engine needs of ipc must not cost it zmq, yaml or pydantic: its start-up is a part of every failover."""

from __future__ import annotations

import subprocess
import sys

ENGINE_SIDE = (
    "channel", "decode_messages", "engine_messages", "errors", "fd_passing", "histogram", "message_text", "results",
    "shared_memory", "slots", "stats_page", "clock", "lock",
)


def test_engine_side_modules_import_nothing_heavy() -> None:
    code = (
        "import importlib, sys\n"
        f"for name in {ENGINE_SIDE!r}: importlib.import_module('orind.ipc.' + name)\n"
        "print([name for name in ('zmq', 'yaml', 'pydantic', 'onnx', 'PIL') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
