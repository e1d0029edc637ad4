"""The tree of what a RunSpec runs: which processes and segments exist, and in what order.

Pure. Start goes from the top down (zygotes at once, the recorder as soon as its image is warm,
each agent as soon as its own images are), stop goes back up: agents, recorder, zygotes.
"""

from __future__ import annotations

from collections.abc import Set

from dsec.errors import LocalError
from dsec.ipc.frames import Role
from dsec.spec import AgentSpec, ImageSpec, RunnerSpec, RunSpec


def has_recorder(spec: RunSpec) -> bool:
    """Say whether a recorder joins the rings; a dry run records nothing."""
    return spec.recorder and not spec.dry


def images(spec: RunSpec) -> tuple[ImageSpec, ...]:
    """The images that somebody needs, the recorder's first.

    Raises:
        LocalError: an image is named that doesn't exist, or two agents have one name.
    """
    if len({agent.name for agent in spec.agents}) != len(spec.agents):
        raise LocalError("two agents have the same name")
    served = has_recorder(spec) or (spec.pool is not None and not spec.dry)
    wanted = [spec.recorder_image] if served else []
    for agent in spec.agents:
        wanted += sorted(images_of(agent))
    by_name = {image.name: image for image in spec.images}
    if missing := set(wanted) - set(by_name):
        raise LocalError(f"there is no image {sorted(missing)[0]!r}")
    return tuple(by_name[name] for name in dict.fromkeys(wanted))


def forked(agent: AgentSpec) -> tuple[RunnerSpec, ...]:
    """The runners that are processes of ours, in role order; the caller plays the others."""
    own = (runner for runner in agent.runners if not runner.external)
    return tuple(sorted(own, key=lambda runner: runner.role))


def images_of(agent: AgentSpec) -> frozenset[str]:
    """The images that must be warm before this agent can start."""
    return frozenset(runner.image for runner in forked(agent))


def writers(agent: AgentSpec, servers: Set[Role]) -> tuple[Role, ...]:
    """Who has an outbox, in role order: every role, played by us or not, and the recorder."""
    roles = {runner.role for runner in agent.runners} | (servers & {Role.RECORDER})
    return tuple(sorted(roles))


def drained(agent: AgentSpec) -> tuple[Role, ...]:
    """Who is told to drain. The env ends its stream and everyone follows it by the rings; with
    an external role nobody can rely on that, so all are told."""
    own = tuple(runner.role for runner in forked(agent))
    return (Role.ENV,) if len(own) == len(agent.runners) and Role.ENV in own else own


def starting_max(cores: int) -> int:
    """How many agents may be between fork and ready at a time. Constructors mostly compute, so
    more at once would only push each of them towards its deadline; fewer would leave processors
    idle between an agent's many small steps on its way, and zygotes with little to do at once."""
    return max(24, 12 * cores)


def spares_max(cores: int) -> int:
    """How many spares may be constructed at a time, beside agents that step."""
    return max(2, cores)
