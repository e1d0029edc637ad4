"""A Gymnasium environment that runs in another process, and looks as if it ran in this one.

Owns `TrackedEnv`: what Gymnasium says of an environment, said by one lane (lanes.py). What crosses
to the other process and what it does there is in runners/requests.py.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from dsec.engine import talk
from dsec.errors import EnvironmentLost, InvalidAction, LayoutError
from dsec.ipc.layout import FLAG_INFRA, FLAG_TERMINATED, FLAG_TRUNCATED
from dsec.sandbox import remote
from dsec.sandbox.coasting import Coasting, Step
from dsec.sandbox.lanes import Lanes
from dsec.sandbox.trees import arrays

STEP_APIS = ("gymnasium", "gym")


class TrackedEnv(gymnasium.Env[Any, Any]):
    """The environment of an AgentSandbox; made by `AgentSandbox.get_env`.

    It is used as the plain environment is, and gives what that gives. Attributes and methods that
    `gymnasium.Env` doesn't have are those of the environment: reading, setting and calling them
    crosses to its process, with values that can be carried (see "info" in the guide). From one
    thread at a time, in the process that made it.

    If the environment's process dies its successor goes on in the same episode, and nothing is
    to be seen of it here, but in `failovers`, and with `cached_steps` in some infos. Where that is
    impossible `step` returns the last observation, reward 0.0, `truncated`, and the cause as
    `info["dsec"]["infra_failure"]`.

    Attributes:
        failovers: what was survived, the latest thousand.
        reward_window: the latest rewards, float64, at most `reward_window_size` of them.

    Raises (any method):
        ClosedEnvironmentError: it is closed.
        SandboxFailed: the environment is gone for good: it can't be made, or has used up its
            restarts.
        SandboxTimeout: no answer came in time.
        LocalError: another thread, or another process.
        Exception: what the environment itself raised.
    """

    def __init__(
        self,
        lanes: Lanes,
        *,
        spec: gymnasium.envs.registration.EnvSpec | None,
        step_api: str,
        reward_window_size: int,
        cached_steps: int,
    ) -> None:
        put = object.__setattr__  # ours; any other attribute is the environment's
        put(self, "_lanes", lanes)
        put(self, "_step_api", step_api)
        put(self, "_window", deque[float](maxlen=reward_window_size))
        put(self, "_lost", None)
        put(self, "observation_space", lanes.observation_space)
        put(self, "action_space", lanes.action_space)
        put(self, "_read", lanes.layout.read)
        put(self, "_write", lanes.all_actions.write)
        put(self, "_floats", _floats(lanes.actions))
        coast = Coasting(lanes, cached_steps) if cached_steps else None
        put(self, "_coast", coast)
        put(self, "_unsent", _floats(coast.actions) if coast is not None else [])
        about = self._ask({"do": "about"})
        put(self, "metadata", about["metadata"])
        put(self, "render_mode", about["render_mode"])
        put(self, "spec", spec)
        put(self, "_name", about["name"])
        put(self, "_finalizer", weakref.finalize(self, lanes.close))

    # ------------------------------------------------------------ Gymnasium's methods

    def step(self, action: Any) -> Any:
        """Do one step.

        Returns:
            `(obs, reward, terminated, truncated, info)`; with `step_api="gym"` the four values of
            the old Gym: `(obs, reward, done, info)`, `info["TimeLimit.truncated"]` set where an
            episode was cut and not at its end.

        Raises:
            InvalidAction: the action doesn't fit the space, or is not a number; nothing was sent.
        """
        lanes: Lanes = self._lanes
        lanes.enter()
        try:
            if self._lost is not None:
                return self._end_as_lost()
            if self._coast is not None:
                made = self._coasted(self._coast, action)
            else:
                if lanes.busy:
                    lanes.settle()
                self._check(action, lanes.actions, self._floats)
                made = self._answer(lanes.send())
        finally:
            lanes.leave()
        return self._result(*made)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, exactly as the plain environment would with these arguments.

        Where the environment was never given a seed, its first reset has one that derives from the
        sandbox's: a plain one would draw it.

        Raises:
            TypeError: options that can't be carried.
        """
        remote.check_carried(options, "options")
        if seed is not None:
            seed = int(seed)
        asked = {"do": "reset", "seeds": [seed], "mask": [True], "options": options}
        lanes: Lanes = self._lanes
        lanes.enter()
        try:
            (_, infos) = lanes.request(asked)[0]
            self._forget_what_was()
            return self._read(lanes.obs, 0), infos[0]
        finally:
            lanes.leave()

    def render(self) -> Any:
        """What the environment's `render` returns. A window opens from its process."""
        return self._ask({"do": "render"})

    def close(self) -> None:
        """Close the environment and end its processes. Again is no error."""
        self._finalizer()

    # ------------------------------------------------------------ attributes

    @property
    def unwrapped(self) -> TrackedEnv:
        """Itself: wrappers and the environment below them are in the other process."""
        return self

    @property
    def failovers(self) -> list[talk.Survived]:
        """What was survived, the latest thousand."""
        self._lanes.hear()
        return list(self._lanes.failovers)

    @property
    def reward_window(self) -> Any:
        """The latest rewards, float64."""
        return np.array(self._window)

    @property
    def np_random(self) -> np.random.Generator:
        """A copy of the environment's generator, in the state it is in now; drawing from it leaves
        the environment's where it is. To change that, assign one."""
        found: np.random.Generator = self._get("np_random")
        return found

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self.set_wrapper_attr("np_random", value)

    @property
    def _np_random(self) -> np.random.Generator | None:  # type: ignore[override]
        found: np.random.Generator | None = self._get("_np_random")
        return found

    @property
    def np_random_seed(self) -> int:
        """The seed of the environment's generator."""
        found: int = self._get("np_random_seed")
        return found

    @property
    def rewards_kept(self) -> deque[float]:
        """What `reward_window` shows, itself."""
        window: deque[float] = self._window
        return window

    @contextmanager
    def using(self, *, begins: bool = False) -> Iterator[None]:
        """Let the sandbox ask for something.

        Args:
            begins: what was before it doesn't count any more, as at a reset.
        """
        lanes: Lanes = self._lanes
        lanes.enter()
        try:
            if not begins:
                self._keep_what_is_due()
            yield
            if begins:
                self._forget_what_was()
        finally:
            lanes.leave()

    def last_observation(self) -> Any:
        """The last one that there was, again."""
        return self._read(self._lanes.obs, 0)

    def get_wrapper_attr(self, name: str) -> Any:
        """An attribute of the environment or of the wrappers around it."""
        if name in _OWN or hasattr(type(self), name):
            return getattr(self, name)
        return self._get(name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the environment or of the wrappers around it.

        Raises:
            TypeError: a value that can't be carried.
            AttributeError: with `force=False`, there is no such attribute.
        """
        if not force and not self.has_wrapper_attr(name):
            return False
        self._ask({"do": "set", "name": name, "values": [remote.to_wire(value, name)]})
        return True

    def has_wrapper_attr(self, name: str) -> bool:
        """Whether there is such an attribute, here or there."""
        try:
            self.get_wrapper_attr(name)
        except AttributeError:
            return False
        except TypeError:
            return True  # it is there, and can't be carried
        return True

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the environment, or of a wrapper around it, in its process.

        Raises:
            TypeError: arguments or a result that can't be carried.
        """
        remote.check_carried([args, kwargs], f"{name}()")
        return self._ask({"do": "call", "name": name, "args": args, "kwargs": kwargs})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}; a private one of the environment"
                f" is get_wrapper_attr({name!r})"
            )
        return self._get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        elif name.startswith("_"):
            raise AttributeError(f"{name!r} is private; use set_wrapper_attr({name!r}, ...)")
        else:
            self.set_wrapper_attr(name, value)

    def __str__(self) -> str:
        return f"<TrackedEnv {self._name}>"

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> Any:
        raise TypeError("a TrackedEnv can't be pickled or copied: it has processes of its own")

    # ------------------------------------------------------------ inside

    def _get(self, name: str) -> Any:
        pair = self._pair({"do": "get", "name": name})
        if remote.is_callable(pair):
            return _method(self, name, pair[1])
        return remote.from_wire(pair)

    def _ask(self, asked: dict[str, Any]) -> Any:
        return remote.from_wire(self._pair(asked))

    def _pair(self, asked: dict[str, Any]) -> Any:
        lanes: Lanes = self._lanes
        lanes.enter()
        try:
            self._keep_what_is_due()
            _, infos = lanes.request(asked)[0]
            told = infos[0]["dsec"]
            if "infra_failure" in told and lanes.flags[0] & FLAG_INFRA:
                object.__setattr__(self, "_lost", infos[0])
                cause = told["infra_failure"]["cause"]
                raise EnvironmentLost(f"the environment was lost in {asked['do']}: {cause}")
            return told["answer"][0]
        finally:
            lanes.leave()

    def _check(self, action: Any, into: Any, floats: list[NDArray[Any]]) -> None:
        """Write an action into arrays, if it is one."""
        try:
            self._write(into, 0, action)
        except LayoutError as error:
            raise InvalidAction(str(error)) from None
        for array in floats:
            if np.isnan(array).any():
                raise InvalidAction(f"action: {action!r} is not a number (NaN)")

    def _answer(self, notable: bool) -> Step:
        """What came of a step; raise what the environment raised in it."""
        lanes: Lanes = self._lanes
        info: dict[str, Any] = {}
        flags = 0
        if notable:
            info = self._told()
            flags = int(lanes.flags[0])
        reward = float(lanes.reward[0])
        self._window.append(reward)
        ends = bool(flags & FLAG_TERMINATED), bool(flags & FLAG_TRUNCATED)
        return self._read(lanes.obs, 0), reward, *ends, info

    def _coasted(self, coast: Coasting, action: Any) -> Step:
        """A step where the environment's process is not waited for at all costs."""
        lanes: Lanes = self._lanes
        if coast.due:
            self._check(action, coast.actions, self._unsent)
        else:
            if lanes.busy:
                lanes.settle()
            self._check(action, lanes.actions, self._floats)
        if coast.holds:
            return coast.take()
        notable = coast.answer(action)
        if notable is None:
            return self._read(lanes.obs, 0), 0.0, False, False, coast.stale()
        coast.keep(lambda: self._answer(notable))
        return coast.take()

    def _keep_what_is_due(self) -> None:
        """Something else is asked for while a step's answer is due: that is returned later."""
        coast: Coasting | None = self._coast
        if coast is not None and coast.due and not coast.holds:
            notable = self._lanes.send(again=True)
            coast.keep(lambda: self._answer(notable))

    def _forget_what_was(self) -> None:
        object.__setattr__(self, "_lost", None)
        if self._coast is not None:
            self._coast.forget()

    def _told(self) -> dict[str, Any]:
        """The info of the step; raise what the environment raised in it."""
        lanes: Lanes = self._lanes
        _, (info,) = lanes.told(0)
        raised = remote.raised(info) if "dsec" in info else None
        if raised is not None:
            raise raised
        return info

    def _end_as_lost(self) -> Any:
        """The step in which it turns out that the environment was lost before (G4)."""
        info = self._lost
        object.__setattr__(self, "_lost", None)
        return self._result(self._read(self._lanes.obs, 0), 0.0, False, True, info)

    def _result(self, obs: Any, reward: float, terminated: bool, truncated: bool, info: Any) -> Any:
        if self._step_api == "gymnasium":
            return obs, reward, terminated, truncated, info
        if truncated:
            info = {**info, "TimeLimit.truncated": not terminated}
        return obs, reward, terminated or truncated, info


_OWN = frozenset(
    ("observation_space", "action_space", "metadata", "render_mode", "spec", "_lanes", "_lost")
)


def _floats(tree: Any) -> list[NDArray[Any]]:
    """The arrays of a tree that may hold what is no number."""
    return [each for each in arrays(tree) if each.dtype.kind in "fc"]


def _method(env: TrackedEnv, name: str, doc: str) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        return env.call(name, *args, **kwargs)

    method.__name__, method.__doc__ = name, doc or None
    return method
