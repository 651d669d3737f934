"""The claims of the calls benchmark on the reference model, a few tasks in fp32."""

from __future__ import annotations

import pytest
from unhurried import Unhurried

from mmspec_agent.bench.call_arms import ALL, HF, PLAIN, RULE_A, CallArms
from mmspec_agent.bench.call_tasks import load_tasks
from mmspec_agent.models import catalog
from mmspec_agent.models.resolve import load_model


def reference_lm_is_here() -> bool:
    model = catalog.offline_model("reference-lm")
    return model is not None and model.is_ready()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.reference,
    pytest.mark.skipif(not reference_lm_is_here(), reason="reference-lm is not here: mmspec models get reference-lm"),
]


def test_every_arm_writes_the_same_tokens_and_drafts_save_most_forwards() -> None:
    arms = CallArms(*load_model("reference-lm", dtype="fp32"), 128)
    arms.engine.controller = Unhurried()
    forwards = {ALL: 0, PLAIN: 0}
    for task in load_tasks(None)[:3]:
        called = {name: arms.call(name, task) for name in (HF, PLAIN, RULE_A, ALL)}
        assert len({tuple(one.tokens) for one in called.values()}) == 1
        assert all(task.is_valid(one.calls) for one in called.values())
        assert called[ALL].forwards <= called[RULE_A].forwards <= called[PLAIN].forwards
        for name in forwards:
            forwards[name] += called[name].forwards
        again = arms.call_in_session(task)
        assert again.tokens == called[ALL].tokens
        assert again.reused > 0
    assert forwards[ALL] < 0.4 * forwards[PLAIN]
