"""The evidence that a codec is faithful for one environment, gathered in a scratch process.

Owns the experiment: step, capture, go on and take down what happens; restore, go on with the same
actions, and compare bit for bit, resets included; and the same in a second environment, constructed
in a second process that never saw the first one's steps, as a spare would be. Also measures what
everything costs. It can only refute: a difference that first shows after more steps than it tries
stays for the comparison at the replay to find.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import mmap
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec

from dsec.errors import SnapshotError
from dsec.failover.codecs import scratch
from dsec.failover.codecs.contract import Codec
from dsec.failover.codecs.futures import Record, difference, go_on

LIMIT_S = 10.0
SPARE_LIMIT_S = 600.0  # never the first: it dies with the trial, which has a limit of its own
ATTEMPTS = (96, 24, 6, 2)
"""Steps in a round. An environment that dies in its trial proves nothing against a codec: that is
the very kind that needs one. So it is tried again, with other actions and fewer of them."""
ROUNDS_MIN = 2
ORIGINAL, RESTORED = 0, 1
SHARE_S = 0.05  # of stepping in one round, so that a slow environment is tried with fewer steps
STEPS_MAX = ATTEMPTS[0]
STEPS_MIN = 8
CAPTURES = 15
RESTORES = 5
WARM_UPS = 8
Make = Callable[[], Any]
Bind = Callable[[Any], Codec]


class Verdict(msgspec.Struct, frozen=True):
    """What the check found. `difference` is empty if the codec was faithful in all it tried.

    `rounds` counts the comparisons. `ended` says how the environment ended trials by itself.
    `episode_steps`: how long its episodes are with random actions; where none came to its end, as
    many steps as were tried.
    Times in microseconds, medians; 0.0 where there was nothing to measure.
    """

    difference: str
    step_us: float = 0.0
    capture_us: float = 0.0
    restore_us: float = 0.0
    fork_us: float = 0.0
    state_bytes: int = 0
    rounds: int = 0
    spare_tried: bool = False
    ended: str = ""
    episode_steps: float = 0.0


_verdicts = msgspec.msgpack.Decoder(Verdict)


def check(
    env: Any,
    bind: Bind | None,
    *,
    seed: int,
    make: Make | None = None,
    limit_s: float = LIMIT_S,
) -> Verdict:
    """Try a codec on a forked copy of this process; nothing here is disturbed.

    Args:
        env: the environment, which has been reset.
        bind: makes the codec for an environment; None only measures steps and the fork.
        make: constructs another environment in the same way, for the part of the spare.
        limit_s: until then it has to be done.
    """
    if "jax" in sys.modules and bind is not None:
        return Verdict("it can't be tried: JAX has threads, which a forked copy lacks")
    deadline = time.monotonic() + limit_s
    total = Verdict("")
    why = ""
    for attempt, steps_max in enumerate(ATTEMPTS):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        page = mmap.mmap(-1, mmap.PAGESIZE)
        trial = functools.partial(_trial, env, bind, seed + attempt, make, steps_max, page)
        outcome = scratch.run(trial, max(left / 2, min(left, limit_s / 4)))
        total = _added(total, outcome, page)
        if outcome.result is not None:
            return total
        why = f"the trial {outcome.why}"
        if page[0] == RESTORED and attempt:
            return msgspec.structs.replace(total, difference=f"restored in place, {why}")
    if total.rounds >= ROUNDS_MIN or bind is None:
        return msgspec.structs.replace(total, ended=why)
    return msgspec.structs.replace(total, difference=why)


def _added(total: Verdict, outcome: scratch.Outcome, page: mmap.mmap) -> Verdict:
    """What is known after one more trial, which may have ended before it was done."""
    length = int.from_bytes(page[4:8], "little")
    found = _verdicts.decode(outcome.result or page[8 : 8 + length]) if length else Verdict("")
    best = found if found.step_us and found.capture_us else total
    return msgspec.structs.replace(
        best,
        difference=found.difference,
        step_us=best.step_us or found.step_us,
        fork_us=outcome.fork_us,
        rounds=total.rounds + found.rounds,
    )


class _Numbers:
    """The action space of an object that is only exercised."""

    def __init__(self) -> None:
        self._random = random.Random(0)

    def seed(self, seed: int) -> None:
        self._random.seed(seed)

    def sample(self) -> int:
        return self._random.getrandbits(30)


class _Exercised:
    """A policy or a reward in the place of an environment: a step uses it once."""

    def __init__(self, actor: Any, exercise: Callable[[Any, int], Any]) -> None:
        self.actor = actor
        self.action_space = _Numbers()
        self._exercise = exercise

    def step(self, number: int) -> tuple[Any, float, bool, bool, None]:
        return self._exercise(self.actor, number), 0.0, False, False, None

    def reset(self) -> tuple[None, None]:
        return None, None


def check_actor(
    actor: Any,
    bind: Bind,
    exercise: Callable[[Any, int], Any],
    *,
    make: Make | None = None,
    limit_s: float = LIMIT_S,
) -> Verdict:
    """The same for a policy or a reward; a step is a call of `exercise(actor, number)`."""
    return check(
        _Exercised(actor, exercise),
        lambda each: bind(each.actor),
        seed=0,
        make=None if make is None else lambda: _Exercised(make(), exercise),
        limit_s=limit_s,
    )


def _trial(
    env: Any, bind: Bind | None, seed: int, make: Make | None, steps_max: int, page: mmap.mmap
) -> bytes:
    trial = Trial(env, bind, seed, make, steps_max, page)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trial.run()
        except SnapshotError as error:
            trial.difference = str(error)
        except Exception as error:
            if page[0] == ORIGINAL:
                raise OwnFault(f"raised {type(error).__name__}: {error}") from error
            trial.difference = f"restored in place, it raised {type(error).__name__}: {error}"
    return trial.tell()


def _typical(seconds: list[float]) -> float:
    return median(seconds) * 1e6 if seconds else 0.0


class OwnFault(Exception):
    """The environment raised before anything had been restored."""


class Trial:
    """The experiment, inside of the scratch process."""

    def __init__(
        self,
        env: Any,
        bind: Bind | None,
        seed: int,
        make: Make | None,
        steps_max: int,
        page: mmap.mmap,
    ) -> None:
        self.difference = ""
        self._step_s: list[float] = []
        self._capture_s: list[float] = []
        self._restore_s: list[float] = []
        self._state_bytes = self._rounds = self._steps = self._ends = 0
        self._spare_tried = False
        self._env = env
        self._bind = bind
        self._make = make
        self._steps_max = steps_max
        self._page = page
        self._actions = copy.deepcopy(env.action_space)
        self._actions.seed(seed)
        self._chance = random.Random(seed)

    def tell(self) -> bytes:
        """What is known so far, also to the original, should this process not live to return."""
        told = msgspec.msgpack.encode(
            Verdict(
                self.difference,
                step_us=_typical(self._step_s),
                capture_us=_typical(self._capture_s),
                restore_us=_typical(self._restore_s),
                state_bytes=self._state_bytes,
                rounds=self._rounds,
                spare_tried=self._spare_tried,
                episode_steps=self._steps / max(1, self._ends),
            )
        )
        self._page[8 : 8 + len(told)] = told
        self._page[4:8] = len(told).to_bytes(4, "little")
        return told

    def run(self) -> None:
        """Do all rounds, until one finds a difference."""
        with contextlib.ExitStack() as stack:
            spare = None
            if self._make is not None and self._bind is not None:
                spare = stack.enter_context(Spare(self._make, self._bind, self._draw(STEPS_MAX)))
            self._go_on(self._draw(min(STEPS_MIN, self._steps_max)), -1)
            pace = max(median(self._step_s), 1e-7)
            steps = min(self._steps_max, max(STEPS_MIN, int(SHARE_S / pace)))
            self.tell()
            if self._bind is None:
                self._go_on(self._draw(steps), -1)
                return
            codec = self._bind(self._env)
            self._warm_up(codec)
            for before in (0, 1, steps // 2, steps):
                self.difference = self._round(codec, before, steps)
                self._rounds += 1
                self.tell()
                if self.difference:
                    return
            if spare is not None:
                self.difference = self._try_spare(spare, codec, steps)
        self._measure(codec)

    def _measure(self, codec: Codec) -> None:
        """Times as they are in a process that has been running for a while: the first capture
        compiles, and the first restore pays for the pages that the fork shared."""
        self._capture_s.clear()
        self._restore_s.clear()
        for _ in range(CAPTURES):
            self._go_on(self._draw(1), -1)
            data = self._capture(codec)
        for _ in range(RESTORES):
            began = time.perf_counter()
            codec.restore(data)
            self._restore_s.append(time.perf_counter() - began)

    def _warm_up(self, codec: Codec) -> None:
        """Some states can't be told from a few steps (a sticky action); more of them are taken."""
        for attempt in range(WARM_UPS):
            try:
                codec.capture()
            except SnapshotError:
                if attempt == WARM_UPS - 1:
                    raise
                self._go_on(self._draw(STEPS_MIN), -1)
            else:
                return

    def _round(self, codec: Codec, before: int, steps: int) -> str:
        self._go_on(self._draw(self._chance.randint(before // 2, before)), -1)
        data = self._capture(codec)
        actions, reset_at = self._draw(steps), self._chance.randrange(steps // 4, steps)
        expected = self._go_on(actions, reset_at)
        self._page[0] = RESTORED
        began = time.perf_counter()
        codec.restore(data)
        self._restore_s.append(time.perf_counter() - began)
        found = difference(expected, self._go_on(actions, reset_at))
        self._page[0] = ORIGINAL
        return found and f"restored in place, it goes on differently: {found}"

    def _try_spare(self, spare: Spare, codec: Codec, steps: int) -> str:
        self._spare_tried = True
        data = self._capture(codec)
        actions = spare.actions[:steps]
        expected = go_on(self._env, actions, steps // 3)
        seen = spare.go_on(data, steps)
        found = seen if isinstance(seen, str) else difference(_as_sent(expected), seen)
        return found and f"restored in a spare, it goes on differently: {found}"

    def _draw(self, count: int) -> list[Any]:
        return [self._actions.sample() for _ in range(count)]

    def _capture(self, codec: Codec) -> bytes:
        began = time.perf_counter()
        data = codec.capture()
        self._capture_s.append(time.perf_counter() - began)
        self._state_bytes = len(data)
        return data

    def _go_on(self, actions: list[Any], reset_at: int) -> list[Record]:
        records = go_on(self._env, actions, reset_at, self._step_s)
        self._steps += len(actions)
        self._ends += len(records) - len(actions) - (reset_at >= 0)
        return records


class Spare:
    """A second environment in a process of its own, which has never seen a step of the first."""

    def __init__(self, make: Make, bind: Bind, actions: list[Any]) -> None:
        self.actions = actions
        self._orders, self._orders_end = os.pipe2(os.O_CLOEXEC)
        ends = (self._orders, self._orders_end)
        self._process = scratch.Scratch(lambda: self._serve(make, bind), SPARE_LIMIT_S, keep=ends)
        os.close(self._orders)

    def __enter__(self) -> Spare:
        return self

    def __exit__(self, *exc: object) -> None:
        self._send(b"")

    def go_on(self, data: bytes, steps: int) -> list[Record] | str:
        """Have it restore `data` and step; a text says why it could not."""
        self._send(steps.to_bytes(8, "little") + data)
        outcome = self._process.finish()
        self._finished = True
        if outcome.result is None:
            return f"its process {outcome.why}"
        seen: list[Record] | str = msgspec.msgpack.decode(outcome.result)
        return seen

    _finished = False

    def _send(self, data: bytes) -> None:
        if self._orders_end >= 0:
            with contextlib.suppress(OSError):
                view = memoryview(data)
                while view:
                    view = view[os.write(self._orders_end, view) :]
            os.close(self._orders_end)
            self._orders_end = -1
        elif not self._finished:
            self._process.finish()

    def _serve(self, make: Make, bind: Bind) -> bytes:
        os.close(self._orders_end)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                env = make()
                data = _read_all(self._orders)
                if not data:
                    return msgspec.msgpack.encode("it was not asked")
                bind(env).restore(data[8:])
                steps = int.from_bytes(data[:8], "little")
                seen: Any = go_on(env, self.actions[:steps], steps // 3)
            except Exception as error:
                seen = f"{type(error).__name__}: {error}"
        return msgspec.msgpack.encode(seen)


def _read_all(fd: int) -> bytes:
    data = bytearray()
    while piece := os.read(fd, 1 << 16):
        data += piece
    return bytes(data)


def _as_sent(records: list[Record]) -> list[Record]:
    sent: list[Record] = msgspec.msgpack.decode(msgspec.msgpack.encode(records))
    return sent
