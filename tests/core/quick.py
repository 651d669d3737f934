"""Walked tables are long: some of their rows stay in the quick part, the others are marked slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int, values: Iterable[Any]) -> list[Any]:
    """Values for ``parametrize``, of which every ``step``-th, from the first on, is not marked slow."""
    return [
        value if index % step == 0 else pytest.param(value, marks=pytest.mark.slow)
        for index, value in enumerate(values)
    ]
