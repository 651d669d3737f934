"""What compressed pictures cost in accuracy (SYSTEM.md V6): questions on unseen scenes at several ratios."""

from __future__ import annotations

from typing import Any

from PIL import Image

from mmspec_agent.engine import Engine
from mmspec_agent.models.progress import Progress
from mmspec_agent.models.scenes import Question, check_answer, questions, random_scene

from .common import counted
from .image_memory import asked

SEEDS = 930_000_000
KEPT: tuple[int | None, ...] = (None, 64, 36, 16)
"""Visual tokens a picture, None for all of them."""

QUESTIONS_A_SCENE = 5
NEW_TOKENS = 24


def accuracy_table(engine: Engine, scenes: int, progress: Progress) -> list[dict[str, Any]]:
    """Share of right answers, and prompt tokens, for each number of visual tokens kept."""
    rows: list[dict[str, Any]] = [{"kept": kept, "right": 0, "asked": 0, "prompt_tokens": 0} for kept in KEPT]
    for index in counted(range(scenes), progress, f"{scenes} scenes, {len(KEPT)} compression ratios", scenes):
        scene = random_scene(SEEDS + index)
        picture = Image.fromarray(scene.render())
        for row in rows:
            for question in _varied(questions(scene, seed=7)):
                options: dict[str, Any] = {} if row["kept"] is None else {"lossy_visual_tokens": row["kept"]}
                reply = engine.chat(asked(picture, question.text), max_new_tokens=NEW_TOKENS, **options)
                row["right"] += check_answer(question, reply.text)
                row["asked"] += 1
                row["prompt_tokens"] += reply.stats.prompt_tokens
    return [
        {
            "visual_tokens": "all" if row["kept"] is None else row["kept"],
            "accuracy": row["right"] / max(1, row["asked"]),
            "questions": row["asked"],
            "prompt_tokens": row["prompt_tokens"] / max(1, row["asked"]),
        }
        for row in rows
    ]


def _varied(found: list[Question]) -> list[Question]:
    """The first question of each kind, then the others."""
    by_kind = {question.kind: question for question in reversed(found)}
    first = list(by_kind.values())
    return (first + [question for question in found if question not in first])[:QUESTIONS_A_SCENE]
