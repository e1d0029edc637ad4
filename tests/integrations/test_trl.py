"""TRL's GRPOTrainer takes an isolated tool class for the original."""

from __future__ import annotations

import os
import runpy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

# Nothing is fetched and nobody is told: these are read when the libraries are imported.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from dsec.integrations.trl import close, isolated
from tests.integrations.tools import Fragile, Shop

SCRIPT = Path(__file__).resolve().parents[2] / "examples/integrations/trl_grpo.py"
PROMPT = [{"role": "user", "content": "Use the tool."}]
MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>")


def tokenizer() -> Any:
    """Bytes, with Qwen3's marks and chat template: the one thing of a model that TRL looks at."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE({each: i for i, each in enumerate(letters)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=bytewise, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    made.add_special_tokens({"additional_special_tokens": [*MARKS[1:2], *MARKS[3:]]})
    template = Path(trl.__file__).parent / "chat_templates/qwen3.jinja"
    made.chat_template = template.read_text()
    return made


def model(tokens: Any) -> Any:
    """The smallest Qwen3 there is, with random weights."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokens),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            eos_token_id=tokens.eos_token_id,
            pad_token_id=tokens.pad_token_id,
        )
    )


def test_the_schemas_of_the_tools_are_the_same() -> None:
    tools = isolated(Shop)()
    try:
        for name in ("buy", "look", "order", "add"):
            assert get_json_schema(getattr(tools, name)) == get_json_schema(getattr(Shop(), name))
    finally:
        close(tools)


def variety(completions: list[Any], environments: list[Any], **_more: object) -> list[float]:
    """A reward that differs between completions, so that there is something to learn."""
    for each in environments:
        each.count()
    return [float(len({*str(each[-1]["content"])})) for each in completions]


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch, *, dies_at: int) -> dict[str, Any]:
    """Weights before and after four steps of GRPO; a tool's process dies in a rollout, or none."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    fragile = isolated(Fragile, idempotent=["count"])
    torch.manual_seed(5)
    tokens = tokenizer()
    learner = model(tokens)
    before = {name: each.clone() for name, each in learner.state_dict().items()}
    trainer = GRPOTrainer(
        model=learner,
        processing_class=tokens,
        reward_funcs=variety,
        args=GRPOConfig(
            output_dir=str(folder / "out"),
            num_generations=2,
            per_device_train_batch_size=2,
            max_completion_length=8,
            max_steps=4,
            learning_rate=0.1,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": PROMPT} for _ in range(16)]),
        environment_factory=partial(fragile, dies_at, str(folder / "died")),
    )
    trainer.train()
    pool = trainer._environment_pool[None]
    counts = [each.total() for each in pool]
    for each in pool:
        close(each)
    assert trainer.state.global_step == 4
    return {"before": before, "after": learner.state_dict(), "counts": counts}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # TRL's and transformers' own
def test_training_with_a_death_in_a_rollout_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    whole = trained(tmp_path / "whole", monkeypatch, dies_at=-1)
    hurt = trained(tmp_path / "hurt", monkeypatch, dies_at=2)
    assert not (tmp_path / "whole/died").exists()
    assert (tmp_path / "hurt/died").exists(), "the fault has happened"
    assert hurt["counts"] == whole["counts"]
    same = {name for name, each in whole["after"].items() if torch.equal(each, hurt["after"][name])}
    assert same == {*whole["after"]}
    learnt = {n for n, each in whole["after"].items() if not torch.equal(each, whole["before"][n])}
    assert learnt, "nothing was learnt: equal weights say nothing"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_script_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokens = tokenizer()
    trainer = runpy.run_path(str(SCRIPT))["trainer"](
        model(tokens),
        tokens,
        output_dir=str(tmp_path / "out"),
        num_generations=2,
        per_device_train_batch_size=2,
        max_completion_length=8,
        max_steps=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer.train()
    pool = trainer._environment_pool[None]
    assert trainer.state.global_step == 2 and len(pool) == 2
    assert (tmp_path / "tools.trace").read_text().count('"Counter.reset"') >= 4
    for each in pool:
        close(each)
