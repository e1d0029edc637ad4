"""What keys of the pool that name other hosts have to say together."""

from __future__ import annotations

import pytest

from dsec.config import loads
from dsec.errors import ConfigError

TEXT = """
run: {steps: 10}
agents: [{name: a, env: {id: CartPole-v1}, policy: {entry: "dsec.policies:RandomPolicy"}}]
pool: {%s}
"""


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ("replicas: 1", "need as many hosts"),
        ('replicas: 2, peers: ["a:1"], token_file: t', "`peers` has 1"),
        ('replicas: 1, peers: ["a:1"]', "token_file"),
        ('peers: ["a:1", "a:1"]', "named twice"),
        ('peers: ["a"]', "expected host:port"),
        ('peers: ["a:99999"]', "expected host:port"),
        ('replicas: 1, peers: ["a:1"], token_file: t, backend: shm', "reaches no other host"),
        ("backend: tcp", "nobody to reach"),
        ("lease_s: 0", "must be more than 0"),
    ],
)
def test_what_does_not_fit_together_is_named(pool: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        loads(TEXT % pool, "c.yaml")


def test_what_fits_is_taken() -> None:
    pool = loads(
        TEXT % 'replicas: 1, peers: ["[::1]:7", "b:8"], token_file: t', "c.yaml"
    ).config.pool
    assert pool is not None
    assert (pool.replicas, pool.peers, pool.lease_s) == (1, ["[::1]:7", "b:8"], 20.0)
