"""The env runner: steps the environments of one agent and publishes what they return.

One record for each step of the whole vector. Where an episode ends, the environment is reset in
the same step: the record holds the first observation of the new episode, and the terminal one
rides in its extras. This file writes only what environments returned, exactly, or fails; it knows
neither policy nor reward.

With one environment the loop below is most of what dsec costs; it keeps everything in locals and
leaves the unusual (an end, an info, a type it has to convert) to `_settle`.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium

from dsec.errors import LayoutError, RingInterrupted, RingTimeout, ValueCodecError
from dsec.ipc.frames import Constructed, Go, Phase, Role
from dsec.ipc.layout import FLAG_TERMINATED, FLAG_TRUNCATED, Layout, encode_spaces, ring_bytes
from dsec.ipc.overflow import Spill
from dsec.ipc.ring import FLAG_BOUNDARY, FLAG_END, KIND_ACTION, KIND_OBS
from dsec.runners import seeds
from dsec.runners.construct import AnyEnv, make_env
from dsec.runners.failure import UserCodeError, shown
from dsec.runners.loop import LOOK_EVERY, RING_SLICE_S, DrainedEarly, Session, live
from dsec.runners.transitions import GRAIN_BITS, ActionStream, EnvGrid
from dsec.runners.wiring import Wiring

PHASE_REFRESH_S = 0.05
"""In a vector, how old the progress word's time may be when the next environment's step begins: a
deadline is for one environment's step."""

_STEP = int(Phase.STEP)
_RESET = int(Phase.RESET)
_NEVER = 1 << 62


def run(session: Session) -> None:
    """Construct, wait to be wired, serve to the end."""
    session.phase, session.where = Phase.CONSTRUCT, "env"
    start = session.start
    envs: list[AnyEnv] = []
    for _ in range(start.num_envs):
        envs.append(make_env(start.env))
        session.reseed()
    observation_space, action_space = _spaces(envs)
    slots = start.ring_slots
    session.channel.send(
        Constructed(
            spaces=encode_spaces(observation_space, action_space),
            ring_bytes=ring_bytes(observation_space, action_space, start.num_envs, slots),
        )
    )
    try:
        wiring = session.wire()
    except DrainedEarly:
        session.phase = Phase.CLOSE
        _close(envs)
        raise
    live(session, wiring, EnvWorker(session, wiring, envs))


def _spaces(envs: list[AnyEnv]) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """The spaces that all environments share."""
    found = []
    for name in ("observation_space", "action_space"):
        space = getattr(envs[0], name, None)
        if not isinstance(space, gymnasium.Space):
            raise UserCodeError(f"the environment's {name} is {space!r}, not a gymnasium.Space")
        for i, env in enumerate(envs):
            if getattr(env, name, None) != space:
                raise UserCodeError(
                    f"environment {i} has another {name} than environment 0; all environments of"
                    " an agent must have the same"
                )
        found.append(space)
    return found[0], found[1]


def _close(envs: list[AnyEnv]) -> None:
    """Close all; the first error is raised when the others are closed, too."""
    first: Exception | None = None
    for env in envs:
        try:
            env.close()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first


class EnvWorker:
    """Serves one agent's environments, from the first reset to the quota or the drain."""

    learns = False

    def __init__(self, session: Session, wiring: Wiring, envs: list[AnyEnv]) -> None:
        start = session.start
        n = start.num_envs
        self._session = session
        self._outbox = wiring.outbox
        self._envs = envs
        self._grid = EnvGrid(wiring.outbox, wiring.observation_space, n)
        self._record = self._grid.record
        self._actions = ActionStream(
            wiring.reader(Role.POLICY), wiring.peers[Role.POLICY], wiring.action_space, n
        )
        self._spill = Spill(wiring.outbox)
        self._variable = bool(self._record.layout.variable)
        # Where a terminal observation is kept: the environment may reuse its array in reset().
        self._final = Layout(wiring.observation_space, 1, "observation")
        self._final_views = self._final.views(bytearray(max(1, self._final.nbytes)))
        self._infos: list[dict[str, Any]] = [{} for _ in envs]
        self._finals: dict[int, Any] = {}
        self._episodes = 0
        self._episodes_max = start.episodes or _NEVER
        self._last = -(-start.steps // n) if start.steps else _NEVER
        self._interval = start.snapshot_interval or _NEVER
        self._next_mark = 0
        self._seq = 0

    def serve(self, go: Go) -> int:
        """Publish observations until the stream ends; return the last one's sequence number."""
        del go  # who learns is the reward runner's business
        try:
            if not self._publish_first() & FLAG_END:
                if len(self._envs) == 1 and not (self._variable or self._actions.layout.variable):
                    self._serve_one()
                else:
                    self._serve_many()
        finally:
            self._session.seq = self._seq
        return self._seq

    def close(self) -> dict[str, float]:
        """Close all environments."""
        _close(self._envs)
        return {}

    def _publish_first(self) -> int:
        """Reset everything, each with its own seed, and publish observation 0."""
        session = self._session
        row = session.claim(self._outbox, self._record.fixed_bytes) >> GRAIN_BITS
        views = self._grid.obs.pick(row)
        own_seeds = seeds.environment_seeds(session.start.seed, len(self._envs))
        for i, (env, seed) in enumerate(zip(self._envs, own_seeds, strict=True)):
            env.action_space.seed(seed)
            env.observation_space.seed(seed)
            obs, self._infos[i] = self._reset(i, 0, seed)
            try:
                self._record.layout.write(views, i, obs)
            except LayoutError as error:
                raise _blamed(i, error) from None
        self._grid.reward[row] = 0.0
        self._grid.flags[row] = 0
        session.phase = Phase.STEP
        return self._publish(0, irregular=self._variable or any(self._infos), obs=views)

    def _serve_one(self) -> None:
        """The loop for one environment; `_serve_many` says the same for several."""
        session, outbox, reader = self._session, self._outbox, self._actions.reader
        claim, commit, release, next_action = (
            outbox.claim,
            outbox.commit,
            reader.release,
            reader.next,
        )
        fixed, write = self._record.fixed_bytes, self._record.layout.write
        obs_rows = self._grid.obs.single
        reward_rows, flags_rows = self._grid.reward[:, 0], self._grid.flags[:, 0]
        action_bytes, read = self._actions.layout.nbytes, self._actions.layout.read
        action_rows = self._actions.grid.single
        step = self._envs[0].step
        n, next_mark = self._seq, self._next_mark
        try:
            while True:
                try:
                    row = claim(fixed, RING_SLICE_S) >> GRAIN_BITS
                except (RingTimeout, RingInterrupted):
                    row = session.claim(outbox, fixed) >> GRAIN_BITS
                try:
                    next_action(RING_SLICE_S, _STEP)
                except (RingTimeout, RingInterrupted):
                    session.next(reader, Phase.STEP)
                if reader.seq != n or reader.kind != KIND_ACTION or reader.nbytes != action_bytes:
                    self._actions.check(n)
                result = step(read(action_rows, reader.offset >> GRAIN_BITS))
                try:
                    obs, reward, terminated, truncated, info = result
                except (TypeError, ValueError):
                    raise _no_step(result) from None
                if terminated or truncated or info:
                    obs, flags_rows[row] = self._settle(0, n, obs, terminated, truncated, info)
                    irregular = True
                else:
                    flags_rows[row] = 0
                    irregular = False
                reward_rows[row] = reward if type(reward) is float else as_reward(reward)
                write(obs_rows, row, obs)
                seq = n + 1
                if irregular or seq == next_mark or session.attention:
                    published = self._publish(seq, irregular, None)
                    next_mark = self._next_mark
                else:
                    commit(seq, KIND_OBS, 0, fixed)
                    published = 0
                n = seq
                release()
                if published & FLAG_END:
                    return
        except LayoutError as error:
            raise _blamed(0, error) from None
        finally:
            self._seq = n

    def _serve_many(self) -> None:
        """The loop for a vector of environments, and for spaces without a fixed size."""
        session, outbox, reader = self._session, self._outbox, self._actions.reader
        fixed, write = self._record.fixed_bytes, self._record.layout.write
        read, views_of_action = self._actions.read, self._actions.views
        steps = [env.step for env in self._envs]
        now = time.monotonic
        n, i = self._seq, 0
        try:
            while True:
                row = session.claim(outbox, fixed) >> GRAIN_BITS
                views = self._grid.obs.pick(row)
                rewards, flags = self._grid.reward[row], self._grid.flags[row]
                session.next(reader, Phase.STEP)
                actions = views_of_action(n)
                flags[...] = 0
                irregular = self._variable
                entered = now()
                for i, step in enumerate(steps):
                    if now() - entered > PHASE_REFRESH_S:
                        outbox.enter(_STEP, n)
                        entered = now()
                    result = step(read(actions, i))
                    try:
                        obs, reward, terminated, truncated, info = result
                    except (TypeError, ValueError):
                        raise _no_step(result, i) from None
                    if terminated or truncated or info:
                        obs, flags[i] = self._settle(i, n, obs, terminated, truncated, info)
                        irregular = True
                    rewards[i] = reward if type(reward) is float else as_reward(reward)
                    write(views, i, obs)
                published = 0
                if irregular or n + 1 == self._next_mark or session.attention:
                    published = self._publish(n + 1, irregular, views)
                else:
                    outbox.commit(n + 1, KIND_OBS, 0, fixed)
                n += 1
                reader.release()
                if published & FLAG_END:
                    return
        except LayoutError as error:
            raise _blamed(i, error) from None
        finally:
            self._seq = n

    def _settle(
        self, i: int, n: int, obs: Any, terminated: Any, truncated: Any, info: Any
    ) -> tuple[Any, int]:
        """Take in what most steps don't have: an end, an info.

        Returns:
            The observation to publish, that of a new episode if this one ended, and the flags.
        """
        _check_info(i, info, "step")
        flags = (FLAG_TERMINATED if terminated else 0) | (FLAG_TRUNCATED if truncated else 0)
        if flags:
            self._episodes += 1
            self._final.write(self._final_views, 0, obs)
            self._finals[i] = self._final.read(self._final_views, 0)
            obs, reset_info = self._reset(i, n)
            if reset_info:
                info = {**info, "dsec": {"reset_info": reset_info}}
            self._session.phase = Phase.STEP
            self._outbox.enter(_STEP, n)
        self._infos[i] = info
        return obs, flags

    def _reset(self, i: int, n: int, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self._session.phase = Phase.RESET
        self._outbox.enter(_RESET, n)
        env = self._envs[i]
        result = env.reset() if seed is None else env.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2:
            raise UserCodeError(
                f"environment {i}: reset() must return (observation, info), and returned"
                f" {shown(result)}"
            )
        _check_info(i, result[1], "reset")
        return result

    def _publish(self, n: int, irregular: bool, obs: Any) -> int:
        """Commit observation n, whose fixed part is written, with the rest; return the flags.

        Args:
            irregular: it has more than its fixed part.
            obs: its tree of views; needed where it has variable leaves.
        """
        session = self._session
        if session.attention or n % LOOK_EVERY == 0:
            session.look()
        flags = FLAG_BOUNDARY if n and n % self._interval == 0 else 0
        if n == self._last or session.draining or self._episodes >= self._episodes_max:
            flags |= FLAG_END
        ahead = (LOOK_EVERY - n % LOOK_EVERY, self._interval - n % self._interval)
        self._next_mark = min(self._last, n + min(ahead))
        tail = self._encode_tail(obs) if irregular else b""
        session.commit(self._spill, n, KIND_OBS, flags, self._record.fixed_bytes, tail)
        return flags

    def _encode_tail(self, obs: Any) -> bytes:
        try:
            return self._record.encode_tail(obs, self._finals, self._infos)
        except ValueCodecError as error:
            raise UserCodeError(
                f"{error}. An info may hold numbers, texts, arrays, and lists, tuples, sets and"
                " dicts of these; remove the rest in a wrapper"
            ) from None
        finally:
            self._finals = {}
            self._infos = [{} for _ in self._envs]


def as_reward(value: Any) -> float:
    """The number that `value` is, exactly.

    Numbers of Python and numpy, arrays and tensors of one element are taken.

    Raises:
        LayoutError: it is no number, or not one that float64 holds exactly.
    """
    if value is None or isinstance(value, str | bytes):
        raise LayoutError(f"reward: expected a number, got {shown(value)}")
    try:
        if getattr(value, "shape", ()) != ():
            value = value.item()  # ValueError for more than one element
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise LayoutError(f"reward: expected a number, got {shown(value)} ({error})") from None
    if number != value and value == value:
        raise LayoutError(f"reward: {shown(value)} can't be a float64 without loss")
    return number


def _check_info(i: int, info: Any, call: str) -> None:
    if not isinstance(info, dict):
        raise UserCodeError(f"environment {i}: {call}() returned {shown(info)} as info, no dict")


def _no_step(result: Any, i: int = 0) -> UserCodeError:
    text = (
        f"environment {i}: step() must return (observation, reward, terminated, truncated, info),"
        f" and returned {shown(result)}"
    )
    if isinstance(result, tuple) and len(result) == 4:
        text += "; four values are the old Gym API: wrap the environment for Gymnasium"
    return UserCodeError(text)


def _blamed(i: int, error: LayoutError) -> UserCodeError:
    return UserCodeError(f"environment {i}: {error}")
