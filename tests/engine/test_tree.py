"""What a RunSpec runs, in what order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsec import tree
from dsec.errors import LocalError
from dsec.ipc.frames import Role, Start
from dsec.spec import AgentSpec, ImageSpec, RunnerSpec, RunSpec


def runner(role: Role, image: str = "base", external: bool = False) -> RunnerSpec:
    return RunnerSpec(role, image, Start("a", role, 0, "0"), external=external)


THREE = (runner(Role.REWARD, "r"), runner(Role.ENV, "e"), runner(Role.POLICY, "p"))
AGENT = AgentSpec("a", "a", THREE)
PLAYED = AgentSpec("a", "a", (runner(Role.ENV), runner(Role.POLICY, external=True)))
IMAGES = tuple(ImageSpec(name, ()) for name in ("e", "p", "r", "base", "unused"))
SPEC = RunSpec("run", "", 0, IMAGES, (AGENT,))


def test_the_recorders_image_comes_first_and_nobody_elses_is_started() -> None:
    assert [image.name for image in tree.images(SPEC)] == ["base", "e", "p", "r"]
    dry = replace(SPEC, dry=True)
    assert [image.name for image in tree.images(dry)] == ["e", "p", "r"]
    assert [image.name for image in tree.images(replace(SPEC, recorder=False))] == ["e", "p", "r"]


def test_a_spec_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(LocalError, match="no image 'nowhere'"):
        tree.images(replace(SPEC, recorder_image="nowhere"))
    with pytest.raises(LocalError, match="same name"):
        tree.images(replace(SPEC, agents=(AGENT, AGENT)))


def test_a_dry_run_has_no_recorder() -> None:
    assert tree.has_recorder(SPEC)
    assert not tree.has_recorder(replace(SPEC, dry=True))
    assert not tree.has_recorder(replace(SPEC, recorder=False))


def test_external_roles_are_not_forked_but_have_their_outbox() -> None:
    assert [each.role for each in tree.forked(AGENT)] == [Role.ENV, Role.POLICY, Role.REWARD]
    assert [each.role for each in tree.forked(PLAYED)] == [Role.ENV]
    assert tree.images_of(PLAYED) == {"base"}
    assert tree.writers(PLAYED, {Role.RECORDER}) == (Role.ENV, Role.POLICY, Role.RECORDER)
    assert tree.writers(AGENT, set()) == (Role.ENV, Role.POLICY, Role.REWARD)


def test_the_env_ends_the_stream_unless_somebody_external_takes_part() -> None:
    assert tree.drained(AGENT) == (Role.ENV,)
    assert tree.drained(PLAYED) == (Role.ENV,)
    external = AgentSpec("a", "a", (*THREE[:2], runner(Role.POLICY, external=True)))
    assert tree.drained(external) == (Role.ENV, Role.REWARD)


def test_the_number_that_start_at_a_time_grows_with_the_machine() -> None:
    assert tree.starting_max(1) == 24
    assert tree.starting_max(64) == 768
