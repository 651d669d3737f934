"""Rendered scenes with ground truth: what the reference vision-language model is taught and measured on (M8)."""

from .check import check_description
from .describe import descriptions, full_description
from .questions import Question, check_answer, questions
from .sample import random_scene
from .scene import Background, Chart, Scene, Sign, Thing

__all__ = [
    "Background",
    "Chart",
    "Question",
    "Scene",
    "Sign",
    "Thing",
    "check_answer",
    "check_description",
    "descriptions",
    "full_description",
    "questions",
    "random_scene",
]
