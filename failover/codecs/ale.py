"""The Arcade Learning Environment's emulator as a node: its system state, random state included.

Owns only the emulator; what Gymnasium's wrappers keep (frame stacks, two last screens, a generator)
is the attribute plan's. The state holds everything but the ROM and the settings of the constructor,
which another emulator has too if it was constructed in the same way. The screen is not part of it:
it is drawn by the next frame.

Nor, and this is silent, is the action that a *sticky* emulator repeats (with a probability of 0.25
in every `ALE/…-v5`): it is a variable that no call reads or writes. It can be known all the same.
The requests are noted on their way to the emulator (`Sticky`), and the last draws of its random
generator, which say for each frame whether the request was taken, are still in the state that it
gives. It is put back by letting another emulator take that action, and restoring the state again.
"""

from __future__ import annotations

import math
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from dsec.errors import SnapshotError
from dsec.failover.codecs.reading import Reader
from dsec.failover.codecs.writing import Kind, Refused, Writer

FRAMES_KEPT = 256
CERTAIN = 1e-12  # chance that no request at all was taken in so many frames
WORDS = 624  # of the Mersenne Twister


class Sticky:
    """Stands in for an emulator whose actions are sticky, and notes what is asked of it.

    Everything else is the emulator's own: its bound methods are attributes here.
    """

    def __init__(self, ale: Any) -> None:
        self.before: tuple[Any, float] | None = None  # the last action taken before the requests
        self.requests: deque[tuple[Any, float]] = deque(maxlen=FRAMES_KEPT)
        self.ale = ale
        self._act = ale.act
        self._load = ale.loadROM
        for name in dir(ale):
            if not name.startswith("_") and name not in ("act", "loadROM"):
                setattr(self, name, getattr(ale, name))

    def act(self, action: Any, paddle_strength: float = 1.0) -> Any:
        """One frame."""
        self.requests.append((action, paddle_strength))
        return self._act(action, paddle_strength)

    def loadROM(self, path: Any) -> Any:  # noqa: N802  (the emulator's own name)
        """A new game begins without a last action."""
        self.requests.clear()
        self.before = (0, 1.0)
        return self._load(path)


def drawing(state: bytes, words: Iterable[int]) -> bytes:
    """The same state with other words in its random generator, each spelled as long as the one that
    it replaces, because the text's length stands in more than one place.

    Raises:
        SnapshotError: its generator is of an unknown kind.
    """
    start, length = Twister(state).place
    others = iter(words)

    def other(found: re.Match[bytes]) -> bytes:
        digits = len(found[0])
        return b"%0*d" % (digits, next(others) % 10**digits)

    text = re.sub(rb"\d+", other, state[start : start + length], count=WORDS)
    return state[:start] + text + state[start + length :]


class Twister:
    """The generator that a sticky emulator draws from, as its state spells it: twice a frame, first
    for the player and then for a second one whom nobody plays."""

    def __init__(self, state: bytes) -> None:
        # A text with its length before it, and two numbers of four bytes behind it.
        start = state.rfind(b"\0\0", 0, max(0, len(state) - WORDS)) + 2
        length = int.from_bytes(state[start - 4 : start], "little")
        self.place = start, length
        self._words = state[start : start + length].split()
        if start < 4 or len(self._words) != WORDS + 1 or not self._words[-1].isdigit():
            raise Refused("holds an Atari emulator with a random generator of an unknown kind")
        self._next = int(self._words[WORDS])

    def past(self, frame: int) -> float:
        """The player's draw, `frame` frames before the last one."""
        index = self._next - 2 * (frame + 1)
        return _tempered(int(self._words[index]) if index >= 0 else self._before(index + WORDS))

    def future(self, frame: int) -> float | None:
        """The player's draw in `frame` frames; None where that is beyond what has been made."""
        index = self._next + 2 * frame
        return _tempered(int(self._words[index])) if index < WORDS else None

    def _before(self, index: int) -> int:
        """A word of the block before this one: the twist undone, from its end down to `index`."""
        words = [int(word) for word in self._words[:WORDS]]
        for i in range(WORDS - 1, index - 1, -1):
            high = _untwisted(words[i] ^ words[(i + 397) % WORDS])
            low = _untwisted(words[i - 1] ^ words[(i + 396) % WORDS])
            words[i] = (high & 0x80000000) | (low & 0x7FFFFFFF)
        return words[index]


def _untwisted(mixed: int) -> int:
    if mixed & 0x80000000:
        return ((mixed ^ 0x9908B0DF) << 1) & 0xFFFFFFFF | 1
    return (mixed << 1) & 0xFFFFFFFF


def _tempered(word: int) -> float:
    """The number in [0, 1) that the emulator makes of a word."""
    word ^= word >> 11
    word ^= (word << 7) & 0x9D2C5680
    word ^= (word << 15) & 0xEFC60000
    word ^= word >> 18
    return float(word / 2.0**32)


class Emulator:
    """An `ALEInterface`, or one behind `Sticky`. Content: [system state, last action, strength]."""

    tag = "ale"

    def __init__(self, ale_py: Any) -> None:
        self._interface = ale_py.ALEInterface
        self._state = ale_py.ALEState

    def head(self, node: Any, writer: Writer) -> Any:
        """What tells one game from another, as far as the emulator says."""
        chance = stickiness(node)
        if chance and type(node) is not Sticky:
            raise Refused("holds an Atari emulator with sticky actions elsewhere than in env.ale")
        if chance and node.getInt("frame_skip") != 1:
            raise Refused("holds an Atari emulator that skips frames by itself, and is sticky")
        return [chance, [str(action) for action in node.getMinimalActionSet()]]

    def read(self, node: Any, writer: Writer) -> Any:
        """Clone the state with its random state, and work out the action that it would repeat."""
        state = node.cloneState(include_rng=True).serialize()
        if type(node) is not Sticky:
            return [state, 0, 1.0]
        chance, draws = stickiness(node), Twister(state)
        requests = reversed(node.requests) if chance < 1 else ()
        taken = (each for frame, each in enumerate(requests) if draws.past(frame) >= chance)
        last = next(taken, node.before if len(node.requests) < FRAMES_KEPT or chance >= 1 else None)
        if last is None:
            raise Refused("holds an Atari emulator that took no action since it is watched")
        action, strength = last
        return [state, int(getattr(action, "value", action)), float(strength)]

    def track(self, node: Any) -> Callable[[Writer], Any]:
        """How a plan reads it: not before it has to, since a fresh one has taken no action yet."""
        return lambda writer: self.read(node, writer)

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """The emulator in place: one can't be made without its ROM."""
        if type(hint) not in (self._interface, Sticky):
            raise SnapshotError("the state holds an Atari emulator, and there is none here")
        if self.head(hint, Writer({})) != head:
            raise SnapshotError("the state is of another Atari game, or of other settings")
        return hint

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """It has no children."""

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Restore the state; of a sticky one, have it take the last action first."""
        state, action, strength = content
        if type(node) is Sticky and stickiness(node) < 1:
            node.ale.restoreState(self._state(state))
            for _ in range(_frames_until_taken(Twister(state), stickiness(node))):
                node.ale.act(action, strength)
            node.requests.clear()
            node.before = (action, strength)
        restore = node.ale.restoreState if type(node) is Sticky else node.restoreState
        restore(self._state(state))


def stickiness(ale: Any) -> float:
    """The probability that a frame repeats the last action instead of taking the new one."""
    return float(ale.getFloat("repeat_action_probability"))


def _frames_until_taken(draws: Twister, chance: float) -> int:
    """In how many frames from this state a request is sure to have been taken."""
    for frame in range(WORDS):
        draw = draws.future(frame)
        if draw is None:
            break
        if draw >= chance:
            return frame + 1
    return 0 if chance >= 1 else math.ceil(math.log(CERTAIN) / math.log(chance))


def prepare(env: Any) -> None:
    """Put `Sticky` before the emulator of this environment, if there is a sticky one.

    Only where Gymnasium's AtariEnv has it, in an attribute `ale` of a layer; elsewhere it is
    refused.
    """
    ale_py: Any = sys.modules.get("ale_py")
    while hasattr(ale_py, "ALEInterface") and env is not None:
        layer = getattr(env, "__dict__", {})
        ale = layer.get("ale")
        if type(ale) is ale_py.ALEInterface and stickiness(ale) > 0:
            layer["ale"] = Sticky(ale)
        env = layer.get("env")


def kinds() -> dict[type, Kind]:
    """What this file adds to a plan: nothing unless ale_py has been imported."""
    ale_py: Any = sys.modules.get("ale_py")
    if not hasattr(ale_py, "ALEInterface"):
        return {}
    emulator = Emulator(ale_py)
    return {ale_py.ALEInterface: emulator, Sticky: emulator}
