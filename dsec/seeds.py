"""How every agent's randomness follows from the run's seed and the agent's name.

Names and not positions: putting an agent into a configuration, or taking one out, changes nobody
else's seed. SHA-256 because the result must never depend on a library's version, on the machine or
on PYTHONHASHSEED; runners derive the streams of their own parts from what this gives them.
"""

from __future__ import annotations

import hashlib
import secrets

# Part of the digest's input. A change of the derivation gets a new word here, so that a seed of one
# version can't be taken for that of another.
_DOMAIN = b"dsec/agent-seed/1"
_FORK_DOMAIN = b"dsec/fork-seed/1"


def agent_seed(run_seed: int, name: str) -> str:
    """The 128-bit seed of one agent as 32 hexadecimal digits.

    Args:
        run_seed: the run's seed, at least 0, less than 2**64.
        name: the agent's full name, with its number.
    """
    digest = hashlib.sha256(_DOMAIN + b"\0" + run_seed.to_bytes(8, "little") + name.encode())
    return digest.hexdigest()[:32]


def fork_seed(run_seed: int, name: str, atom: int, index: int) -> int:
    """The seed of a run whose agent was forked: at least 0, less than 2**63.

    Args:
        run_seed: of the run that it was forked from.
        name: the agent's full name.
        atom: the id of the atom.
        index: which of this atom's forks.
    """
    text = f"{run_seed}/{atom}/{index}/{name}"
    digest = hashlib.sha256(_FORK_DOMAIN + b"\0" + text.encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def fresh_run_seed() -> int:
    """A seed for a run whose configuration gives none: at least 0, less than 2**32."""
    return secrets.randbits(32)
