"""What a picture holds: frozen ground truth, from which pixels, questions and answers are made."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .vocabulary import CELLS, COLORS, RGB, SIDE

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class Thing:
    """One object. x, y, radius in units of 1/192 of the side; angle in degrees."""

    shape: str
    color: str
    rgb: RGB
    size: str
    x: float
    y: float
    radius: float
    texture: str = "plain"
    second: RGB = (255, 255, 255)
    texture_angle: int = 0
    angle: float = 0.0
    motion: str = "still"
    edge: RGB | None = None

    @property
    def cell(self) -> str:
        """Which of the nine cells of the picture holds the centre."""
        column = min(2, max(0, int(self.x * 3 / SIDE)))
        row = min(2, max(0, int(self.y * 3 / SIDE)))
        return CELLS[row * 3 + column]


@dataclass(frozen=True)
class Background:
    """kind is one of `BACKGROUNDS`; color is named for flat backgrounds only."""

    kind: str
    rgb: RGB
    rgb2: RGB
    color: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class Sign:
    """A plate with a word, centred at x, y."""

    word: str
    x: float
    y: float
    font: int
    ink: RGB = (0, 0, 0)
    plate: RGB = (255, 255, 255)

    @property
    def place(self) -> str:
        return "top" if self.y < SIDE / 2 else "bottom"


@dataclass(frozen=True)
class Chart:
    """Bars (values 1-9, one colour each) or a line (values 0-9, one colour, a trend)."""

    kind: str
    values: tuple[int, ...]
    colors: tuple[str, ...]
    rgbs: tuple[RGB, ...]
    trend: str = ""
    grid: bool = True


@dataclass(frozen=True)
class Scene:
    """A picture's ground truth. `render` is a pure function of the fields.

    aspect: how a picture of other proportions was squeezed into the square (0.75: narrower than it was).
    """

    seed: int
    background: Background
    things: tuple[Thing, ...] = ()
    sign: Sign | None = None
    chart: Chart | None = None
    noise: float = 0.0
    noise_seed: int = 0
    blur: float = 0.0
    exposure: float = 1.0
    aspect: float = 1.0

    @property
    def kind(self) -> str:
        """`objects`, `bars` or `line`."""
        return "objects" if self.chart is None else self.chart.kind

    @property
    def noisy(self) -> bool | None:
        """True or False where it can be told, None between."""
        return True if self.noise >= 20 else False if self.noise <= 6 else None

    def render(self, size: int = SIDE) -> Image:
        """The picture, uint8 RGB [size, size, 3]."""
        from .draw import draw

        return draw(self, size)[0]

    def render_with_ids(self, size: int = SIDE) -> tuple[Image, NDArray[np.int8]]:
        """The picture and, per pixel, which thing (or bar) covers it; -1 background, -2 sign, -3 line."""
        from .draw import draw

        return draw(self, size)

    def with_(self, **changes: Any) -> "Scene":
        """The same scene with some fields replaced."""
        return replace(self, **changes)

    def with_thing(self, index: int, **changes: Any) -> "Scene":
        """The same scene with one thing edited; a new `color` brings its first palette entry unless `rgb` is given."""
        if "color" in changes and "rgb" not in changes:
            changes["rgb"] = COLORS[changes["color"]][0]
        things = list(self.things)
        things[index] = replace(things[index], **changes)
        return replace(self, things=tuple(things))
