"""dsec.reward: rewards that a config can name; `RewardOrchestrator` works without one as well.

A reward is computed in the agent's reward runner from each transition; the contract is
`dsec.runners.contract.Reward`. This package may import numpy and must not be imported by the
supervisor.
"""

from dsec.reward.orchestrator import RewardOrchestrator
from dsec.reward.simple import EnvReward, FunctionReward

__all__ = ["EnvReward", "FunctionReward", "RewardOrchestrator"]
