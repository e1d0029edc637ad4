"""From an agent's own seed to the seed of everything random in its processes.

Each stream is named, and derived from the agent's seed and that name alone: neither the number
of agents nor of environments changes anybody's stream, and no two streams are alike.
"""

from __future__ import annotations

import hashlib
import sys

SEED_BITS = 31
"""Seeds handed to user code are this short: `numpy.random.seed` takes 32 bits, and many simulators
keep a signed int."""


SEEDED: dict[str, int] = {}
"""What `reseed_globals` has seeded in this process, and with what: who keeps a generator that is
untouched since needs no more than this."""


def derive(agent_seed: str, *stream: str | int, bits: int = SEED_BITS) -> int:
    """The seed of one stream, as `derive(start.seed, "policy")`, in [0, 2**bits)."""
    text = "/".join((agent_seed, *map(str, stream)))
    digest = hashlib.blake2b(text.encode(), digest_size=32, person=b"dsec seed").digest()
    return int.from_bytes(digest, "little") & ((1 << bits) - 1)


def environment_seeds(agent_seed: str, num_envs: int) -> list[int]:
    """One seed for each environment of an agent, all different; the first n don't depend on
    `num_envs`."""
    seeds: list[int] = []
    for index in range(num_envs):
        attempt = 0
        while (seed := derive(agent_seed, "env", index, attempt)) in seeds:
            attempt += 1
        seeds.append(seed)
    return seeds


def reseed_globals(
    agent_seed: str, role: str, *, done: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Seed the process-wide generators: a fork would repeat its siblings' numbers.

    (os.urandom, `secrets` and uuid4 ask the system and need nothing.) Libraries that are not
    loaded, and those in `done`, are left alone.

    Returns:
        The names of what is seeded now: `done` for the next call, after more has been imported.
    """
    seeded = set(done)
    for name, bits in (("random", 128), ("numpy", 32), ("torch", 63)):
        module = sys.modules.get(name)
        if module is None or name in done:
            continue
        seed = derive(agent_seed, role, name, bits=bits)
        match name:
            case "random":
                module.seed(seed)
            case "numpy":
                module.random.seed(seed)
            case _:
                module.manual_seed(seed)
        SEEDED[name] = seed
        seeded.add(name)
    return frozenset(seeded)
