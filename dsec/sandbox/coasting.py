"""Coasting: what `step` gives while the environment's process is being replaced.

Owns what is due meanwhile: the action that was sent and has no answer yet, how many steps were
answered with the cached observation, and an answer that came while something else was asked for.
How an answer is waited for is lanes.py's; what a step returns is tracked.py's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from dsec.sandbox.lanes import Lanes

Step = tuple[Any, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""


class Coasting:
    """One environment's, which may coast.

    Args:
        most: stale observations in a row.

    Attributes:
        due: an action was sent whose result `step` could not return.
        actions: a tree of arrays to check actions in that are not sent.
    """

    def __init__(self, lanes: Lanes, most: int) -> None:
        self._lanes = lanes
        self._most = most
        self._sent: Any = None
        self._count = 0
        self._kept: tuple[Step | None, Exception | None] | None = None
        layout = lanes.all_actions
        self.actions = layout.views(bytearray(max(1, layout.nbytes)))
        self.due = False

    def answer(self, action: Any) -> bool | None:
        """Send an action, or wait for the answer that is due in its place.

        Returns:
            None if the environment's process is away and a stale observation is to be returned;
            else whether the answer has more to tell than usual.
        """
        lanes = self._lanes
        if self.due and self._count >= self._most:
            return lanes.send(again=True)
        notable = lanes.send_or_leave(again=self.due)
        if notable is None:
            if not self.due:
                self.due, self._sent = True, copy.deepcopy(action)
            self._count += 1
        return notable

    def stale(self) -> dict[str, Any]:
        """The info of a stale observation. Only the first action of an outage was sent."""
        pending = self._count == 1
        return {"dsec": {"stale": True, "coasted": self._count, "action_pending": pending}}

    @property
    def holds(self) -> bool:
        """The answer that was due is here, and was not returned yet."""
        return self._kept is not None

    def keep(self, answer: Callable[[], Step]) -> None:
        """The answer has come: what it says, or raises, is for the step that `take`s it."""
        try:
            self._kept = answer(), None
        except Exception as error:
            self._kept = None, error

    def take(self) -> Step:
        """What `keep` was given. Nothing is due any more.

        Raises:
            Exception: what the environment raised in that step.
        """
        assert self._kept is not None, "asked before"
        (step, error), due, count, sent = self._kept, self.due, self._count, self._sent
        self.forget()
        if error is not None:
            raise error
        assert step is not None, "there is one or the other"
        if not due:
            return step
        *rest, info = step
        told = info.get("dsec", {})
        ours = told if isinstance(told, dict) else {"own": told}
        return (*rest, {**info, "dsec": {**ours, "coasted": count, "action": sent}})

    def forget(self) -> None:
        """Nothing is due any more: the answer was returned, or an episode begins."""
        self.due, self._sent, self._count, self._kept = False, None, 0, None
