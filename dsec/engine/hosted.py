"""From an order to what the kernel runs: agents whose policy is the program that orders. Pure.

Owns what such agents have that those of `dsec-kernel run` don't, and the other way round: no policy
is forked, nothing bounds the steps, and a reward role is there only where somebody reads it.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from dsec.config import Agent, Chaos
from dsec.engine.images import BASE_IMAGE, Images
from dsec.engine.plan import IMPORT_TIMEOUT_S, Quota, agent_spec
from dsec.engine.talk import Order
from dsec.ipc.frames import Role
from dsec.seeds import agent_seed
from dsec.spec import AgentSpec, PoolSpec, RunnerSpec, RunSpec


def lane_name(name: str, lane: int) -> str:
    """What a lane's agent is called."""
    return f"{name}-{lane:03}"


def hosted_spec(order: Order, agent: Agent, *, run_dir: str, open_files: int) -> RunSpec:
    """The kernel's orders.

    Args:
        agent: of the order.
        run_dir: an existing directory.
        open_files: the limit on descriptors that runners get.
    """
    images = Images()
    lanes = []
    for lane in range(order.lanes):
        name = lane_name(agent.name, lane)
        seed = agent_seed(order.seed, name)
        made = agent_spec(
            agent, name, Quota(), seed, open_files, images, Chaos(), atoms=order.pool is not None
        )
        lanes.append(_for_caller(made, order, lane))
    timeout_s = max(IMPORT_TIMEOUT_S, agent.deadlines.construct_s)
    return RunSpec(
        name=agent.name,
        run_dir=run_dir,
        seed=order.seed,
        images=images.specs(timeout_s),
        agents=tuple(lanes),
        record_format=order.record,
        recorder=bool(order.out),
        recorder_image=BASE_IMAGE,
        pool=_pool(order, agent),
    )


def _pool(order: Order, agent: Agent) -> PoolSpec | None:
    if order.pool is None:
        return None
    intervals = {agent.name: agent.snapshot_interval}
    return PoolSpec(
        order.pool["name"],
        order.pool["size_mb"],
        order.pool["persist"],
        snapshot_intervals=intervals,
    )


def _for_caller(made: AgentSpec, order: Order, rank: int) -> AgentSpec:
    runners: list[RunnerSpec] = []
    for runner in made.runners:
        if runner.role is Role.REWARD and not (order.reward or order.out):
            continue
        if runner.role is Role.POLICY:
            runner = replace(runner, external=True)
        else:
            start = msgspec.structs.replace(runner.start, caller=order.autoreset)
            runner = replace(runner, start=start)
        runners.append(runner)
    return replace(made, runners=tuple(runners), rank=rank)
