"""Texts met in the field, and a sample of the JSON-Schema-Test-Suite (MIT, Julian Berman; licence in data/).

``cases.jsonl``: schemas that broke other engines, with texts that must and must not be reachable.
``json_schema_suite.jsonl``: (keyword, schema, [[instance, valid], ...]) of 2020-12 and draft 7.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmspec_agent.core.errors import SchemaError
from mmspec_agent.grammar.constraint import GrammarPlan
from mmspec_agent.grammar.plans import json_plan
from mmspec_agent.grammar.vocabulary import Vocabulary

DATA = Path(__file__).parent / "data"
CASES = [json.loads(line) for line in (DATA / "cases.jsonl").read_text("utf-8").splitlines()]


def reachable(plan: GrammarPlan, text: str) -> bool:
    """Whether some tokens under the masks spell exactly ``text``."""
    cursor, vocabulary, rest = plan.open(4000), plan.vocabulary, text.encode()
    while rest:
        options = [vocabulary.tokenize(rest)[0]]
        ends = range(min(len(rest), vocabulary.longest), 0, -1)
        options += [t for end in ends if (t := vocabulary.id_of(rest[:end])) is not None]
        token = next((t for t in options if cursor.mask().allows(t)), None)
        if token is None:
            return False
        cursor.advance(token)
        rest = rest[len(vocabulary.spelling[token]) :]
    return cursor.is_complete


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_cases_from_the_field(case: dict[str, Any], vocabulary: Vocabulary) -> None:
    if case.get("refused"):
        with pytest.raises(SchemaError):
            json_plan(vocabulary, case["schema"])
        return
    plan = json_plan(vocabulary, case["schema"])
    assert [text for text in case["valid"] if not reachable(plan, text)] == []
    assert [text for text in case["invalid"] if reachable(plan, text)] == []


@pytest.mark.parametrize("close_objects", [False, True])
def test_no_invalid_instance_is_accepted(close_objects: bool, vocabulary: Vocabulary) -> None:
    exact = refused = strict = 0
    for line in (DATA / "json_schema_suite.jsonl").read_text("utf-8").splitlines():
        _, schema, instances = json.loads(line)
        try:
            plan = json_plan(vocabulary, schema, close_objects=close_objects)
        except SchemaError:
            refused += 1
            continue
        verdicts = []
        for instance, valid in instances:
            tokens = vocabulary.tokenize(json.dumps(instance, ensure_ascii=False))
            matcher = plan._matcher.deep_copy()
            accepted = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
            assert valid or not accepted, (schema, instance)
            verdicts.append(accepted == valid)
        exact += all(verdicts)
        strict += not all(verdicts)
    assert exact > 4 * strict
    assert exact > refused
