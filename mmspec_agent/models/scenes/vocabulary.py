"""Names the renderer knows, and what each looks like: the closed world the reference model is taught."""

from typing import Final

RGB = tuple[int, int, int]

COLORS: Final[dict[str, tuple[RGB, ...]]] = {
    "red": ((255, 0, 0), (220, 20, 30), (200, 30, 30), (230, 50, 50)),
    "orange": ((255, 165, 0), (255, 140, 0), (245, 130, 30), (255, 128, 0)),
    "yellow": ((255, 255, 0), (250, 220, 40), (255, 235, 60), (255, 225, 0)),
    "green": ((0, 255, 0), (0, 128, 0), (40, 170, 70), (30, 140, 50), (50, 200, 80)),
    "blue": ((0, 0, 255), (30, 80, 220), (30, 110, 230), (0, 90, 200), (60, 130, 240)),
    "purple": ((128, 0, 128), (130, 50, 190), (110, 40, 160), (150, 60, 200)),
    "pink": ((255, 192, 203), (255, 105, 180), (255, 130, 180), (250, 150, 190)),
    "brown": ((150, 75, 0), (139, 69, 19), (120, 72, 35), (110, 60, 30)),
    "black": ((0, 0, 0), (20, 20, 20), (30, 30, 35)),
    "white": ((255, 255, 255), (245, 245, 245), (250, 248, 240)),
    "gray": ((128, 128, 128), (150, 150, 150), (110, 112, 115), (165, 165, 165)),
}
COLOR_NAMES: Final = tuple(COLORS)

SHAPES: Final = (
    "circle", "square", "triangle", "rectangle", "oval", "star", "heart", "diamond", "cross", "hexagon",
    "arrow", "moon", "house", "tree", "car", "cup", "fish", "flower", "lamp",
)  # fmt: skip
TEXTURES: Final = ("plain", "striped", "dotted", "checkered", "outlined")
SIZES: Final = ("small", "medium", "large")
RADII: Final[dict[str, tuple[float, float]]] = {"small": (11, 15), "medium": (20, 25), "large": (33, 44)}
"""Half extent of an object in units of 1/192 of the picture's side."""

MOTIONS: Final = ("still", "left", "right", "up", "down")
MOTION_STEPS: Final[dict[str, tuple[int, int]]] = {
    "still": (0, 0), "left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1),
}  # fmt: skip

CELLS: Final = (
    "top left", "top", "top right", "left", "center", "right", "bottom left", "bottom", "bottom right",
)  # fmt: skip
CELL_PHRASES: Final[dict[str, str]] = {
    "top left": "at the top left", "top": "at the top", "top right": "at the top right",
    "left": "on the left", "center": "in the center", "right": "on the right",
    "bottom left": "at the bottom left", "bottom": "at the bottom", "bottom right": "at the bottom right",
}  # fmt: skip

NUMBERS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WORDS: Final = (
    "STOP", "OPEN", "EXIT", "SALE", "CAFE", "TAXI", "BUS", "SHOP", "PARK", "HELP", "HOT", "COLD",
    "FREE", "GO", "SLOW", "NEWS", "BANK", "FOOD", "HOTEL", "WATER", "BOOKS", "MUSIC", "PIZZA", "CLOSED",
)  # fmt: skip
BACKGROUNDS: Final = ("flat", "gradient", "textured", "speckled", "day", "night")
TRENDS: Final = ("rising", "falling", "flat", "peak", "valley")
SIDE: Final = 192
"""Units a scene is laid out in; `render(size)` scales them."""


def plural(shape: str) -> str:
    """English plural of a shape's name (fish stays fish)."""
    if shape == "fish":
        return shape
    return shape + ("es" if shape.endswith(("s", "x")) else "s")


def article(phrase: str) -> str:
    """The phrase with `a` or `an` before it."""
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase
