"""Puts the tiny models of the core's tests within reach under importlib mode."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
