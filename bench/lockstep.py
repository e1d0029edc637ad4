"""Isolated environments stepped by a caller that plays the policy of all of them itself.

Owns what is measured of the project in the benchmarks of environments: env runners that the real
kernel starts and supervises, stepped together by `dsec.ipc.group.Lockstep`. Knows no peer.
"""

from __future__ import annotations

import asyncio
import queue
import tempfile
import threading
from collections.abc import Mapping
from types import TracebackType

import numpy as np
import uvloop
from numpy.typing import NDArray

from dsec.hooks import Hooks
from dsec.ipc.frames import EnvSettings, Phase, Role, Start
from dsec.ipc.group import Lockstep, Piece
from dsec.ipc.layout import EnvRecord, Layout, decode_spaces
from dsec.ipc.ring import Outbox, Peer, Reader
from dsec.ipc.segment import Segment
from dsec.kernel.supervisor import Supervisor
from dsec.report import AgentReport, Death
from dsec.spec import AgentSpec, ImageSpec, RunnerSpec, RunSpec

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
    """Env runners under a supervisor in a thread of its own; `step` is one lockstep.

    Args:
        env: what each environment is made from.
        lanes: env runners.
        num_envs: environments in each.

    Attributes:
        obs, reward, flags: what the last step gave, one row for each environment.
    """

    def __init__(self, env: EnvSettings, lanes: int, num_envs: int = 1) -> None:
        self._num_envs = num_envs
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
                role: Start(
                    agent=name,
                    role=role,
                    epoch=0,
                    seed=f"{lane:032x}",
                    env=env,
                    num_envs=self._num_envs,
                )
                for role in (Role.ENV, Role.POLICY)
            }
            runners = (
                RunnerSpec(Role.ENV, "base", starts[Role.ENV], deadlines),
                RunnerSpec(Role.POLICY, "base", starts[Role.POLICY], external=True),
            )
            agents.append(AgentSpec(name, "lane", runners, num_envs=self._num_envs))
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
            self._supervisor = Supervisor(self._spec, self._hooks, shared_process=True)
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
        n = self._num_envs
        record, action = EnvRecord(observation_space, n), Layout(action_space, n)
        (obs_leaf,), (action_leaf,) = record.layout.leaves, action.leaves
        assert observation_space.shape is not None
        self.obs = np.zeros((lanes * n, *observation_space.shape), observation_space.dtype)
        self.reward = np.zeros(lanes * n)
        self.flags = np.zeros(lanes * n, np.uint8)
        self.actions = np.zeros(lanes * n, np.int64)
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
