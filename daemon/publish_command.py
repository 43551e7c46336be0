"""`orind publish`: the camera of `ipc/publish.py`, whose picture files become pixels as the compiler's do.

Called by the command line. The client library may not import kernels, so what decodes is handed to it here.
"""

from __future__ import annotations

import argparse

from ..ipc import publish
from ..kernels.picture_file import decode

add_arguments = publish.add_arguments


def run(args: argparse.Namespace) -> int:
    """Exit code: see publish.EXAMPLE."""
    return publish.run(args, decode)
