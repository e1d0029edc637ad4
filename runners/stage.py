"""The environments of one agent: constructed, reset, stepped, closed, and what they left to tell.

This file owns what is done with user code's environments; what they return is checked in
returned.py. It knows no ring: the env runner gives it places to write into, whether they lie in the
ring (env.py) or are only to be compared with what a predecessor published (heir_env.py), so that a
replay is the very same code as the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dsec.errors import LayoutError, SnapshotError, ValueCodecError
from dsec.failover.codecs import BeginningCodec, beginning_of
from dsec.ipc.frames import Phase
from dsec.ipc.layout import (
    FLAG_ASIDE,
    FLAG_FRESH,
    FLAG_TERMINATED,
    FLAG_TRUNCATED,
    EnvRecord,
    Layout,
)
from dsec.runners import seeds
from dsec.runners.construct import AnyEnv, make_env
from dsec.runners.failure import UserCodeError, shown
from dsec.runners.loop import Session
from dsec.runners.returned import (
    NotCarried,
    as_reward,
    blamed,
    check_info,
    no_step,
    shared_spaces,
)
from dsec.runners.wiring import KnownSpaces

PHASE_REFRESH_S = 0.05
"""In a vector, how old the progress word's time may be when the next environment's step begins: a
deadline is for one environment's step."""

NEXT_STEP = "next_step"
LATER = (NEXT_STEP, "disabled")
"""The autoreset modes in which an end is not followed by a reset in the same step."""

_STEP = int(Phase.STEP)
_RESET = int(Phase.RESET)


@dataclass(frozen=True, slots=True, eq=False)
class Beginning:
    """How an episode of an only environment began.

    Attributes:
        record: its first observation.
        state: of the environment before its reset (beginnings.py); empty if it was new then.
        seed: the name of the seed that it was reset with; empty if there was none.
        cost_s: processor time that it took to capture the state.
    """

    record: int
    state: bytes = b""
    seed: str = ""
    cost_s: float = 0.0


class Stage:
    """One agent's environments, and what of their latest step has no place in the fixed part.

    Attributes:
        envs: the environments.
        observation_space, action_space: those that they share.
        episodes: how many they have finished.
        enter: says in the progress word which user code runs; nothing while there is none.
        over: by environment, whether its next step is a reset; only where a caller wants that.
        first_seeds: by environment, the seed of its first reset, should that bring none; None
            once it has been reset.
        at: the environment that was stepped last, or is being stepped.
        known_spaces: as a successor will be told them, decoded in advance.
        began: how the episode began, as far as that is watched; None where it isn't known, and
            `unbegun` says why.

    Raises:
        UserCodeError: they can't be made, or don't agree on their spaces.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.envs: list[AnyEnv] = []
        self.over: list[bool] = []
        self.first_seeds: list[int | None] = []
        self.at = 0
        self._construct()
        self.observation_space, self.action_space = shared_spaces(self.envs)
        self.record = EnvRecord(self.observation_space, len(self.envs))
        # Where a terminal observation is kept: the environment may reuse its array in reset().
        self._final = Layout(self.observation_space, 1, "observation")
        self._final_views = self._final.views(bytearray(max(1, self._final.nbytes)))
        self.infos: list[dict[str, Any]] = []
        self.finals: dict[int, Any] = {}
        self.forget()
        self.episodes = 0
        self.codec = ""  # by which the environments' state can be captured
        self.enter: Callable[[int, int], None] = _tell_nobody
        self.began: Beginning | None = None
        self.unbegun = "how this episode began is not known"
        self._beginnings: BeginningCodec | None = None
        self.known_spaces: KnownSpaces | None = None
        self._used = False

    def _construct(self) -> None:
        session = self.session
        for _ in range(session.start.num_envs):
            self.envs.append(make_env(session.start.env))
            session.reseed()
        start = session.start
        fresh = f"{start.seed}/{start.epoch}" if start.epoch else start.seed
        self.first_seeds = [*seeds.environment_seeds(fresh, start.num_envs)]
        self.over = [False] * start.num_envs

    def rebuild(self) -> None:
        """Replace the environments by new ones, whatever state they are in."""
        session = self.session
        session.phase = Phase.CONSTRUCT
        self.enter(int(Phase.CONSTRUCT), session.seq)
        self.envs.clear()
        self._construct()
        self.forget()
        self._used = False
        if self._beginnings is not None:
            self.watch_beginnings()

    def detach(self) -> None:
        """No progress word is mine any more."""
        self.enter = _tell_nobody

    def close(self) -> None:
        """Close all; the first error is raised when the others are closed, too."""
        first: Exception | None = None
        for env in self.envs:
            try:
                env.close()
            except Exception as error:
                first = first or error
        if first is not None:
            raise first

    def watch_beginnings(self) -> None:
        """From now on have the state before each reset in `began`; for a single environment."""
        self._beginnings = beginning_of(self.envs[0])

    def start_all(self, record: int, seed: str, views: Any) -> None:
        """Reset everything with the seeds of this name, which give observation `record`."""
        if seed != self.session.start.seed:  # whose generators were seeded when it was constructed
            seeds.reseed_globals(seed, self.session.role.name.lower())
        own_seeds = seeds.environment_seeds(seed, len(self.envs))
        self.reset_all(max(0, record - 1), own_seeds, views)
        self.began = Beginning(record, seed=seed)

    def begin_again(self, began: Beginning, views: Any) -> None:
        """Let the environment begin that episode.

        Raises:
            SnapshotError: the state is none of such an environment.
        """
        if self._used:
            self.rebuild()
        self.watch_beginnings()
        assert self._beginnings is not None, "watched"
        if began.state:
            self._beginnings.restore(began.state)
            self.first_seeds[0] = None  # it goes on with the generators that it has been given
            obs, self.infos[0] = self._reset(0, max(0, began.record - 1), again=True)
            self.record.layout.write(views, 0, obs)
        else:
            self.start_all(began.record, began.seed, views)
        self.began = began
        self.session.phase = Phase.STEP

    def reset_all(self, n: int, own_seeds: Sequence[int], views: Any) -> None:
        """Reset each environment with its own seed; write the observations into `views`."""
        for i, (env, seed) in enumerate(zip(self.envs, own_seeds, strict=True)):
            env.action_space.seed(seed)
            env.observation_space.seed(seed)
            obs, self.infos[i] = self._reset(i, n, seed)
            try:
                self.record.layout.write(views, i, obs)
            except LayoutError as error:
                raise blamed(i, error) from None
        self.session.phase = Phase.STEP

    def step(
        self, n: int, read: Callable[[Any, int], Any], actions: Any, views: Any, rewards: Any,
        flags: Any,
    ) -> bool:  # fmt: skip
        """Do transition n of all environments.

        Args:
            read: `read(actions, i)` is environment i's action.
            views, rewards, flags: where observations, rewards and ends are written.

        Returns:
            Whether there is more to tell than these.
        """
        now, enter = time.monotonic, self.enter
        flags[...] = 0
        irregular = False
        entered = now()
        i = 0
        over = self.over
        try:
            for i, env in enumerate(self.envs):
                self.at = i
                if over[i]:
                    flags[i] = self.begin(i, n, views)
                    rewards[i] = 0.0
                    irregular = True
                    continue
                if now() - entered > PHASE_REFRESH_S:
                    enter(_STEP, n)
                    entered = now()
                result = env.step(read(actions, i))
                try:
                    obs, reward, terminated, truncated, info = result
                except (TypeError, ValueError):
                    raise no_step(result, i) from None
                if terminated or truncated or info:
                    obs, flags[i] = self.settle(i, n, obs, terminated, truncated, info)
                    irregular = True
                rewards[i] = reward if type(reward) is float else as_reward(reward)
                self.record.layout.write(views, i, obs)
        except LayoutError as error:
            raise blamed(i, error) from None
        return irregular

    def settle(
        self, i: int, n: int, obs: Any, terminated: Any, truncated: Any, info: Any
    ) -> tuple[Any, int]:
        """Take in what most steps don't have: an end, an info.

        Returns:
            The observation to publish, that of a new episode if this one ended, and the flags.
        """
        check_info(i, info, "step")
        flags = (FLAG_TERMINATED if terminated else 0) | (FLAG_TRUNCATED if truncated else 0)
        if flags:
            self.episodes += 1
            self.keep_final(i, obs)
        caller = self.session.start.caller
        if flags and caller in LATER:
            self.over[i] = caller == NEXT_STEP
        elif flags:
            obs, reset_info = self._reset(i, n)
            if reset_info:
                info = {**info, "dsec": {"reset_info": reset_info}}
            self.session.phase = Phase.STEP
            self.enter(_STEP, n)
        self.infos[i] = info
        return obs, flags

    def begin(
        self, i: int, n: int, views: Any, seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> int:  # fmt: skip
        """Reset environment i at a caller's wish; write its observation, return its flags.

        The first reset has a seed in any case: a successor must come to the same.
        """
        self.at = i
        obs, self.infos[i] = self._reset(i, n, seed, options)
        self.session.phase = Phase.STEP
        self.enter(_STEP, n)
        self.record.layout.write(views, i, obs)
        self.over[i] = False
        return FLAG_ASIDE | FLAG_FRESH

    def keep_final(self, i: int, obs: Any) -> None:
        """Copy the terminal observation of environment i."""
        self._final.write(self._final_views, 0, obs)
        self.finals[i] = self._final.read(self._final_views, 0)

    def _watch(self, record: int) -> None:
        """Take down how the episode begins."""
        assert self._beginnings is not None, "asked for"
        began = time.thread_time()
        try:
            state = self._beginnings.capture()
        except SnapshotError as error:
            self.began, self.unbegun = None, str(error)
            return
        self.began = Beginning(record, state, cost_s=time.thread_time() - began)

    def _reset(
        self,
        i: int,
        n: int,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        *,
        again: bool = False,
    ) -> tuple[Any, dict[str, Any]]:
        self.session.phase = Phase.RESET
        if self._beginnings is not None and seed is None and not again:
            self._watch(n + 1)
        self.enter(_RESET, n)
        self._used = True
        env = self.envs[i]
        seed = self.first_seeds[i] if seed is None else seed
        given: dict[str, Any] = {} if seed is None else {"seed": seed}
        result = env.reset(**given) if options is None else env.reset(**given, options=options)
        self.first_seeds[i] = None
        if not isinstance(result, tuple) or len(result) != 2:
            raise UserCodeError(
                f"environment {i}: reset() must return (observation, info), and returned"
                f" {shown(result)}"
            )
        check_info(i, result[1], "reset")
        return result

    def encode_tail(self, obs: Any) -> bytes:
        """What of the latest step lies behind the fixed part; it is forgotten then."""
        try:
            return self.record.encode_tail(obs, self.finals, self.infos)
        except ValueCodecError as error:
            raise NotCarried(
                f"{error}. An info may hold numbers, texts, arrays, and lists, tuples, sets and"
                " dicts of these; remove the rest in a wrapper"
            ) from None
        finally:
            self.forget()

    def restored(self) -> None:
        """The environments are those of a snapshot, which have been reset."""
        self.first_seeds = [None for _ in self.envs]
        self.forget()

    def forget(self) -> None:
        """Nothing is left to tell."""
        self.finals = {}
        self.infos = [{} for _ in self.envs]


def _tell_nobody(_phase: int, _seq: int) -> None:
    """Where no progress word is mine yet."""
