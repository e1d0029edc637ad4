"""The self-check: believes nobody, finds what snapshots miss, and disturbs nothing."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsec.failover.codecs import codec_named, examine, find_codec, scratch
from tests.failover import adversaries as adv
from tests.failover import worlds

FAITHFUL = (
    adv.InClosure,
    adv.InSlots,
    adv.SharedArrays,
    adv.GlobalRandom,
    adv.SpawningGenerator,
    adv.SameBuffer,
)


def started(kind: type[adv.Base]) -> adv.Base:
    env = kind()
    env.reset(seed=3)
    return env


@pytest.mark.parametrize("kind", FAITHFUL)
def test_hidden_state_that_the_plan_holds(kind: type[adv.Base]) -> None:
    env = started(kind)
    found = examine(env, seed=1, make=kind)
    assert found.codec is not None and found.checked, found.notes
    assert found.codec.name == "attributes" and found.notes == ()
    actions = worlds.actions_for(env, 100)
    worlds.future(env, actions[:50])
    data = found.codec.capture()
    expected = worlds.future(env, actions[50:])
    spare = kind()
    codec_named(found.codec.name, spare).restore(data)
    assert worlds.future(spare, actions[50:]) == expected


REFUSED = {
    adv.WithThread: "env.worker holds a thread",
    adv.WithFile: "env.file holds an open file",
    adv.Rebuilds: "env.numbers holds an object made in C, itertools.count",
    adv.ReadsDescriptor: "goes on differently: the observation of step",
    adv.InModuleGlobal: "restored in place, it goes on differently: the observation of step 1",
    adv.InClassAttribute: "restored in place, it goes on differently: the observation of step 1",
    adv.Never: "the trial was killed by SIGSEGV",
    adv.DiesRestored: "restored in place, the trial ended its process with exit code 4",
    adv.WritesFiles: "File too large",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_codec_holds_is_refused_with_the_reason(
    kind: type[adv.Base], tmp_path: Path
) -> None:
    adv.WritesFiles.path = tmp_path / "log"
    env = started(kind)
    codec, notes = find_codec(env, seed=1)
    assert codec is None
    assert REFUSED[kind] in "\n".join(notes)
    if kind is adv.WritesFiles:
        assert adv.WritesFiles.path.read_bytes() == b""
    env.close()


FATAL = {
    adv.Segfaults: "was killed by SIGSEGV",
    adv.Exits: "ended its process with exit code 3",
    adv.Raises: "raised ZeroDivisionError: on purpose",
}


@pytest.mark.parametrize("kind", FATAL)
def test_an_environment_that_dies_by_itself_is_the_one_that_needs_a_codec(
    kind: type[adv.Base],
) -> None:
    env = started(kind)
    found = examine(env, seed=1)
    assert found.codec is not None and found.codec.name == "attributes", found.notes
    assert FATAL[kind] in found.notes[0] and "by itself" in found.notes[0]
    assert found.step_us > 0 and found.fork_us > 0


def test_a_pickle_that_rebuilds_itself_is_found_out_and_an_honest_one_is_taken() -> None:
    codec, notes = find_codec(started(adv.Rebuilds), seed=1)
    assert codec is None and "codec pickle: restored in place, it goes on differently" in notes[1]
    honest = started(adv.Pickles)
    found = examine(honest, seed=1, make=adv.Pickles)
    assert found.codec is not None and found.codec.name == "pickle", found.notes
    assert "itertools.count" in found.notes[0]
    actions = worlds.actions_for(honest, 60)
    worlds.future(honest, actions[:20])
    data = found.codec.capture()
    expected = worlds.future(honest, actions[20:])
    spare = adv.Pickles()
    codec_named("pickle", spare).restore(data)
    assert worlds.future(spare, actions[20:]) == expected


def test_a_hang_is_ended_at_the_limit() -> None:
    found = examine(started(adv.Hangs), seed=1, limit_s=2.0)
    assert "took longer than" in found.notes[0]


def test_a_spare_that_is_constructed_otherwise_is_found_out() -> None:
    lengths = iter((2, 3))

    def make() -> Any:
        env = adv.SameBuffer()
        env.buffer = np.zeros(next(lengths))[:2]
        return env

    env = make()
    env.reset(seed=1)
    found = examine(env, seed=1, make=lambda: adv.InSlots())
    assert found.codec is None
    assert "restored in a spare" in found.notes[0]


@pytest.mark.parametrize("name", ["CartPole-v1", "five wrappers", "HalfCheetah-v5"])
def test_nothing_here_is_disturbed(name: str, tmp_path: Path) -> None:
    """Environment, generators, descriptors and their offsets, children: all as before."""
    make = worlds.WORLDS[name]
    env, twin = make(), make()
    for each in (env, twin):
        each.reset(seed=4)
    text = tmp_path / "text"
    text.write_bytes(b"0123456789")
    with text.open("rb") as file:
        file.read(4)
        before = _surroundings(), file.tell(), os.lseek(file.fileno(), 0, os.SEEK_CUR)
        found = examine(env, seed=1, make=make)
        assert (_surroundings(), file.tell(), os.lseek(file.fileno(), 0, os.SEEK_CUR)) == before
    assert found.codec is not None and found.checked, found.notes
    assert min(found.step_us, found.capture_us, found.restore_us, found.fork_us) > 0
    actions = worlds.actions_for(env, 150)
    assert worlds.future(env, actions) == worlds.future(twin, actions)


def test_a_file_read_in_the_trial_keeps_its_place_here() -> None:
    env = started(adv.ReadsDescriptor)
    worlds.future(env, [0] * 3)
    before = os.lseek(env.fd, 0, os.SEEK_CUR)  # type: ignore[attr-defined]
    codec, _ = find_codec(env, seed=1)
    assert codec is None
    assert os.lseek(env.fd, 0, os.SEEK_CUR) == before > 0  # type: ignore[attr-defined]
    env.close()


def _surroundings() -> Any:
    links = [Path("/proc/self/fd") / str(fd) for fd in range(256)]
    descriptors = {str(link): str(link.readlink()) for link in links if link.is_symlink()}
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return worlds.exactly([random.getstate(), list(np.random.get_state()), descriptors, children])


def test_a_copy_gives_nobody_the_numbers_of_what_it_cut_off() -> None:
    """The pipe or socket that a number belongs to may be collected in the copy, and closes it."""
    pipe = os.pipe()
    refused = []

    def look() -> bytes:
        for fd in pipe:
            with pytest.raises(OSError, match="Bad file descriptor") as caught:
                os.write(fd, b"x")
            refused.append(caught)
        new = [os.open(os.devnull, os.O_RDONLY) for _ in range(max(pipe))]
        return b"apart" if len(refused) == 2 and not set(new) & set(pipe) else b"mixed up"

    try:
        outcome = scratch.run(look, 20)
    finally:
        for end in pipe:
            os.close(end)
    assert outcome.result == b"apart", outcome.why
