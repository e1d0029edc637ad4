"""`reward: {objectives: …}`: what it stands for, and the sentences for what it can't be."""

from __future__ import annotations

import pytest

from dsec.config import dump, loads
from dsec.errors import ConfigError

AGENT = (
    "run: {steps: 10}\nagents:\n- name: a\n  env: {id: CartPole-v1}\n"
    "  policy: {entry: 'a:b'}\n  reward: "
)
TASK = "{task: {weight: 0.7}, safety: {weight: 0.3, type: sparse, entry: 'a.b:c'}}"


def test_objectives_stand_for_a_class_and_its_keywords() -> None:
    config = loads(
        f"{AGENT}{{objectives: {TASK}, kwargs: {{min_reward_samples: 9}}}}\n", "c"
    ).config
    reward = config.agents[0].reward
    assert reward.entry == "dsec.reward:RewardOrchestrator"
    assert reward.keywords() == {
        "min_reward_samples": 9,
        "objectives": {
            "task": {"weight": 0.7, "type": "dense"},
            "safety": {"weight": 0.3, "type": "sparse", "entry": "a.b:c"},
        },
    }
    assert loads(dump(config), "d").config == config
    assert loads(AGENT + "{kwargs: {x: 1}}\n", "c").config.agents[0].reward.keywords() == {"x": 1}


@pytest.mark.parametrize(
    ("reward", "fault"),
    [
        ("{objectives: {}}", "objectives: empty; at least one is needed"),
        ("{objectives: {task: {weight: 0.7}}}", "objectives: the weights add up to 0.7, not to 1"),
        ("{objectives: {t: {weight: -1}}}", "objectives.t.weight: must be more than 0, got -1"),
        ("{objectives: {t: {weight: .nan}}}", "objectives.t.weight: expected a finite number"),
        ("{objectives: {t: {type: dense}}}", "objectives.t.weight: missing"),
        ("{objectives: {t: {weight: 1, kind: x}}}", "objectives.t.kind: unknown key (known here"),
        ("{objectives: {t: {weight: 1, tipe: x}}}", "objectives.t.tipe: unknown key (did you mean"),
        ("{objectives: {t: {weight: 1, type: x}}}", "objectives.t.type: expected dense or sparse"),
        ("{objectives: {t: 1}}", "objectives.t: expected a mapping with weight, type and entry"),
        (
            f"{{entry: 'dsec.reward:EnvReward', objectives: {TASK}}}",
            "entry: give either entry or objectives",
        ),
        (
            f"{{objectives: {TASK}, kwargs: {{objectives: 1}}}}",
            "kwargs.objectives: they are beside kwargs already",
        ),
    ],
)
def test_a_mistake_gives_one_line(reward: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(AGENT + reward + "\n", "c")
    assert f"agents[0].reward.{fault}" in str(caught.value)
    assert len(str(caught.value).strip().splitlines()) == 1
