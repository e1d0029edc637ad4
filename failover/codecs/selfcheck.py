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
import os
import random
import time
import warnings
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import msgspec
import numpy as np

from dsec.errors import SnapshotError
from dsec.failover.codecs import scratch
from dsec.failover.codecs.contract import Codec

LIMIT_S = 10.0
SHARE_S = 0.05  # of stepping in one round, so that a slow environment is tried with fewer steps
STEPS_MAX = 96
STEPS_MIN = 8
CAPTURES = 15
RESTORES = 5
WARM_UPS = 8

Record = list[Any]
"""[when, what]."""
Make = Callable[[], Any]
Bind = Callable[[Any], Codec]


class Verdict(msgspec.Struct, frozen=True):
    """What the check found. `difference` is empty if the codec was faithful in all it tried.

    Times in microseconds, medians; 0.0 where there was nothing to measure.
    """

    difference: str
    step_us: float = 0.0
    capture_us: float = 0.0
    restore_us: float = 0.0
    fork_us: float = 0.0
    state_bytes: int = 0
    steps: int = 0
    spare_tried: bool = False


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
    outcome = scratch.run(lambda: _trial(env, bind, seed, make), limit_s)
    if outcome.result is None:
        return Verdict(f"the trial {outcome.why}", fork_us=outcome.fork_us)
    verdict = _verdicts.decode(outcome.result)
    return msgspec.structs.replace(verdict, fork_us=outcome.fork_us)


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


def _trial(env: Any, bind: Bind | None, seed: int, make: Make | None) -> bytes:
    trial = Trial(env, bind, seed, make)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            difference = trial.run()
        except SnapshotError as error:
            difference = str(error)
        except Exception as error:
            difference = f"the trial raised {type(error).__name__}: {error}"
    return msgspec.msgpack.encode(
        Verdict(
            difference,
            step_us=_typical(trial.step_s),
            capture_us=_typical(trial.capture_s),
            restore_us=_typical(trial.restore_s),
            state_bytes=trial.state_bytes,
            steps=len(trial.step_s),
            spare_tried=trial.spare_tried,
        )
    )


def _typical(seconds: list[float]) -> float:
    return median(seconds) * 1e6 if seconds else 0.0


class Trial:
    """The experiment, inside of the scratch process."""

    def __init__(self, env: Any, bind: Bind | None, seed: int, make: Make | None) -> None:
        self.step_s: list[float] = []
        self.capture_s: list[float] = []
        self.restore_s: list[float] = []
        self.state_bytes = 0
        self.spare_tried = False
        self._env = env
        self._bind = bind
        self._make = make
        self._actions = copy.deepcopy(env.action_space)
        self._actions.seed(seed)
        self._chance = random.Random(seed)

    def run(self) -> str:
        """Do all rounds; return the first difference, in words."""
        with contextlib.ExitStack() as stack:
            spare = None
            if self._make is not None and self._bind is not None:
                spare = stack.enter_context(Spare(self._make, self._bind, self._draw(STEPS_MAX)))
            self._go_on(self._draw(STEPS_MIN), -1)
            pace = max(median(self.step_s), 1e-7)
            steps = max(STEPS_MIN, min(STEPS_MAX, int(SHARE_S / pace)))
            if self._bind is None:
                self._go_on(self._draw(steps), -1)
                return ""
            codec = self._bind(self._env)
            self._warm_up(codec)
            for before in (0, 1, steps // 2, steps):
                found = self._round(codec, before, steps)
                if found:
                    return f"restored in place, it goes on differently: {found}"
            if spare is not None and (found := self._try_spare(spare, codec, steps)):
                return f"restored in a spare, it goes on differently: {found}"
        self._measure(codec)
        return ""

    def _measure(self, codec: Codec) -> None:
        """Times as they are in a process that has been running for a while: the first capture
        compiles, and the first restore pays for the pages that the fork shared."""
        self.capture_s.clear()
        self.restore_s.clear()
        for _ in range(CAPTURES):
            self._go_on(self._draw(1), -1)
            data = self._capture(codec)
        for _ in range(RESTORES):
            began = time.perf_counter()
            codec.restore(data)
            self.restore_s.append(time.perf_counter() - began)

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
        codec.restore(data)
        return difference(expected, self._go_on(actions, reset_at))

    def _try_spare(self, spare: Spare, codec: Codec, steps: int) -> str:
        self.spare_tried = True
        data = self._capture(codec)
        actions = spare.actions[:steps]
        expected = go_on(self._env, actions, steps // 3)
        seen = spare.go_on(data, steps)
        return seen if isinstance(seen, str) else difference(_as_sent(expected), seen)

    def _draw(self, count: int) -> list[Any]:
        return [self._actions.sample() for _ in range(count)]

    def _capture(self, codec: Codec) -> bytes:
        began = time.perf_counter()
        data = codec.capture()
        self.capture_s.append(time.perf_counter() - began)
        self.state_bytes = len(data)
        return data

    def _go_on(self, actions: list[Any], reset_at: int) -> list[Record]:
        return go_on(self._env, actions, reset_at, self.step_s)


class Spare:
    """A second environment in a process of its own, which has never seen a step of the first."""

    def __init__(self, make: Make, bind: Bind, actions: list[Any]) -> None:
        self.actions = actions
        self._orders, self._orders_end = os.pipe2(os.O_CLOEXEC)
        ends = (self._orders, self._orders_end)
        self._process = scratch.Scratch(lambda: self._serve(make, bind), LIMIT_S, keep=ends)
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


def go_on(
    env: Any, actions: list[Any], reset_at: int, step_s: list[float] | None = None
) -> list[Record]:
    """Step with these actions; reset where an episode ends, and once in its middle."""
    records: list[Record] = []
    for number, action in enumerate(actions):
        began = time.perf_counter()
        obs, reward, terminated, truncated, _ = env.step(action)
        if step_s is not None:
            step_s.append(time.perf_counter() - began)
        ended = [bool(terminated), bool(truncated)]
        records.append([f"step {number + 1}", exactly([obs, reward, *ended])])
        if any(ended) or number == reset_at:
            records.append([f"the reset after step {number + 1}", exactly([env.reset()[0]])])
    return records


def exactly(value: Any) -> Any:
    """A value as nested lists in which == means equal bit for bit, types included."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            return [value.dtype.str, list(value.shape), exactly(value.tolist())]
        return [value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, Mapping):
        return [[str(key), exactly(each)] for key, each in value.items()]
    if isinstance(value, tuple | list):
        return [exactly(each) for each in value]
    return [type(value).__name__, value.hex() if isinstance(value, float) else repr(value)]


_PARTS = ("observation", "reward", "terminated", "truncated")
"""An exercised object has only the first."""


def difference(expected: list[Record], seen: list[Record]) -> str:
    """The first difference between two sequences of records, in words; empty if there is none."""
    for (label, before), (now_label, now) in zip(expected, seen, strict=False):
        if label != now_label:
            return f"{now_label} came where {label} was expected"
        for part, one, other in zip(_PARTS, before, now, strict=False):
            if one != other:
                return f"the {part} of {label} differs{_extent(one, other)}"
    if len(expected) != len(seen):
        return f"{len(seen)} results instead of {len(expected)}"
    return ""


def _extent(one: Any, other: Any) -> str:
    """How much of an array, or which two numbers."""
    arrays = all(len(each) == 3 and isinstance(each[2], bytes) for each in (one, other))
    if arrays and one[:2] == other[:2]:
        kind = np.dtype(one[0])
        before, now = np.frombuffer(one[2], kind), np.frombuffer(other[2], kind)
        if len(before) == 1:
            return f": {now[0]} instead of {before[0]}"
        where = np.flatnonzero(before != now)
        return f" in {len(where)} of {len(before)} elements"
    if len(one) == 2 and one[0] == other[0] == "float":
        return f": {float.fromhex(other[1])} instead of {float.fromhex(one[1])}"
    return f": {other[1]} instead of {one[1]}" if len(one) == len(other) == 2 else ""
