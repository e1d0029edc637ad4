"""Eight isolated environments in lockstep, against Gymnasium's AsyncVectorEnv.

Owns a caller that plays the policy of N agents itself. The environments run in env runners that
the real kernel starts and supervises; `dsec.ipc.group.Lockstep` steps them. Both sides get the same
actions, drawn beforehand, and hand back observations, rewards and flags in contiguous arrays.
"""

from __future__ import annotations

import asyncio
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import gymnasium
import numpy as np
import uvloop
from numpy.typing import NDArray

from bench.envs import make_frames
from bench.measure import Result, interleave
from dsec.hooks import Hooks
from dsec.ipc.frames import EnvSettings, Phase, Role, Start
from dsec.ipc.group import Lockstep, Piece
from dsec.ipc.layout import EnvRecord, Layout, decode_spaces
from dsec.ipc.ring import Outbox, Peer, Reader
from dsec.ipc.segment import Segment
from dsec.kernel.supervisor import Supervisor
from dsec.report import AgentReport, Death
from dsec.spec import AgentSpec, ImageSpec, RunnerSpec, RunSpec

LANES = 8
LIMIT_S = 30.0
MODULES = ("numpy", "gymnasium", "dsec.runners.env")


class Attach(Hooks):
    """Takes hold of each agent's rings as soon as the kernel has wired them."""

    def __init__(self) -> None:
        self.wired_lanes: queue.Queue[tuple[str, Outbox, Reader, bytes] | Death] = queue.Queue()

    def agent(self, report: AgentReport) -> None:
        pass

    def death(self, death: Death) -> None:
        self.wired_lanes.put(death)

    def wired(self, agent: str, segments: Mapping[Role, Segment], spaces: bytes) -> bool:
        """Map the policy's outbox for writing and the env's for reading."""
        mine, other = segments[Role.POLICY], segments[Role.ENV]
        outbox = Outbox(mine.fd, mine.size, Role.POLICY)
        peer = Peer(other.fd, other.size, Role.ENV)
        outbox.add_reader(peer)
        self.wired_lanes.put((agent, outbox, Reader(outbox, peer), spaces))
        return False


class IsolatedVector:
    """N env runners under a supervisor in a thread of its own; `step` is one lockstep.

    Attributes:
        obs, reward, flags: what the last step gave, one row for each environment.
    """

    def __init__(self, env: EnvSettings, lanes: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dsec-bench-")
        self._hooks = Attach()
        self._spec = self._make_spec(env, lanes)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="supervisor")
        self._thread.start()
        self._ready.wait(LIMIT_S)
        try:
            self._connect(lanes)
        except BaseException:
            self.close()
            raise

    def _make_spec(self, env: EnvSettings, lanes: int) -> RunSpec:
        deadlines = dict.fromkeys(Phase, 60.0)
        agents = []
        for lane in range(lanes):
            name = f"lane-{lane:03}"
            starts = {
                role: Start(agent=name, role=role, epoch=0, seed=f"{lane:032x}", env=env)
                for role in (Role.ENV, Role.POLICY)
            }
            runners = (
                RunnerSpec(Role.ENV, "base", starts[Role.ENV], deadlines),
                RunnerSpec(Role.POLICY, "base", starts[Role.POLICY], external=True),
            )
            agents.append(AgentSpec(name, "lane", runners))
        return RunSpec(
            name="bench",
            run_dir=self._folder.name,
            seed=0,
            images=(ImageSpec("base", MODULES),),
            agents=tuple(agents),
            recorder=False,
        )

    def _serve(self) -> None:
        async def supervise() -> None:
            self._loop = asyncio.get_running_loop()
            self._supervisor = Supervisor(self._spec, self._hooks)
            self._ready.set()
            await self._supervisor.run()

        uvloop.run(supervise())

    def _connect(self, lanes: int) -> None:
        found: dict[str, tuple[Outbox, Reader, bytes]] = {}
        while len(found) < lanes:
            item = self._hooks.wired_lanes.get(timeout=LIMIT_S)
            if isinstance(item, Death):
                raise RuntimeError(item.cause)
            found[item[0]] = item[1:]
        pairs = [found[name][:2] for name in sorted(found)]
        observation_space, action_space = decode_spaces(next(iter(found.values()))[2])
        record, action = EnvRecord(observation_space, 1), Layout(action_space, 1)
        (obs_leaf,), (action_leaf,) = record.layout.leaves, action.leaves
        self.obs = np.zeros((lanes, *observation_space.shape), observation_space.dtype)
        self.reward = np.zeros(lanes)
        self.flags = np.zeros(lanes, np.uint8)
        self.actions = np.zeros(lanes, np.int64)
        assert self.obs.nbytes == lanes * record.layout.nbytes
        self._lockstep = Lockstep(
            pairs,
            actions=[Piece(action_leaf.offset, self.actions)],
            sinks=[
                Piece(record.reward_off, self.reward),
                Piece(record.flags_off, self.flags),
                Piece(record.obs_off + obs_leaf.offset, self.obs),
            ],
            action_bytes=action.nbytes,
            fixed_bytes=record.fixed_bytes,
        )
        self._lockstep.gather(LIMIT_S)

    def step(self, actions: NDArray[np.int64]) -> None:
        """Send the actions, wait for all environments."""
        self.actions[:] = actions
        self._lockstep.step(LIMIT_S)

    def close(self) -> None:
        """Stop the runners and the supervisor."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._supervisor.request_kill)
        self._thread.join(LIMIT_S)
        self._folder.cleanup()

    def __enter__(self) -> IsolatedVector:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def paced(step: Callable[[NDArray[np.int64]], Any], choices: int, seconds: float) -> float:
    """Environment steps a second, over about that many seconds."""
    drawn = np.random.default_rng(1).integers(0, choices, (1000, LANES))
    done, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        for number in range(done, done + 50):
            step(drawn[number % 1000])
        done += 50
    return done * LANES / took


def compare(
    name: str, env: EnvSettings, make: Callable[[], Any], choices: int, wanted: float, quick: bool
) -> Result:
    """Isolated runners against AsyncVectorEnv, in its two autoreset modes."""
    seconds, rounds = (0.3, 3) if quick else (1.0, 15)
    modes = gymnasium.vector.AutoresetMode
    with ExitStack() as stack:
        mine = stack.enter_context(IsolatedVector(env, LANES))
        candidates: dict[str, Callable[[], float]] = {}
        for label, mode in (("default", modes.NEXT_STEP), ("same-step", modes.SAME_STEP)):
            theirs = gymnasium.vector.AsyncVectorEnv(
                [make] * LANES, shared_memory=True, copy=False, context="fork", autoreset_mode=mode
            )
            stack.callback(theirs.close)
            theirs.reset(seed=0)
            candidates[f"AsyncVectorEnv, {label}"] = lambda v=theirs: paced(
                v.step, choices, seconds
            )
        candidates["isolated env runners"] = lambda: paced(mine.step, choices, seconds)
        samples = interleave(candidates, rounds)
    return Result(
        name,
        "steps/s",
        samples,
        "AsyncVectorEnv, default",
        target={"isolated env runners": wanted},
        note="AsyncVectorEnv with shared memory and without copies. Its default autoreset spends "
        "a step on each reset, which is counted as a step here; ours resets in the same step.",
    )


def run(quick: bool) -> list[Result]:
    """CartPole, then frames."""
    cartpole = compare(
        f"{LANES} x CartPole-v1 in lockstep",
        EnvSettings(id="CartPole-v1"),
        lambda: gymnasium.make("CartPole-v1"),
        2,
        6.0,
        quick,
    )
    frames = compare(
        f"{LANES} x 64x64x3 frames in lockstep",
        EnvSettings(entry="bench.envs:make_frames"),
        make_frames,
        4,
        12.0,
        quick,
    )
    return [cartpole, frames]
