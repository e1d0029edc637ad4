"""The hash chain once more, in plain Python, from what a scripted agent is known to have done.

Knows neither records nor tables: values go in, and the chain's value at every transition comes out.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import xxhash
from gymnasium import Space

from dsec.ipc.layout import FLAG_ASIDE, FLAG_INFRA, Layout, Leaf
from dsec.runners.records import flatten
from tests.runners.scripted import ScriptedAgent


def tree_hash(space: Space[Any], trees: list[Any]) -> bytes:
    """Hash the values of several environments, leaf by leaf; what has no fixed size comes last."""
    fixed, loose = b"", b""
    for k, leaf in enumerate(Layout(space, 1).order):
        for tree in trees:
            value = flatten(space, tree)[k]
            if isinstance(leaf, Leaf):
                fixed += np.asarray(value, leaf.dtype).tobytes()
            else:
                encoded = leaf.encode(value)
                loose += struct.pack("<Q", len(encoded)) + encoded
    return xxhash.xxh3_128_digest(fixed + loose)


def reference(agent: ScriptedAgent, count: int) -> list[bytes]:
    """The chain's values at 0 ... count."""
    truth, n = agent.truth, agent.n
    values = [xxhash.xxh3_128_digest(b"dsec chain 1")]
    begins = [True] * n
    for seq in range(count):
        flags = truth.flags[seq + 1]
        if flags[0] & (FLAG_INFRA | FLAG_ASIDE):
            values.append(xxhash.xxh3_128_digest(values[-1] + b"infra"))
            begins = [True] * n
            continue
        parts = values[-1]
        if any(begins):
            left = [obs for obs, begin in zip(truth.obs[seq], begins, strict=True) if begin]
            parts += tree_hash(agent.obs_space, left)
        finals = truth.finals[seq + 1]
        led = [finals.get(i, obs) for i, obs in enumerate(truth.obs[seq + 1])]
        parts += tree_hash(agent.obs_space, led)
        parts += tree_hash(agent.action_space, truth.actions[seq])
        parts += struct.pack(f"<{n}d", *truth.rewards[seq])
        parts += struct.pack(f"<{n}d", *truth.env_rewards[seq + 1])
        values.append(xxhash.xxh3_128_digest(parts + bytes(flags)))
        begins = [flag != 0 for flag in flags]
    return values
