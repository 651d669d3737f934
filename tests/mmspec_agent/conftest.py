"""Puts this folder's helper modules and the tiny models of tests/core within reach under importlib mode."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "core")]
