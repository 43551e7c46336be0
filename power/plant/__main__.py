"""`python -m orind.power.plant`: see runner.py."""

from __future__ import annotations

import sys

from .runner import main

sys.exit(main())
