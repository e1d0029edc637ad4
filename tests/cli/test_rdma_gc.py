"""`dsec-rdma-gc`: lists what is held and why, frees what nobody holds, touches nobody's pool."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.cli.rdma_gc import main
from dsec.sml import codec, named
from dsec.sml.atom import Atom, Manifest
from dsec.sml.pool import Label, Marks
from dsec.sml.pool_shm import ShmPool, ShmReader


@pytest.fixture
def name() -> Iterator[str]:
    found = f"test-{uuid.uuid4().hex}"
    yield found
    path = Path("/dev/shm") / f"{named.PREFIX}{found}"
    path.unlink(missing_ok=True)


def filled(name: str, *, persist: bool) -> ShmPool:
    """Two agents with ten atoms each, in two episodes."""
    pool = ShmPool.create(name, 1 << 20, persist=persist)
    for number in range(20):
        agent, episode = number % 2, number // 10
        manifest = Manifest(
            number, uuid.UUID(int=number), f"walker-00{agent}", agent, episode, 0, number
        )
        body = codec.encode(Atom(manifest))
        pool.put(Label(number, agent, episode, 0, number), body)
    return pool


def asked(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, object]:
    assert main(["--json", *argv]) == code
    text = capsys.readouterr().out
    (found,) = [each for each in json.loads(text)["pools"] if each["name"] == argv[0]]
    assert isinstance(found, dict)
    return found


def test_a_pool_that_was_kept_is_listed_with_owners_and_reasons(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with filled(name, persist=True) as pool:
        pool.mark(3, Marks.PINNED)
        room = pool.usage().room_bytes
    assert main([name]) == 0
    text = capsys.readouterr().out
    assert "kept for a later run" in text
    assert "walker-001" in text
    assert "1 pinned" in text
    assert "may go: 15 atoms" in text
    assert "--force" in text
    found = asked(capsys, name)
    shares = found["shares"]
    assert isinstance(shares, list)
    assert sum(each["bytes"] for each in shares) == room == found["used_bytes"]
    assert {(each["agent"], each["episode"]) for each in shares} == {
        (f"walker-00{agent}", episode) for agent in range(2) for episode in range(2)
    }
    assert found["stays"] == {
        "the latest of its agent": 2,
        "among the last of its agent": 2,
        "pinned": 1,
    }
    with ShmReader(name) as reader:
        assert reader.usage().atoms == 20, "nothing was changed"


def test_force_frees_what_nobody_holds_of_a_pool_that_was_kept(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with filled(name, persist=True) as pool:
        pool.mark(3, Marks.PINNED)
        pool.mark(4, Marks.STANDBY)
    assert main(["--force", "--keep-last", "1", name]) == 0
    assert "freed: 17 atoms" in capsys.readouterr().out
    with ShmPool.adopt(name) as pool:
        assert sorted(each.label.id for each in pool.entries()) == [3, 18, 19]
        pool.put(Label(100), b"the pool goes on")


@pytest.mark.guarantee("G8")
def test_a_pool_that_was_kept_goes_as_a_whole_where_that_is_asked_for(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with filled(name, persist=True) as pool:
        pool.mark(3, Marks.PINNED)
    assert main(["--persisted", name]) == 2
    assert "give both" in capsys.readouterr().err
    found = asked(capsys, name, "--force", "--persisted")
    assert not found["unlinked"] and found["freed_atoms"] == 15, "a pinned one holds it"
    with ShmPool.adopt(name) as pool:
        pool.mark(3, Marks.NONE)
    found = asked(capsys, name, "--force", "--persisted")
    assert found["unlinked"] and found["freed_atoms"] == 5
    assert name not in named.names()


def test_force_takes_a_leaked_pool_away(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    filled(name, persist=False).close()
    found = asked(capsys, name)
    assert found["leaked"] is True
    assert name in named.names()
    assert main([name]) == 0
    assert "leaked: its kernel is gone" in capsys.readouterr().out
    assert main(["--force", name]) == 0
    assert "freed: the whole pool" in capsys.readouterr().out
    assert name not in named.names()


def test_a_pinned_atom_keeps_a_pool(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with filled(name, persist=False) as pool:
        pool.mark(3, Marks.PINNED)
    found = asked(capsys, name, "--force", "--keep-last", "1")
    assert (found["leaked"], found["unlinked"], found["freed_atoms"]) == (False, False, 17)
    assert name in named.names()


def test_a_pool_whose_owner_lives_is_only_looked_at(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(name, persist=False) as pool:
        found = asked(capsys, name)
        assert found["owner"] is not None
        assert found["leaked"] is False
        assert main(["--force", name]) == 3
        told = capsys.readouterr()
        assert "belongs to process" in told.err
        assert "belongs to process" in told.out
        monkeypatch.setattr("dsec.pools.pools", lambda: [name])  # never those of others
        assert main(["--force"]) == 0, "only a pool that was named is worth an error"
        assert pool.usage().atoms == 20
        pool.unlink()
    capsys.readouterr()


def test_what_is_no_pool_is_said_and_left_alone(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("/dev/shm") / f"{named.PREFIX}{name}"
    path.write_bytes(b"somebody else's" * 1000)
    assert main(["--force", name]) == 0
    text = capsys.readouterr().out
    assert "this is no pool" in text
    assert "not used by this version" in text
    assert path.exists()


def test_what_was_never_finished_goes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("/dev/shm") / f"{named.PREFIX}{name}"
    path.write_bytes(bytes(1 << 16))
    assert main([name]) == 0
    assert path.exists()
    assert main(["--force", name]) == 0
    assert not path.exists()
    assert "freed: the whole pool" in capsys.readouterr().out


def test_a_pool_that_is_not_there_is_an_error(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([name]) == 3
    told = capsys.readouterr()
    assert f"there is no pool {name}" in told.err
    assert told.out == ""
    monkeypatch.setattr("dsec.pools.pools", list)
    assert main([]) == 0
    assert "no pools" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert "--force" in capsys.readouterr().out
    assert main(["--no-such-option"]) == 2
