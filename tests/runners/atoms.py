"""Atoms of agents, captured from environments, policies and rewards that lived in this process.

The agent is constructed, seeded and stepped by the code of the runners, just without rings; then
its codecs capture it. What runners do with such an atom can so be tested role by role.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from dsec.failover.codecs import find_codec, find_object_codec
from dsec.ipc.channel import Channel, pair
from dsec.ipc.frames import Origin, Role
from dsec.ipc.layout import FLAG_TERMINATED, FLAG_TRUNCATED, Layout
from dsec.runners import seeds
from dsec.runners.construct import make_actor
from dsec.runners.contract import Transitions
from dsec.runners.loop import Session
from dsec.runners.stage import Stage
from dsec.sml import codec, ids, spill
from dsec.sml.atom import Atom, Faith, Manifest, RewardWindow, Snapshot
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmPool
from tests.runners.kernel import AgentPlan


def lived(
    plan: AgentPlan, seq: int, *, rank: int = 0, ranks: int = 1, space: ids.Space = (7, 8)
) -> Atom:
    """The atom of an agent that has published observation `seq`, and not acted on it."""
    with _own_generators(), _sessions(plan) as session:
        stage = Stage(session[Role.ENV])
        life = _Life(plan, session, stage)
        for n in range(seq):
            life.step(n)
        atom = life.capture(seq, rank, ranks, space)
        stage.close()
    return atom


def stored(folder: Path, atom: Atom) -> Origin:
    """The atom on disk, as a Start names it."""
    manifest = atom.manifest
    with closing(ShmPool.create(f"test-{uuid.uuid4().hex}", 64 << 20, atoms_max=4)) as pool:
        label = Label(manifest.id, manifest.agent_rank, manifest.episode, 0, manifest.seq)
        pool.put(label, codec.encode(atom))
        (path,) = spill.spill(pool, [manifest.id], folder)
        pool.unlink()
    return Origin(str(path), manifest.seq)


@contextmanager
def _own_generators() -> Iterator[None]:
    before = random.getstate(), np.random.get_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])


@contextmanager
def _sessions(plan: AgentPlan) -> Iterator[dict[Role, Session]]:
    mine, other = pair()
    with mine, other:
        channel = Channel(mine)
        yield {
            role: Session(channel, plan.start(role))
            for role in (Role.ENV, Role.POLICY, Role.REWARD)
        }


class _Life:
    """What the three runners of an agent do with each step."""

    def __init__(self, plan: AgentPlan, session: dict[Role, Session], stage: Stage) -> None:
        self._stage, self._n, self._name = stage, plan.num_envs, plan.name
        own = seeds.environment_seeds(plan.seed, plan.num_envs)
        self._record = stage.record
        self._payload = bytearray(self._record.fixed_bytes)
        self._made = self._record.views(self._payload)
        stage.reset_all(0, own, self._made.obs)
        self._tail = stage.encode_tail(self._made.obs)
        wiring = cast(
            Any,
            SimpleNamespace(
                observation_space=stage.observation_space,
                action_space=stage.action_space,
                num_envs=plan.num_envs,
            ),
        )
        self._policy = make_actor(session[Role.POLICY], wiring, "policy", "act")
        self._reward = make_actor(session[Role.REWARD], wiring, "reward", "compute")
        self._actions = Layout(stage.action_space, plan.num_envs, "action")

    def step(self, n: int) -> None:
        record, stage, made = self._record, self._stage, self._made
        before = self._copy()
        views = self._actions.views(bytearray(max(1, self._actions.nbytes)))
        self._actions.write_batch(views, self._policy.act(self._copy()))
        action = self._actions.copy(views)
        made.obs = record.views(self._payload).obs
        stage.step(n, self._actions.read, views, made.obs, made.reward, made.flags)
        finals, infos = dict(stage.finals), list(stage.infos)
        self._tail = stage.encode_tail(made.obs)
        after = self._copy()
        for i, final in finals.items():
            after = record.layout.patched(after, i, final)
        t = Transitions(
            n, before, action, made.reward.copy(), made.reward.copy(), after,
            made.flags & FLAG_TERMINATED != 0, made.flags & FLAG_TRUNCATED != 0, infos,
        )  # fmt: skip
        if not getattr(self._reward, "passthrough", False):
            t.reward = np.asarray(self._reward.compute(t), np.float64)
        if hasattr(self._policy, "learn"):
            self._policy.learn(t)

    def _copy(self) -> Any:
        return self._record.layout.copy(self._made.obs)

    def capture(self, seq: int, rank: int, ranks: int, space: ids.Space) -> Atom:
        env = []
        for i, each in enumerate(self._stage.envs):
            codec_found, notes = find_codec(each, seed=1)
            assert codec_found is not None, notes
            data = codec_found.capture()
            env.append(Snapshot(f"{codec_found.name}/1", data, Faith.PROVEN, "", i))
        window = RewardWindow(0, 0, self._n, b"")
        if not getattr(self._reward, "passthrough", False):
            window = RewardWindow(0, 0, self._n, b"", b"", _actor(self._reward))
        number = ids.deterministic(seq, ranks, rank)
        manifest = Manifest(
            number, ids.to_uuid(space, number), self._name, rank, self._stage.episodes, 0, seq
        )
        return Atom(
            manifest,
            env=tuple(env),
            rewards=window,
            policy=_actor(self._policy),
            observation=bytes(self._payload) + self._tail,
        )


def _actor(actor: Any) -> Snapshot:
    found, notes = find_object_codec(actor)
    assert found is not None, notes
    return Snapshot(f"{found.name}/1", found.capture(), Faith.UNKNOWN)
