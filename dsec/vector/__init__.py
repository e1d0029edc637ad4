"""dsec.vector: many environments that may crash, stepped together as one `VectorEnv`.

    from dsec.vector import make_vec

    envs = make_vec("CartPole-v1", 8)      # in place of gymnasium.make_vec
    obs, infos = envs.reset(seed=1)

or, by Gymnasium's own function, `gymnasium.make_vec("dsec.vector:dsec/Vector-v0", 8,
env_id="CartPole-v1")`. Owns the names; what Gymnasium says of vector environments is env.py's, in
the way of its SyncVectorEnv; the processes, rings and waits are those of `dsec.sandbox`.
"""

from __future__ import annotations

import gymnasium

from dsec.vector.env import IsolatedVectorEnv
from dsec.vector.make import make_vec

__all__ = ["ID", "IsolatedVectorEnv", "make_vec"]

ID = "dsec/Vector-v0"

if ID not in gymnasium.registry:
    gymnasium.register(id=ID, vector_entry_point="dsec.vector:make_vec")
