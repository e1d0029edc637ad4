"""GRPO of TRL with tools that may crash: only `isolated(...)` is new.

    python examples/integrations/trl_grpo.py --model Qwen/Qwen3-0.6B

Needs `pip install "dsec-kernel[trl]"` and a model that can call tools.
"""

from __future__ import annotations

import argparse
from typing import Any

from dsec.integrations.trl import isolated


class Counter:
    """A number to be brought to a target."""

    def __init__(self) -> None:
        self.value, self.target = 0, 0

    def reset(self, target: int = 3, **_row: object) -> str:
        """Begin anew; the row of the data set says what is wanted."""
        self.value, self.target = 0, target
        return f" The number is 0; bring it to {target}."

    def add(self, amount: int) -> str:
        """Add to the number.

        Args:
            amount: what to add.

        Returns:
            The number.
        """
        self.value += amount
        return str(self.value)

    def get_reward(self) -> float:
        """One, less the distance."""
        return 1.0 - abs(self.target - self.value)


def trainer(model: Any, tokenizer: Any = None, **settings: Any) -> Any:
    """A GRPOTrainer whose rollouts use isolated tools. `settings` are those of GRPOConfig."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    prompt = [{"role": "user", "content": "Use the tool."}]
    rows = Dataset.from_list([{"prompt": prompt, "target": 1 + i % 4} for i in range(64)])
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=GRPOConfig(**settings),
        train_dataset=rows,
        # `add` has no effect outside of its object, so it may be done again.
        environment_factory=isolated(Counter, idempotent=["add"], trace="tools.trace"),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B")
    trainer(parser.parse_args().model, output_dir="grpo", num_generations=4).train()
