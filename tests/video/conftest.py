"""Puts the tiny models of the core's tests, and this folder's helpers, within reach under importlib mode."""

import sys
from pathlib import Path

for folder in (Path(__file__).parents[1] / "core", Path(__file__).parent):
    sys.path.insert(0, str(folder))
