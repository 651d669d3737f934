"""Ring when the answer changes: every frame is looked at, and only news is told.

python examples/doorbell.py [camera, URL or file] [question] [model]
"""

from __future__ import annotations

import sys

from mmspec_agent import Engine, WatchAnswer, bundled_clip

source = sys.argv[1] if len(sys.argv) > 1 else str(bundled_clip())
question = sys.argv[2] if len(sys.argv) > 2 else "Describe the picture."
model = sys.argv[3] if len(sys.argv) > 3 else "reference-vlm"


def ring(answer: WatchAnswer) -> None:
    """What to do on news: send a message, start a recording, …"""
    print(f"ding dong at {answer.time_s:.1f} s: {answer.text}")


engine = Engine.from_pretrained(model)
with engine.watch(source, question, fps=2, on_change=ring, max_new_tokens=24) as watch:
    for _ in watch:
        pass
print(f"{watch.counts.answers} frames answered, {watch.counts.yielded} of them news")
