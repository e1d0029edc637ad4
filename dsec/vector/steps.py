"""What all faces of a vector have in common: actions checked and sent, answers taken in, requests.

Owns the order of calls (nothing is asked for while a step is under way), which environments have
ended, and what came from each of them, one after the other. How that is told is a convention of
whoever asks: Gymnasium's is env.py's, others are in `dsec.integrations`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from dsec.errors import EnvironmentLost, InvalidAction, LayoutError
from dsec.ipc.layout import FLAG_FRESH, FLAG_INFRA, FLAG_TERMINATED, FLAG_TRUNCATED
from dsec.sandbox import remote
from dsec.sandbox.lanes import Lanes
from dsec.sandbox.trees import arrays

ENDS = FLAG_TERMINATED | FLAG_TRUNCATED
_OURS = frozenset(("reset_info", "infra_failure"))


@dataclass(slots=True)
class Said:
    """What one environment has told beside its observation, reward and ends.

    Attributes:
        info: as the environment gave it; may be empty.
        ended: its episode has ended and the next one has begun in the same step; then
            `final` is the last observation and `reset_info` what the reset told.
        ours: what dsec has to say of it: `infra_failure`, where its episode was lost.
    """

    info: dict[str, Any]
    ended: bool = False
    final: Any = None
    reset_info: dict[str, Any] | None = None
    ours: dict[str, Any] | None = None


class Steps:
    """The steps of all environments of a vector.

    Attributes:
        count: environments in all.
        obs: a tree of arrays (count, ...), written over by each step.
        reward: float64 (count,), written over by each step.
        terminated, truncated: bool (count,); fresh arrays after each step.
    """

    def __init__(self, lanes: Lanes, mode: AutoresetMode) -> None:
        self.lanes = lanes
        self.mode = mode
        self.count, self.width = lanes.count, lanes.width
        self.obs, self.reward = lanes.obs, lanes.reward
        self.terminated, self.truncated = np.zeros((2, lanes.count), np.bool_)
        self.pending = False
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._disabled = mode is AutoresetMode.DISABLED
        self._must_reset = False
        self._over = np.zeros(lanes.count, np.bool_)
        self._floats = [each for each in arrays(lanes.actions) if each.dtype.kind in "fc"]

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Around every use. Raises what `Lanes.enter` does."""
        self.lanes.enter()
        try:
            yield
        finally:
            self.lanes.leave()

    # ------------------------------------------------------------ steps

    def step(self, actions: Any) -> bool:
        """Step all; return whether any has something to tell (`told`).

        Raises:
            InvalidAction: actions that don't fit the space, or are not numbers; nothing was sent.
            ResetNeeded: with autoreset disabled, some have ended and were not reset.
        """
        self._prepare(actions)
        return self._taken(self.lanes.send())

    def begin(self, actions: Any) -> None:
        """Send the actions; `finish` is to follow. Raises what `step` does."""
        self._prepare(actions)
        self.lanes.send_only()
        self.pending = True

    def finish(self, timeout: float | None = None) -> bool:
        """Wait for what was begun; return what `step` does.

        Raises:
            NoAsyncCallError: nothing was begun.
            SandboxTimeout: not all have answered within `timeout` seconds; call it again.
        """
        if not self.pending:
            raise NoAsyncCallError("step_wait without step_async", "step")
        notable = self.lanes.wait(timeout)
        self.pending = False
        return self._taken(notable)

    def _prepare(self, actions: Any) -> None:
        if self.pending:
            self.check_idle()
        if self._must_reset:
            raise ResetNeeded("an environment was lost; call reset() for all of them")
        lanes = self.lanes
        if lanes.busy:
            lanes.settle()
        if self._disabled and self._over.any():
            raise ResetNeeded(
                f"environments {np.flatnonzero(self._over).tolist()} have ended; reset them with"
                ' options={"reset_mask": ...}'
            )
        try:
            lanes.all_actions.write_batch(lanes.actions, actions)
        except LayoutError as error:
            raise InvalidAction(str(error)) from None
        for array in self._floats:
            if np.isnan(array).any():
                raise InvalidAction("actions: some are not a number (NaN)")

    def _taken(self, notable: bool) -> bool:
        if not notable:  # nothing has ended, either: an end has a last observation to tell
            self._over, self.terminated, self.truncated = np.zeros((3, self.count), np.bool_)
            return False
        flags = self.lanes.flags
        self.terminated = (flags & FLAG_TERMINATED) != 0
        self.truncated = (flags & FLAG_TRUNCATED) != 0
        self._over = self.terminated | self.truncated
        return True

    def told(self) -> list[tuple[int, Said]]:
        """What environments have to tell of a step, in their order.

        Raises:
            Exception: what an environment itself raised.
        """
        lanes = self.lanes
        came = {lane: lanes.told(lane) for lane in lanes.telling}
        for _, infos in came.values():
            raised = remote.raised(infos[0]) if "dsec" in infos[0] else None
            if raised is not None:
                raise raised
        said = []
        flags = lanes.flags.tolist()
        for lane, (finals, infos) in came.items():
            for j, info in enumerate(infos):
                i = lane * self.width + j
                if not (self._same_step and flags[i] & ENDS):
                    said.append((i, Said(info)))
                    continue
                own: Any = info.pop("dsec", {})
                if not (isinstance(own, dict) and own.keys() <= _OURS):
                    info["dsec"], own = own, {}
                reset_info = own.pop("reset_info", {})
                said.append((i, Said(info, True, finals[j], reset_info, own)))
        return said

    # ------------------------------------------------------------ resets

    def reset(
        self, seeds: Sequence[int | None], mask: NDArray[np.bool_], options: Any
    ) -> list[tuple[int, dict[str, Any]]]:
        """Reset the environments of the mask; return their infos.

        Raises:
            EnvironmentLost: some were lost in it; reset all.
            TypeError: options that can't be carried.
        """
        remote.check_carried(options, "options")
        lanes, width = self.lanes, self.width
        asked = {}
        for lane in range(self.count // width):
            part = slice(lane * width, (lane + 1) * width)
            if mask[part].any():
                asked[lane] = {
                    "do": "reset",
                    "seeds": list(seeds[part]),
                    "mask": mask[part].tolist(),
                    "options": options,
                }
        self.check_idle()
        told = lanes.request_each(asked)
        lost = (lanes.flags & (FLAG_INFRA | FLAG_FRESH)) == FLAG_INFRA
        if (lost & mask).any():
            self._must_reset = True
            raise EnvironmentLost("environments were lost in reset; call it for all of them")
        self._must_reset = self._must_reset and not mask.all()
        self._over &= ~mask
        return [
            (lane * width + j, info)
            for lane, (_, own) in told.items()
            for j, info in enumerate(own)
            if mask[lane * width + j]
        ]

    # ------------------------------------------------------------ requests

    def ask(self, asked: dict[str, Any], indices: Sequence[int] | None = None) -> list[Any]:
        """Ask all environments, or those of `indices`, for the same; return an answer for each,
        in the order of `indices`, in the form that it came in (`remote.from_wire`).

        Raises:
            Exception: what an environment itself raised.
            EnvironmentLost: some were lost in it; reset all.
        """
        if indices is None:
            return self.ask_each(dict.fromkeys(range(self.count // self.width), asked))
        width = self.width
        wanted = {i // width for i in indices}
        each = {}
        for lane in sorted(wanted):
            mask = [lane * width + j in indices for j in range(width)]
            each[lane] = asked if all(mask) else {**asked, "mask": mask}
        answers = iter(self.ask_each(each))
        found = {lane * width + j: next(answers) for lane in each for j in range(width)}
        return [found[i] for i in indices]

    def ask_each(self, asked: Mapping[int, dict[str, Any]]) -> list[Any]:
        """As `ask`, something else of each lane (process); an answer for each environment."""
        with self.using():
            self.check_idle()
            told = self.lanes.request_each(dict(asked))
            for _, infos in told.values():
                if "infra_failure" in infos[0]["dsec"]:
                    self._must_reset = True
                    cause = infos[0]["dsec"]["infra_failure"]["cause"]
                    raise EnvironmentLost(f"environments were lost: {cause}; reset all")
            answers = (infos[0]["dsec"]["answer"] for _, infos in told.values())
            return [pair for answer in answers for pair in answer]

    def check_idle(self) -> None:
        """Raises: AlreadyPendingCallError, between `begin` and `finish`."""
        if self.pending:
            raise AlreadyPendingCallError("a step is under way: call step_wait first", "step")
