"""A kernel and a zygote that the runners' tests of one file share: starting one takes a while."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsec.ipc.channel import Channel
from tests.runners import worlds
from tests.runners.kernel import Agent, AgentPlan, Agents, MiniKernel, mini_kernel
from tests.runners.succession import Succession, Successions


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniKernel]:
    """A kernel for all tests of a file."""
    with mini_kernel(tmp_path_factory.mktemp("kernel")) as kernel:
        yield kernel


@pytest.fixture(scope="module")
def zygote(kernel: MiniKernel) -> Channel:
    """A zygote with the environments of worlds.py."""
    return kernel.zygote("numpy", "gymnasium", worlds.HERE)


@pytest.fixture
def agents(kernel: MiniKernel, zygote: Channel) -> Iterator[Agents]:
    """Start agents; what is left of them is fenced when the test ends."""
    started: list[Agent] = []

    def start(plan: AgentPlan) -> Agent:
        started.append(Agent(kernel, zygote, plan))
        return started[-1]

    yield start
    for agent in started:
        agent.close()


@pytest.fixture
def successions(agents: Agents, zygote: Channel) -> Iterator[Successions]:
    """Start agents whose runners are replaced when they die."""
    made: list[Succession] = []

    def start(plan: AgentPlan) -> Succession:
        made.append(Succession(agents(plan).begin(), zygote))
        return made[-1]

    yield start
    for succession in made:
        succession.close()
