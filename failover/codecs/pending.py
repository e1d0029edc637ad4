"""An examination that nobody has to wait for: done in a copy of the process, asked now and then.

`examine` may take long with an environment that hangs on some actions, for it gives each trial its
time. Where a caller waits for a step meanwhile that is more than anybody wants. Owns the copy, and
what it sends back; what it does is `examine`'s.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dsec.failover.codecs import Examined, codec_named, examine
from dsec.failover.codecs.scratch import Scratch
from dsec.failover.codecs.selfcheck import LIMIT_S

TRIALS: Final = 3
"""Codecs that `examine` may try, one of them none."""


class _Found(msgspec.Struct, frozen=True):
    codec: str
    notes: tuple[str, ...]
    step_us: float
    capture_us: float
    restore_us: float
    fork_us: float
    state_bytes: int


_found: Final[msgspec.msgpack.Decoder[_Found]] = msgspec.msgpack.Decoder(_Found)


class Examination:
    """One environment's, under way from here on.

    Args:
        env, seed: as for `examine`; the environment may go on meanwhile.
    """

    def __init__(self, env: Any, *, seed: int) -> None:
        self._env = env

        def work() -> bytes:
            found = examine(env, seed=seed)
            name = "" if found.codec is None else found.codec.name
            return msgspec.msgpack.encode(
                _Found(
                    name, found.notes, found.step_us, found.capture_us, found.restore_us,
                    found.fork_us, found.state_bytes,
                )
            )  # fmt: skip

        self._scratch: Scratch | None = Scratch(work, TRIALS * LIMIT_S + LIMIT_S)

    def result(self, wait_s: float) -> Examined | None:
        """What was found; None if that takes longer than `wait_s`. Once."""
        scratch = self._scratch
        if scratch is None or not scratch.ready(wait_s):
            return None
        self._scratch, outcome = None, scratch.finish()
        if outcome.result is None:
            return Examined(None, (f"it could not be tried: its process {outcome.why}",))
        said = _found.decode(outcome.result)
        return Examined(
            codec_named(said.codec, self._env) if said.codec else None,
            said.notes,
            checked=bool(said.codec),
            step_us=said.step_us,
            capture_us=said.capture_us,
            restore_us=said.restore_us,
            fork_us=said.fork_us,
            state_bytes=said.state_bytes,
        )

    def close(self) -> None:
        """Nobody wants to know any more; again is no error."""
        if self._scratch is not None:
            self._scratch.abandon()
            self._scratch = None
