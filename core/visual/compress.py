"""Fewer visual tokens for a picture (SYSTEM.md V6; 004 §3.1): lossy for the target, so opt-in by name.

What stands out keeps cluster centres, what does not is pooled over a grid, and a hundredth of the tokens stay as
they are. Every new token is a mean of old ones, so the same weights shorten features, deepstack features and places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..masks import IntArray
from .families import PictureInput
from .features import PictureFeatures

LOSSY_NAME = "lossy_visual_tokens"
CLUSTERS = 16
GRID = 4
ORIGINALS = 0.01
ROUNDS = 8
"""Rounds of K-means: centres have settled by then."""


@dataclass(frozen=True)
class Mixture:
    """``weights`` [k, n]: each new token as a mean of old ones; ``places`` [k, 2]: its mean row and column."""

    weights: torch.Tensor
    places: torch.Tensor


def target_count(count: int, keep: int | float) -> int:
    """Tokens to keep of ``count``: a number of tokens, or a share below 1; at least one, never more than there are."""
    wanted = math.ceil(count * keep) if isinstance(keep, float) and keep < 1 else int(keep)
    return max(1, min(count, wanted))


def layout(count: int, grid: tuple[int, int, int] | None) -> tuple[int, int]:
    """(height, width) in which the tokens of a picture lie; a single row where nothing better is known."""
    if grid is not None:
        return grid[0] * grid[1], grid[2]
    side = math.isqrt(count)
    return (side, side) if side * side == count else (1, count)


def saliency(rows: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """[n] how much each token differs from its surroundings: contrast, which needs no network of its own."""
    field = torch.nn.functional.normalize(rows.float(), dim=-1)
    image = field.T.reshape(1, -1, *shape)
    near = torch.nn.functional.avg_pool2d(image, 5, stride=1, padding=2, count_include_pad=False)
    local = (image - near).square().sum(dim=1).flatten()
    overall = (field - field.mean(dim=0)).square().sum(dim=1)
    return local + overall


def mixture(rows: torch.Tensor, keep: int, shape: tuple[int, int]) -> Mixture:
    """How ``keep`` tokens are made of ``rows`` [n, width] that lie in ``shape``; in reading order."""
    count = len(rows)
    places = torch.stack(torch.meshgrid(torch.arange(shape[0]), torch.arange(shape[1]), indexing="ij"), -1)
    flat = places.reshape(count, 2).float().to(rows.device)
    scores = saliency(rows, shape)
    order = scores.argsort(descending=True, stable=True)
    originals = min(keep, max(1, round(ORIGINALS * count)))
    cells = min(GRID, math.isqrt(max(0, keep - originals) // 2)) if keep - originals >= 2 else 0
    clusters = max(0, min(keep - originals - cells * cells, count - originals))
    salient = order[: max(originals + clusters, count // 2)]
    groups = [order[i : i + 1] for i in range(originals)]
    if clusters:
        groups += _clusters(rows, flat, salient, clusters)
    groups += _cells(flat, order[len(salient) :], cells, shape)
    # Empty cells and clusters leave room: the next most salient tokens stay as they are.
    spare = iter(order[originals:])
    while len(groups) < keep:
        groups.append(next(spare).reshape(1))
    weights = torch.zeros(keep, count, device=rows.device)
    for index, group in enumerate(groups[:keep]):
        weights[index, group] = 1 / len(group)
    reading = _reading_order(weights @ flat, shape)
    return Mixture(weights[reading], (weights @ flat)[reading])


def compress(features: PictureFeatures, keep: int, shape: tuple[int, int]) -> PictureFeatures:
    """Features of ``keep`` tokens."""
    weights = mixture(features.rows, keep, shape).weights

    def mixed(values: torch.Tensor) -> torch.Tensor:
        return (weights @ values.float()).to(values.dtype)

    return replace(features, rows=mixed(features.rows), deep=tuple(mixed(deep) for deep in features.deep))


def compressed(picture: PictureInput, keep: int, encode: Callable[[PictureInput], PictureFeatures]) -> PictureInput:
    """A picture of ``keep`` placeholders instead of its own ``count``, computed when it is needed.

    Rotary positions spread evenly over the picture's extent, in reading order, and text goes on behind that extent
    as it would behind the whole picture.
    """
    shape = layout(picture.count or 0, picture.grid)

    def load() -> PictureFeatures:
        return compress(encode(picture), keep, shape)

    coordinates = _coordinates(picture, keep) if picture.grid is not None else None
    return replace(
        picture, key=f"{picture.key}:{keep}", load=load, count=keep, coordinates=coordinates, lossy=LOSSY_NAME
    )


def _coordinates(picture: PictureInput, keep: int) -> IntArray:
    """[3, keep] renormalised positions: the picture's grid, thinned evenly."""
    assert picture.grid is not None
    whole = np.indices(picture.grid, dtype=np.int64).reshape(3, -1)
    return whole[:, np.linspace(0, whole.shape[1] - 1, keep).round().astype(np.int64)]


def _clusters(rows: torch.Tensor, places: torch.Tensor, salient: torch.Tensor, count: int) -> list[torch.Tensor]:
    """K-means over features and places of the salient tokens, centres drawn farthest first: no chance in it."""
    extent = places.max().clamp_min(1)
    points = torch.cat([torch.nn.functional.normalize(rows[salient].float(), dim=-1), places[salient] / extent], -1)
    centres = points[:1]
    for _ in range(count - 1):
        distances = torch.cdist(points, centres).amin(dim=1)
        centres = torch.cat([centres, points[distances.argmax()][None]])
    for _ in range(ROUNDS):
        nearest = torch.cdist(points, centres).argmin(dim=1)
        members = torch.nn.functional.one_hot(nearest, count).float()
        sizes = members.sum(dim=0)[:, None]
        centres = torch.where(sizes > 0, (members.T @ points) / sizes.clamp_min(1), centres)
    nearest = torch.cdist(points, centres).argmin(dim=1)
    return [group for index in range(count) if len(group := salient[nearest == index])]


def _cells(places: torch.Tensor, rest: torch.Tensor, cells: int, shape: tuple[int, int]) -> list[torch.Tensor]:
    if not cells or not len(rest):
        return []
    down, across = (min(cells, size) for size in shape)
    row = (places[rest, 0] * down / shape[0]).long()
    column = (places[rest, 1] * across / shape[1]).long()
    cell = row * across + column
    return [rest[cell == index] for index in range(down * across) if bool((cell == index).any())]


def _reading_order(places: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Row by row: rows of the mean places are told apart in bands, columns within a band."""
    bands = (places[:, 0] * min(8, shape[0]) / shape[0]).long()
    return (bands * (shape[1] + 1) + places[:, 1]).argsort(stable=True)
