"""dsec: a microkernel process supervisor for reinforcement-learning agents that crash."""

__version__ = "0.1.0"
