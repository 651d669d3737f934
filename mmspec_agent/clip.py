"""The short clip that comes with the package: what demos and examples show where there is no camera."""

from pathlib import Path

LENGTH_S = 8.0
"""Eight seconds at 10 frames a second: a lamp goes on after 2 s, another scene at 4 s, and another at 6 s."""


def bundled_clip() -> Path:
    """An MP4 rendered by ``mmspec_agent.models.scenes``, 192 × 192 pixels."""
    return Path(__file__).parent / "models" / "data" / "scenes.mp4"
