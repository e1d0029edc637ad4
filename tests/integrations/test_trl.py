"""TRL's GRPOTrainer takes an isolated tool class for the original, if TRL is there.

It is not among what the tests install: with what it needs it is three hundred megabytes. What TRL
asks of a tool class is tested without it in test_tools.py.
"""

from __future__ import annotations

import os
import runpy
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason='TRL is not installed: pip install "dsec-kernel[trl]"')

import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import get_json_schema

from dsec.integrations.trl import close, isolated
from tests.integrations.tools import Shop

SCRIPT = Path(__file__).resolve().parents[2] / "examples/integrations/trl_grpo.py"
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # TRL's and transformers' own
def test_training_goes_on_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of GRPO, a rollout's process killed between them."""
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
    )
    pool = trainer._environment_pool[None]
    os.kill(pool[0]._env.call("pid"), signal.SIGKILL)
    trainer.train()
    assert trainer.state.global_step == 2 and len(pool) == 2
    assert (tmp_path / "tools.trace").read_text().count('"Counter.reset"') >= 4
    for each in pool:
        close(each)
