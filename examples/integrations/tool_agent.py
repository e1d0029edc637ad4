"""An agent that calls tools, without a library of agents: its tools run in a process of their own.

    python examples/integrations/tool_agent.py

What stands for the language model here is a list of what it says; put a model's answers in its
place. A tool that kills its process is an error that the model is told, and nothing else.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dsec.errors import ToolUnresolved
from dsec.integrations.trl import close, isolated, unresolved


class Workshop:
    """Tools that remember, and one with a bug in C."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def reset(self) -> str:
        """Begin anew."""
        self.notes = []
        return "An empty notebook."

    def note(self, text: str) -> str:
        """Write something down.

        Args:
            text: what to write.
        """
        self.notes.append(text)
        return f"{len(self.notes)} notes"

    def read(self) -> str:
        """Read all notes."""
        return "; ".join(self.notes)

    def solve(self, task: str) -> str:
        """Solve a task by a library of which not all is well.

        Args:
            task: what to solve.
        """
        ctypes.string_at(0)  # a segmentation fault
        return f"{task}: solved"


SAID = (
    '{"tool": "note", "text": "tea"}',
    '{"tool": "solve", "task": "x**2 = 4"}',
    '{"tool": "note", "text": "without the solver, then"}',
    '{"tool": "read"}',
)


def main(trace: Path, said: Iterable[str] = SAID) -> list[dict[str, Any]]:
    """Do what the model says, tool call by tool call; return the conversation."""
    tools = isolated(Workshop, idempotent=["read"], trace=trace, timeout_s=30.0)()
    talk = [{"role": "user", "content": tools.reset()}]
    for words in said:
        call = json.loads(words)
        talk.append({"role": "assistant", "content": words})
        try:
            answer = getattr(tools, call.pop("tool"))(**call)
        except ToolUnresolved as error:
            answer = f"error: {error}"
        talk.append({"role": "tool", "content": answer})
    close(tools)
    for each in talk:
        print(f"{each['role']:9}  {each['content']}")
    for intent in unresolved(trace):
        print(f"unresolved: {intent.tool}({intent.args}, {intent.kwargs})")
    return talk


if __name__ == "__main__":
    main(Path("tools.trace"))
