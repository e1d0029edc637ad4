"""Which modules each runner finds imported: the runtime images of a run. Pure.

Owns what goes into which image, and the names of images; imports nothing that it names. An image
is a zygote process which has imported its modules once and forks every runner from there, so that
a module that takes seconds takes them once, and its memory is shared. Two rules. What only some
agents need has an image of its own, so that the others neither wait for it nor carry it. And what
an agent names is imported, or the run ends with a message; what an environment would import by
itself when it is made is imported, too, if it can be (`warm`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from dsec.config import Agent, Config, KeyPath
from dsec.spec import ImageSpec

BASE_IMAGE, STRICT_IMAGE = "base", "strict"
# Ours, and free of torch: every image has them, so that only what differs is imported again.
BASE_MODULES = (
    "numpy",
    "gymnasium",
    "dsec.runners.env_life",
    "dsec.runners.caller",
    "dsec.runners.policy",
    "dsec.runners.reward",
    "dsec.runners.recorder",
    "dsec.runners.atoms",
    "dsec.policies",
    "dsec.reward",
)
# What Gymnasium imports only when it makes one of these environments, named without version.
LAZY_MODULES = {
    "gymnasium.envs.box2d": (
        "BipedalWalker", "BipedalWalkerHardcore", "CarRacing", "LunarLander",
        "LunarLanderContinuous",
    ),
    "gymnasium.envs.mujoco": (
        "Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum",
        "InvertedPendulum", "Pusher", "Reacher", "Swimmer", "Walker2d",
    ),
}  # fmt: skip
# The same for wrappers of Gymnasium.
LAZY_WRAPPERS = {"AtariPreprocessing": "cv2", "ResizeObservation": "cv2"}


@dataclass(slots=True)
class _Image:
    modules: tuple[str, ...]
    warm: dict[str, None] = field(default_factory=dict)  # a set that keeps its order
    environment: tuple[str, ...] | None = None


class Images:
    """The images of a run, made as runners ask for them."""

    def __init__(self) -> None:
        self._images = {BASE_IMAGE: _Image(BASE_MODULES)}

    def for_env(self, agent: Agent) -> str:
        """The image of an agent's env runners."""
        if is_strict(agent, "env"):
            return self._strict(agent)
        named = [module_of(entry) for entry, _ in _env_entries(agent)]
        lazy, warm = [], []
        if agent.env.id is not None:
            registering, _, name = agent.env.id.rpartition(":")
            family = [module for module, names in LAZY_MODULES.items() if _base(name) in names]
            if registering or family:
                lazy += [] if registering else family
                warm.append(name)
        tools = [LAZY_WRAPPERS[w.entry] for w in agent.env.wrappers if w.entry in LAZY_WRAPPERS]
        return self._find(named, lazy + tools, warm + tools)

    def for_entry(self, agent: Agent, role: Literal["policy", "reward"]) -> str:
        """The image of an agent's policy or reward runners."""
        if is_strict(agent, role):
            return self._strict(agent)
        return self._find([module_of(getattr(agent, role).entry)], (), ())

    def specs(self, timeout_s: float) -> tuple[ImageSpec, ...]:
        """All of them, the base first; each has `timeout_s` to import its modules."""
        return tuple(
            ImageSpec(
                name,
                image.modules,
                timeout_s,
                own=name == BASE_IMAGE or image.environment is not None,
                warm=tuple(image.warm),
                environment=image.environment,
            )
            for name, image in self._images.items()
        )

    def _strict(self, agent: Agent) -> str:
        """One that has loaded nothing that a configuration named, for what it has loaded is in all
        its runners, and was not under their profile; with the environment that they may see."""
        keep = tuple(sorted(set(agent.isolation.environment)))
        name = "+".join((STRICT_IMAGE, *keep))
        self._images.setdefault(name, _Image(BASE_MODULES, environment=keep))
        return name

    def _find(self, modules: Iterable[str], lazy: Iterable[str], warm: Iterable[str]) -> str:
        """The image with these modules beside the base's, made if there is none yet.

        Args:
            modules: what must be imported; empty names are left out.
            lazy: what will be imported later, and sets its image apart already.
            warm: what the image imports of that, as modules or as ids of environments.
        """
        own = tuple(name for name in dict.fromkeys(modules) if name and not _in_base(name))
        name = "+".join(dict.fromkeys((*own, *lazy))) or BASE_IMAGE
        image = self._images.setdefault(name, _Image((*BASE_MODULES, *own)))
        image.warm.update(dict.fromkeys(warm))
        return name


def is_strict(agent: Agent, role: str) -> bool:
    """Whether a role of an agent has the profile `strict`."""
    return agent.isolation.profile == "strict" and role in agent.isolation.roles


def module_of(entry: str) -> str:
    """The module of `module:name`; of an environment's id, the part that registers it, if any."""
    return entry.rpartition(":")[0]


def _base(name: str) -> str:
    """`HalfCheetah` of `HalfCheetah-v5`."""
    stem, _, version = name.rpartition("-v")
    return stem if stem and version.isdigit() else name


def _in_base(module: str) -> bool:
    return module in BASE_MODULES or module.partition(".")[0] in ("numpy", "gymnasium")


def _env_entries(agent: Agent) -> list[tuple[str, KeyPath]]:
    entries: list[tuple[str, KeyPath]] = [
        (agent.env.id, ("env", "id"))
        if agent.env.id is not None
        else (agent.env.entry or "", ("env", "entry"))
    ]
    entries += [
        (wrapper.entry, ("env", "wrappers", index, "entry"))
        for index, wrapper in enumerate(agent.env.wrappers)
    ]
    return entries


def where_module(config: Config, module: str) -> KeyPath | None:
    """The first key of the configuration that made us import `module`."""
    for index, agent in enumerate(config.agents):
        entries = [
            *_env_entries(agent),
            (agent.policy.entry, ("policy", "entry")),
            (agent.reward.entry, ("reward", "entry")),
        ]
        for entry, path in entries:
            if module_of(entry) == module:
                return ("agents", index, *path)
    return None
