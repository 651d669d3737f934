"""Ask a local model about a webcam, frame by frame; without a camera, about the clip that comes with the package.

python examples/webcam_qa.py [camera, URL or file] [model]
"""

from __future__ import annotations

import sys

from mmspec_agent import Engine, SourceError, bundled_clip, open_source

source = sys.argv[1] if len(sys.argv) > 1 else "0"
model = sys.argv[2] if len(sys.argv) > 2 else "reference-vlm"

try:
    frames = open_source(source, open_timeout=5.0)
except SourceError as error:
    print(f"no camera ({error}); watching the bundled clip instead")
    frames = open_source(bundled_clip(), fps=1)

engine = Engine.from_pretrained(model)
questions = ["What do you see in the picture?", "How many objects are there?"]

# Both questions share each frame: it is encoded and prefilled once, and every answer starts from the one before.
with engine.watch(frames, questions, max_new_tokens=48) as watch:
    for answer in watch:
        drafted = answer.stats.emitted - answer.stats.sources["target"]
        print(f"{answer.time_s:6.2f} s  {answer.question}")
        print(f"          {answer.text}")
        print(
            f"          {answer.decision.reason}; {drafted} of {answer.stats.emitted} tokens drafted, "
            f"{answer.stats.forwards} forwards, lag {answer.lag_s:.2f} s"
        )
        if watch.counts.answers >= 12:
            break
