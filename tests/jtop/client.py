"""A process of its own with jtop's own client: one line of JSON for each sample that the service sends.

Started by service.py inside the namespaces. It alone imports jtop (AGPL-3.0), and nothing of orind.
"""

from __future__ import annotations

import json
import sys

from jtop import jtop

with jtop(interval=float(sys.argv[1])) as board:
    told = {
        "board": {key: board.board[key] for key in ("hardware", "cpu")},
        "profiles": {name: board.fan.all_profiles(name) for name in board.fan},
        "modes": {"models": board.nvpmodel.get_all_nvpmodels(), "default": board.nvpmodel.get_default()},
    }
    while board.ok():
        # `json` is all that the service sends, `stats` what jtop makes of it for its summary
        shown = {**told, **json.loads(board.json()), "stats": json.loads(board.json(stats=True))}
        print(json.dumps(shown), flush=True)
