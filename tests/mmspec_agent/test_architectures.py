"""The sweep over the types of transformers: nothing wrong, nothing raw, and the table in the docs says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmspec_agent.bench.architectures import OUTCOMES, ArchitectureOptions, Oracle, causal_types, judge, run
from mmspec_agent.models.progress import Silent

DOCS = Path(__file__).parents[2] / "docs" / "architectures.md"


def documented() -> dict[str, str]:
    """Outcome of each type in the table of the docs."""
    found: dict[str, str] = {}
    for outcome, count, names in re.findall(r"^\| ([a-z ]+) \| (\d+) \| (.+) \|$", DOCS.read_text(), re.MULTILINE):
        listed = names.split(", ")
        assert outcome in OUTCOMES
        assert len(listed) == int(count)
        found |= dict.fromkeys(listed, outcome)
    return found


def test_the_docs_name_only_types_that_there_are() -> None:
    table = documented()
    assert set(table) == set(causal_types())
    assert "wrong" not in table.values()
    assert "error" not in table.values()
    assert list(table.values()).count("equal") >= 80


@pytest.mark.parametrize(
    "name", ["llama", "gemma3_text", "granitemoe_swa", "mimo_v2_flash", "gpt_neo", "mamba", "xlm", "phi4_multimodal"]
)
def test_a_type_is_what_the_docs_say(name: str) -> None:
    verdict = judge(name)
    assert verdict.outcome == documented()[name], verdict
    assert verdict.accepted > 20 or verdict.outcome != "equal"


@pytest.mark.slow
def test_a_third_of_all_types_are_what_the_docs_say() -> None:
    report = run(ArchitectureOptions(step=3), Silent())
    table = documented()
    assert not [one for one in report.details["types"] if one["outcome"] != table[one["name"]]]
    assert report.arms["wrong"] == 0
    assert report.arms["error"] == 0


def test_the_oracle_branches_at_every_node() -> None:
    from mmspec_agent.core.drafters.base import DraftView

    oracle = Oracle()
    oracle.truth = list(range(5, 25))
    tree = oracle.propose(DraftView((5, 6), 2), 8)
    assert len(tree) == 8
    assert tree.depth == 4
    assert all(tree.parents.count(parent) == 2 for parent in set(tree.parents))
