"""The calls that people make, beside what they replace: SB3 rollouts, a step of a sandbox, vectors,
and the description's table of episodes a second.

Owns the loops. The rollouts are those of SB3's own PPO (its `collect_rollouts`), with its network
and its actions; their observations are compared bit for bit before anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env as theirs
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from bench import envs, peers
from bench import run as whole
from bench.measure import Figures, Result, interleave, paced
from bench.vector import timed
from dsec.integrations.sb3 import make_vec_env
from dsec.sandbox import AgentSandbox
from dsec.vector import make_vec

LANES, STEPS = 8, 128
DUMMY = "SB3 DummyVecEnv, no isolation"
SUBPROC = "SB3 SubprocVecEnv"


class Rollouts:
    """PPO on one vector: one call is one rollout of STEPS steps of each environment."""

    def __init__(self, vector: Any, stack: ExitStack) -> None:
        stack.callback(vector.close)
        torch.set_num_threads(1)
        self.model = PPO("MlpPolicy", vector, n_steps=STEPS, seed=1, device="cpu")
        _, self.callback = self.model._setup_learn(1_000_000, None)

    def collect(self) -> Any:
        """One rollout; returns its buffer."""
        model = self.model
        assert model.env is not None
        buffer: Any = model.rollout_buffer
        model.collect_rollouts(model.env, self.callback, buffer, STEPS)
        return buffer

    def seconds(self) -> float:
        """What one takes."""
        start = time.perf_counter()
        self.collect()
        return time.perf_counter() - start


def sb3(quick: bool) -> Result:
    """SB3 PPO on CartPole, eight environments."""
    rounds = 3 if quick else 25
    makers: dict[str, Callable[[], Any]] = {
        DUMMY: lambda: theirs("CartPole-v1", LANES, seed=1, vec_env_cls=DummyVecEnv),
        SUBPROC: lambda: theirs(
            "CartPole-v1",
            LANES,
            seed=1,
            vec_env_cls=SubprocVecEnv,
            vec_env_kwargs={"start_method": "fork"},
        ),
    }
    for width in (1, 4, 8):
        name = f"isolated, {LANES // width} process{'es' if width < LANES else ''} of {width}"
        makers[name] = partial(make_vec_env, "CartPole-v1", LANES, 1, envs_per_process=width)
    with ExitStack() as stack:
        rollouts = {name: Rollouts(make(), stack) for name, make in makers.items()}
        first = {}
        for name, each in rollouts.items():
            torch.manual_seed(1)  # the actions are drawn from the program's own generator
            first[name] = each.collect()
        plain = first[DUMMY]
        same = all(
            getattr(each, part).tobytes() == getattr(plain, part).tobytes()
            for each in first.values()
            for part in ("observations", "actions", "rewards", "episode_starts", "values")
        )
        samples = interleave({name: each.seconds for name, each in rollouts.items()}, rounds)
    isolated = [name for name in makers if name.startswith("isolated")]
    note = (
        f"Seconds for a rollout of {STEPS} steps of each. Bit-identical in all candidates: {same}."
        f" Wanted besides: at least 2 times {SUBPROC}; found "
        + ", ".join(
            f"{np.median(np.array(samples[SUBPROC]) / np.array(samples[name])):.2f} ({name})"
            for name in isolated
        )
        + "."
    )
    return Result(
        f"SB3 PPO rollouts, {LANES} x CartPole-v1",
        "s",
        samples,
        DUMMY,
        better="lower",
        target=dict.fromkeys(isolated, 1 / 1.1),
        note=note,
    )


def one_step(quick: bool) -> Figures:
    """TrackedEnv.step over the bare step, while its process is awake."""
    seconds, rounds = (0.3, 3) if quick else (1.0, 9)
    found = Figures("A step of a sandbox, CartPole-v1")
    actions = [int(each) for each in np.random.default_rng(1).integers(0, 2, 1000)]
    with ExitStack() as stack:
        plain = gymnasium.make("CartPole-v1", disable_env_checker=True)
        kept = stack.enter_context(AgentSandbox("CartPole-v1", seed=1)).get_env()
        bare = AgentSandbox("CartPole-v1", seed=1, resource_profile="unprotected")
        unkept = stack.enter_context(bare).get_env()

        def per_step(env: Any) -> float:
            env.reset(seed=1)

            def step(number: int) -> None:
                _, _, terminated, truncated, _ = env.step(actions[number % 1000])
                if terminated or truncated:
                    env.reset()

            return 1e6 / paced(step, 1, seconds)

        names = {"bare": plain, "sandbox": kept, "sandbox, unprotected": unkept}
        trials = {name: partial(per_step, env) for name, env in names.items()}
        samples = interleave(trials, rounds)
    found.add("plain gymnasium.make", float(np.median(samples["bare"])), "us a step")
    for name in ("sandbox", "sandbox, unprotected"):
        more = np.array(samples[name]) - np.array(samples["bare"])
        found.add(f"{name}, over the plain one", float(np.median(more)), "us a step", "≤ 25 us")
    found.note = "Resets, which are requests, are in it as often as CartPole falls."
    return found


def vectors(quick: bool) -> Result:
    """What copies, protection and next-step autoreset cost `make_vec` as it is by default."""
    seconds, rounds = (0.3, 3) if quick else (1.0, 9)
    settings: dict[str, dict[str, Any]] = {
        "as bench vector has it": {
            "autoreset_mode": "SameStep",
            "copy": False,
            "resource_profile": "unprotected",
        },
        "make_vec by default": {},
        "make_vec, SameStep": {"autoreset_mode": "SameStep"},
    }
    with ExitStack() as stack:
        trials = {}
        for name, given in settings.items():
            made = make_vec("CartPole-v1", LANES, seed=0, **given)
            stack.callback(made.close)
            made.reset(seed=0)
            trials[name] = timed(made.step, "cartpole", LANES, seconds)
        trials["Gymnasium AsyncVectorEnv"] = timed(
            peers.async_vector("cartpole", LANES, stack), "cartpole", LANES, seconds
        )
        samples = interleave(trials, rounds)
    title, first = f"make_vec, {LANES} x CartPole-v1", "as bench vector has it"
    target = {"make_vec by default": 1.0}
    return Result(title, "steps/s", samples, first, target=target)


def table(quick: bool) -> Result:
    """Episodes a second of a policy in torch: the description's table on this machine."""
    seconds, rounds = (1.0, 2) if quick else (3.0, 5)
    plain = "plain Gymnasium and torch loop"
    with ExitStack() as stack:
        trials: dict[str, Callable[[], float]] = {
            plain: lambda: whole.in_process(f"plain_loop({seconds}, True)")[1]
        }
        ours = {
            "default": {"snapshot_interval": 50},
            "tuned": {"snapshot_interval": 250, "copy": False, "envs_per_process": LANES // 2},
        }
        for name, given in ours.items():
            made = make_vec("CartPole-v1", LANES, seed=0, autoreset_mode="SameStep", **given)
            stack.callback(made.close)
            trials[name] = partial(episodes, made.step, made.reset, seconds)
        actors = peers.ray_actors("cartpole", LANES, stack)
        trials["Ray actors"] = partial(episodes, actors, None, seconds)
        samples = interleave(trials, rounds)
    return Result(
        f"{LANES} x CartPole-v1 with a policy in torch",
        "episodes/s",
        samples,
        plain,
        target={"default": 3.3, "tuned": 5.6},
        note="The plain loop has one environment; the others one forward for all eight. Tuned: two"
        " processes, fewer snapshots, no copies.",
    )


def episodes(step: peers.Step, reset: Any, seconds: float) -> float:
    """Episodes a second of a vector that a torch policy plays."""
    policy = whole.policy_of(envs.make("cartpole"), LANES)
    obs = reset(seed=0)[0] if reset is not None else np.zeros((LANES, 4), np.float32)
    ended, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(20):
            obs, _, terminated, truncated, *_ = step(policy.act(obs))
            ended += int(np.count_nonzero(terminated | truncated))
    return ended / (time.perf_counter() - start)


def run(quick: bool) -> list[Result | Figures]:
    """All of it."""
    return [sb3(quick), one_step(quick), vectors(quick), table(quick)]
