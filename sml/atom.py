"""What an Agent State Atom is: the values, typed, and nothing about how they are stored.

An atom is all of one agent's state at one boundary: random state, the environment, the window of
rewards, the policy, the calls of tools. Capture fills it, restore reads it, codec.py turns it into
bytes. Bytes inside are opaque here: which codec made them is said beside them, and only that codec
of the same role reads them. This file knows no numpy, no environment and no protobuf.

The values are frozen msgspec structs, which are made ten times as fast as frozen dataclasses.
"""

from __future__ import annotations

import enum
import uuid
from typing import TypeAlias

from msgspec import Struct

JsonScalar: TypeAlias = bool | int | float | str


class Faith(enum.IntEnum):
    """Whether restoring gives the same future, and how that is known."""

    UNKNOWN = 0
    PROVEN = 1
    """Restored into a scratch process and compared, step by step."""
    BY_CONTRACT = 2
    """The owner registered get and set, or the simulator's own interface promises it."""
    REPLAYED = 3
    """Not a snapshot but a seed and the actions since; the hashes decide when it is replayed."""
    UNFAITHFUL = 4
    """Known to lose something. What it is stands in `evidence`."""


class Manifest(Struct, frozen=True, gc=False):
    """Which atom this is. Written last: an atom with a manifest is whole.

    Attributes:
        id: global and monotonic (ids.py).
        uuid: the same, for those who have no context.
        agent: its name.
        agent_rank: its place among the run's agents.
        episode: of this agent, from 0.
        rollout: of this agent, from 0.
        seq: the boundary: everything is as it was before action `seq`.
        chain: value of the agent's hash chain there; empty if none is kept.
        config: hash of the part of the configuration that the state depends on; empty if unknown.
        parent: id of the atom that this agent was forked from; None if it was not.
        fork_index: which of the parent's forks.
    """

    id: int
    uuid: uuid.UUID
    agent: str
    agent_rank: int
    episode: int
    rollout: int
    seq: int
    chain: bytes = b""
    config: bytes = b""
    parent: int | None = None
    fork_index: int = 0


class Role(enum.IntEnum):
    """Which of an agent's processes a piece of state lives in."""

    ENV = 0
    POLICY = 1
    REWARD = 2


class Seed(Struct, frozen=True, gc=False):
    """A generator that nobody drew from since it was seeded, or a numpy SeedSequence.

    Attributes:
        entropy: as little-endian 32-bit words.
        spawn_key: of a SeedSequence.
        pool_size: of a SeedSequence.
        children_spawned: its counter, which a restored one must continue.
    """

    entropy: bytes
    spawn_key: tuple[int, ...] = ()
    pool_size: int = 4
    children_spawned: int = 0


class Generator(Struct, frozen=True, gc=False):
    """One source of random numbers.

    Attributes:
        role: whose process it lives in.
        kind: `python`, `numpy` (the legacy one), `numpy.Generator`, `torch.cpu`, `torch.cuda:0`.
        where: how it is reached, as `env.unwrapped.np_random`; empty for the process' own.
        engine: `MT19937`, `PCG64`, …
        seed: what it was seeded with, if known. Without `state` the generator is untouched, and
            this is all that has to be stored.
        state: its words, little endian, as the engine has them; None if untouched.
        position: where in its words an engine with a buffer stands.
        has_spare: is half of a drawn word, or the second of two Gaussians, kept for later?
        spare_uint: the half word.
        spare_gauss: the Gaussian.
    """

    role: Role
    kind: str
    where: str
    engine: str
    seed: Seed | None = None
    state: bytes | None = None
    position: int = 0
    has_spare: bool = False
    spare_uint: int = 0
    spare_gauss: float = 0.0


class RandomState(Struct, frozen=True, gc=False):
    """All random state of an agent.

    Attributes:
        generators: in the order in which they were found, which restore keeps.
        flags: of torch, as `deterministic_algorithms`; empty where torch isn't loaded.
    """

    generators: tuple[Generator, ...] = ()
    flags: tuple[tuple[str, JsonScalar], ...] = ()


class Snapshot(Struct, frozen=True, gc=False):
    """State of an object, as one codec took it: an environment, a policy, a reward, one's own.

    Attributes:
        codec: its name and version, as `attributes/1`.
        data: what it made; only that codec reads it.
        faith: does restoring give the same future?
        evidence: how that is known, for people.
        index: of which environment of a vector, where the codec takes them one by one.
    """

    codec: str
    data: bytes
    faith: Faith = Faith.UNKNOWN
    evidence: str = ""
    index: int = 0


class RewardWindow(Struct, frozen=True, gc=False):
    """The latest rewards, as reward code that looks back needs them.

    Attributes:
        length: steps that the window keeps at most.
        first_seq: transition of the oldest one in it.
        num_envs: values for each transition.
        rewards: float64, little endian, shape (steps, num_envs).
        raw: the environment's own rewards, the same way; empty if not kept.
        state: of the reward object, None if it has none.
    """

    length: int
    first_seq: int
    num_envs: int
    rewards: bytes
    raw: bytes = b""
    state: Snapshot | None = None

    @property
    def steps(self) -> int:
        """How many transitions there are in it."""
        return len(self.rewards) // (8 * self.num_envs) if self.num_envs else 0


class ToolCall(Struct, frozen=True, gc=False):
    """One call of something outside. Its intent is logged before, its result before it is seen.

    Attributes:
        call: its number within the agent.
        seq: before which action it was made.
        tool: its name.
        arguments: in the codec of ipc/values.py.
        result: the same; None if no result was logged.
        error: what it raised, as text; empty if it did not.
        idempotent: declared so: it may be made again.
    """

    call: int
    seq: int
    tool: str
    arguments: bytes
    result: bytes | None = None
    error: str = ""
    idempotent: bool = False

    @property
    def unresolved(self) -> bool:
        """It may have had its effect or not; nobody knows, so it isn't made again by itself."""
        return self.result is None and not self.error


class Atom(Struct, frozen=True, gc=False):
    """All of one agent's state at one boundary.

    Attributes:
        env: a snapshot for each environment, or one for all; empty if none could be taken.
        policy: its whole state; None where the caller is the policy and registered nothing.
        registered: what the caller registered, by name, in the order of registration.
        observation: the record that observation `seq` was published in, for who continues the agent
            where its rings are gone: payload of the env's ring, whole; empty if not kept.
    """

    manifest: Manifest
    random: RandomState = RandomState()
    env: tuple[Snapshot, ...] = ()
    rewards: RewardWindow | None = None
    policy: Snapshot | None = None
    tools: tuple[ToolCall, ...] = ()
    registered: tuple[tuple[str, Snapshot], ...] = ()
    observation: bytes = b""
