"""Small bar and line charts."""

import cv2
import numpy as np
from numpy.typing import NDArray

from .scene import Chart

Canvas = NDArray[np.float32]
_LEFT, _RIGHT, _TOP, _BOTTOM = 22, 182, 16, 168


def bar_box(chart: Chart, index: int) -> tuple[float, float, float, float]:
    """left, top, right, bottom of a bar in units of 1/192 of the side."""
    step = (_RIGHT - _LEFT) / len(chart.values)
    left = _LEFT + step * (index + 0.2)
    return left, _height(chart.values[index]), left + step * 0.6, _BOTTOM


def _height(value: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * value / 10


def draw_chart(chart: Chart, canvas: Canvas, ids: NDArray[np.int8], scale: float) -> Canvas:
    """The canvas with axes and data; ids get the bar's index, or -3 along the line."""
    dark = float(canvas.mean()) < 110
    ink = (215, 215, 215) if dark else (50, 50, 50)
    faint = (90, 90, 90) if dark else (210, 210, 210)
    page = canvas.clip(0, 255).astype(np.uint8)
    width = max(1, round(scale))
    if chart.grid:
        for value in (2, 4, 6, 8, 10):
            _line(page, _LEFT, _height(value), _RIGHT, _height(value), faint, width, scale)
    if chart.kind == "bars":
        _bars(chart, page, ids, scale, ink)
    else:
        _curve(chart, page, ids, scale)
    _line(page, _LEFT, _TOP, _LEFT, _BOTTOM, ink, width, scale)
    _line(page, _LEFT, _BOTTOM, _RIGHT, _BOTTOM, ink, width, scale)
    return page.astype(np.float32)


def _line(
    page: NDArray[np.uint8], x0: float, y0: float, x1: float, y1: float,
    ink: tuple[int, int, int], width: int, scale: float,
) -> None:  # fmt: skip
    start, end = (round(x0 * scale), round(y0 * scale)), (round(x1 * scale), round(y1 * scale))
    cv2.line(page, start, end, ink, width, cv2.LINE_AA)


def _bars(
    chart: Chart, page: NDArray[np.uint8], ids: NDArray[np.int8], scale: float, ink: tuple[int, int, int]
) -> None:
    for index, (value, rgb) in enumerate(zip(chart.values, chart.rgbs)):
        left, top, right, bottom = (round(edge * scale) for edge in bar_box(chart, index))
        page[top:bottom, left:right] = rgb
        ids[top:bottom, left:right] = index
        text, face, height = str(value), cv2.FONT_HERSHEY_SIMPLEX, 0.5 * scale
        (w, _), _ = cv2.getTextSize(text, face, height, max(1, round(1.5 * scale)))
        origin = ((left + right - w) // 2, top - round(4 * scale))
        cv2.putText(page, text, origin, face, height, ink, max(1, round(1.5 * scale)), cv2.LINE_AA)


def _curve(chart: Chart, page: NDArray[np.uint8], ids: NDArray[np.int8], scale: float) -> None:
    xs = np.linspace(_LEFT + 10, _RIGHT - 10, len(chart.values))
    points = [(round(x * scale), round(_height(v) * scale)) for x, v in zip(xs, chart.values)]
    trace = np.zeros(page.shape[:2], np.uint8)
    line = np.array(points, np.int32)
    cv2.polylines(trace, [line], False, 255, max(2, round(4 * scale)))
    cv2.polylines(page, [line], False, chart.rgbs[0], max(2, round(4 * scale)), cv2.LINE_AA)
    ids[trace > 0] = -3
