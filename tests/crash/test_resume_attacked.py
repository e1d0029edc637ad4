"""Run directories and pools that were damaged, aged, exchanged or taken before a run is resumed:
each has an error of its own, and who is refused changes nothing."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsec import rundir
from dsec.engine import identity, resume
from dsec.engine.plan import pool_name
from dsec.engine.resume import Past
from dsec.errors import (
    AtomCorrupt,
    ConfigError,
    MachineError,
    PoolOwned,
    RunDamaged,
    RunDirBusy,
)
from dsec.runners.journal import KEPT_NAME, JournalReader
from dsec.sml import codec, named, spill
from dsec.sml.pool_shm import ShmPool
from tests import watchdog
from tests.crash import runs
from tests.crash.test_resume import drain
from tests.runners import actors

AGENT: dict[str, Any] = {
    "name": "plain",
    "count": 2,
    "env": {"id": "CartPole-v1"},
    "policy": {"entry": "dsec.policies:RandomPolicy"},
    "snapshot_interval": 20,
}
POOL = {"size_mb": 1}
NAME = "crash"
LOGS = "logs"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted: atoms, a journal that was kept, a recording."""
    folder = tmp_path_factory.mktemp("ended")
    config = runs.write_config(folder / "config.yaml", [AGENT], steps=10**8, pool=POOL)
    out = folder / "run"

    def under_way() -> bool:
        done = runs.committed(out)
        return len(done) == 2 and min(done.values()) > 300

    with watchdog.Watched(runs.argv(config, out), folder / "streams") as program:
        program.until(under_way, 60, "300 transitions of each agent")
        drain(program)
        assert program.wait(30) == 130, program.tails()
    return out


@pytest.fixture
def run_dir(ended: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it, and its pool's name free again afterwards."""
    path = tmp_path / "run"
    shutil.copytree(ended, path)
    yield path
    with suppress(FileNotFoundError):
        segment_of(path).unlink()


def segment_of(path: Path) -> Path:
    """The run's pool, as a file."""
    return named.SHM / f"{named.PREFIX}{pool_name(NAME, str(path))}"


def picture(path: Path) -> dict[str, bytes]:
    """Every file but the lock and the logs."""
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in sorted(path.rglob("*"))
        if each.is_file() and each.name != rundir.LOCK_FILE and each.parent.name != LOGS
    }


def looked(path: Path, then: Callable[[rundir.RunDir, Past], None] | None = None) -> Past:
    """All checks of a resume; and then what is to come."""
    with rundir.reopen(path) as directory:
        loaded, changed = resume.configuration(directory, None, (), ())
        past = resume.look(directory, loaded, changed)
        if then is not None:
            then(directory, past)
        return past


def refused(path: Path, *words: str, kind: type[Exception] = MachineError) -> None:
    """It is refused with these words, and nothing is changed."""
    before = picture(path)
    with pytest.raises(kind) as caught:
        looked(path)
    for word in words:
        assert word in str(caught.value), caught.value
    assert picture(path) == before


def there_and_back(directory: rundir.RunDir, past: Past) -> None:
    """Change the directory, see that all it begins from is there, and take it back."""
    before = picture(directory.path)
    resume.begin(directory, past)
    assert picture(directory.path) != before
    for start in past.starts.values():
        if start is not None and start.origin is not None:
            body = spill.load(Path(start.origin.path)).body
            assert codec.decode(body).manifest.seq == start.origin.seq
    with JournalReader(directory.path / "journal.dsj") as journal:
        for _ in journal.blocks():
            pass
    directory.take_back()
    assert picture(directory.path) == before


def origins_of(past: Past) -> dict[str, int]:
    return {
        name: start.origin.seq if start.origin is not None else 0
        for name, start in past.starts.items()
        if start is not None
    }


def test_what_was_changed_for_a_resume_is_taken_back_byte_for_byte(run_dir: Path) -> None:
    past = looked(run_dir, there_and_back)
    assert all(origins_of(past).values()) and not past.notes


FLIPS = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7))


def flipped(data: bytes, where: float, bit: int) -> bytes:
    at = int(where * len(data))
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


DAMAGE = st.one_of(
    FLIPS.map(lambda found: lambda data: flipped(data, *found)),
    st.floats(0, 1, exclude_max=True).map(lambda part: lambda data: data[: int(part * len(data))]),
    st.binary(min_size=1, max_size=200).map(lambda more: lambda data: data + more),
    st.binary(max_size=200).map(lambda other: lambda data: other),
)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.floats(0, 1, exclude_max=True), DAMAGE)
def test_whatever_is_damaged_it_is_refused_or_passed_over_and_nothing_is_lost(
    run_dir: Path, which: float, damage: Callable[[bytes], bytes]
) -> None:
    """In any file, anywhere: a run that is resumed goes on from what is as it was written."""
    whole = picture(run_dir)
    names = [name for name in whole if not name.startswith("recording")]
    name = names[int(which * len(names))]
    path = run_dir / name
    path.write_bytes(damage(whole[name]))
    damaged = picture(run_dir)
    sound: list[Past] = []
    try:
        sound.append(looked(run_dir, there_and_back))
    except (MachineError, ConfigError) as error:
        assert str(run_dir) in str(error)
    assert picture(run_dir) == damaged
    same = damaged[name] == whole[name]
    for past in sound:
        assert same or name != "config.yaml"
        for start in past.starts.values():
            if start is not None and start.origin is not None:
                origin = Path(start.origin.path)
                assert origin.read_bytes() == whole[f"atoms/{origin.name}"], "as it was written"
        if name.startswith("atoms/") and not same:
            assert any(path.name in note for note in past.notes) or not used(past, path)
    path.write_bytes(whole[name])


def used(past: Past, path: Path) -> bool:
    """Whether some agent goes on from an atom that is no newer than that of this file."""
    return past.changes is not None and path in past.changes.atoms.unfit


def numbered(path: Path, version: int) -> None:
    """An atom's file with another version, as its writer would have sealed it."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, 8, version)
    head = spill.HEAD_BYTES - 8
    struct.pack_into("<Q", data, head, xxhash.xxh3_64_intdigest(bytes(data[:head])))
    path.write_bytes(data)


@pytest.mark.parametrize(("version", "name"), [(0, "AtomTooOld"), (2, "AtomTooNew")])
def test_an_atom_of_another_version_is_refused_by_name(
    run_dir: Path, version: int, name: str
) -> None:
    path = sorted((run_dir / "atoms").iterdir())[-1]
    numbered(path, version)
    refused(run_dir, name, path.name, f"version {version}")


def test_a_damaged_atom_is_passed_over_set_aside_and_named(run_dir: Path) -> None:
    newest = max((run_dir / "atoms").iterdir(), key=lambda path: spill.label_of(path).seq)
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    with pytest.raises(AtomCorrupt):
        spill.load(newest)
    before = origins_of(looked(run_dir))
    past = looked(run_dir, lambda directory, past: resume.begin(directory, past))
    assert origins_of(past) == before
    [note] = past.notes
    assert f"AtomCorrupt: {newest}" in note and "it goes on from ASA-" in note
    assert not newest.exists()
    assert newest.with_name(newest.name + ".unfit").read_bytes() == data


def other_atoms(run_dir: Path, make: Callable[[Any], Any]) -> Path:
    """An atom that is newer than all that the run has, and a whole one, but not its own."""
    paths = [*(run_dir / "atoms").iterdir()]
    newest = max(paths, key=lambda path: spill.label_of(path).seq)
    found = spill.load(newest)
    atom = make(codec.decode(found.body))
    with ShmPool.create(pool_name(NAME, str(run_dir)), 1 << 20) as pool:
        pool.put(found.label, codec.encode(atom))
        newest.unlink()
        [path] = spill.spill(pool, [found.label.id], run_dir / "atoms")
        pool.unlink()
    return path


def test_an_atom_of_another_run_or_agent_is_passed_over_and_kept(run_dir: Path) -> None:
    from msgspec.structs import replace

    from dsec.sml import ids

    def of_another_run(atom: Any) -> Any:
        stranger = ids.to_uuid(identity.space_of(identity.fresh()), atom.manifest.id)
        return replace(atom, manifest=replace(atom.manifest, uuid=stranger))

    def of_another_agent(atom: Any) -> Any:
        return replace(atom, manifest=replace(atom.manifest, agent="somebody"))

    for make, words in ((of_another_run, "another run's plain-"), (of_another_agent, "somebody")):
        path = other_atoms(run_dir, make)
        data = path.read_bytes()
        past = looked(run_dir, lambda directory, past: resume.begin(directory, past))
        assert any("AtomForeign" in note and words in note for note in past.notes), past.notes
        assert not path.exists()
        assert path.with_name(path.name + ".unfit").read_bytes() == data
        path.with_name(path.name + ".unfit").unlink()
        (run_dir / "journal.dsj").rename(run_dir / KEPT_NAME)


@pytest.mark.parametrize("name", ["config.yaml", "kernel.json"])
def test_a_file_that_says_something_else_than_was_written_is_refused(
    run_dir: Path, name: str
) -> None:
    path = run_dir / name
    text = path.read_text()
    path.write_text(text.replace("seed: 5", "seed: 6").replace('"id": "', '"id": "0', 1))
    assert path.read_text() != text
    with pytest.raises(RunDamaged):
        looked(run_dir)
    refused(run_dir, name, "not what the run has written")


def made(run_dir: Path, **more: Any) -> ShmPool:
    space = identity.read(run_dir).space
    return ShmPool.create(pool_name(NAME, str(run_dir)), 1 << 20, **{"space": space, **more})


def patched(run_dir: Path, at: int, data: bytes, *, resum: bool = False) -> None:
    with segment_of(run_dir).open("r+b") as file:
        file.seek(at)
        file.write(data)
        if resum:
            file.seek(8)
            total = xxhash.xxh3_64_intdigest(file.read(64))
            file.write(struct.pack("<Q", total))


POOLS: dict[str, Callable[[Path], None]] = {
    "PoolTruncated": lambda path: _truncate(path),
    "PoolForeign": lambda path: patched(path, 0, b"PAR1PAR1"),
    "PoolTooOld": lambda path: patched(path, 8, struct.pack("<I", 0), resum=True),
    "PoolTooNew": lambda path: patched(path, 8, struct.pack("<I", 2), resum=True),
    "PoolCorrupt": lambda path: patched(path, 50, b"\xff\xff"),
}


def _truncate(run_dir: Path) -> None:
    with segment_of(run_dir).open("r+b") as file:
        file.truncate(1 << 16)


@pytest.mark.parametrize("name", POOLS)
def test_a_segment_that_is_no_pool_is_refused_by_name_and_stays(run_dir: Path, name: str) -> None:
    made(run_dir).close()
    POOLS[name](run_dir)
    path = segment_of(run_dir)
    before = path.read_bytes()
    refused(run_dir, name, f"rm {path}")
    assert path.read_bytes() == before


def test_a_pool_of_another_run_is_refused_and_stays(run_dir: Path) -> None:
    made(run_dir, space=(1, 2)).close()
    refused(run_dir, "PoolForeign", "another run")


def test_a_pool_that_somebody_writes_is_refused(run_dir: Path) -> None:
    with made(run_dir):
        refused(run_dir, "belongs to process", kind=PoolOwned)


def test_atoms_that_only_the_pool_has_are_gone_on_from(run_dir: Path) -> None:
    atoms = run_dir / "atoms"
    newest = max(atoms.iterdir(), key=lambda path: spill.label_of(path).seq)
    found = spill.load(newest)
    with made(run_dir) as pool:
        pool.put(found.label, found.body)
    before = origins_of(looked(run_dir))
    for damage in (b"", newest.read_bytes()[:-9]):
        newest.unlink()
        if damage:
            newest.write_bytes(damage)
        assert origins_of(looked(run_dir)) == before
        looked(run_dir, lambda directory, past: resume.begin(directory, past))
        assert spill.load(newest).body == found.body
        (run_dir / "journal.dsj").rename(run_dir / KEPT_NAME)


def test_damage_in_the_middle_of_the_journal_is_found_before_it_is_cut(run_dir: Path) -> None:
    journal = run_dir / KEPT_NAME
    with JournalReader(journal) as reader:
        offset = reader.index.agents[0].batches[0] + 64 + 40
    with journal.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 4]))
    refused(run_dir, "JournalError", "damaged")


def test_a_disk_that_fails_in_the_middle_leaves_all_as_it_was(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsec.runners.journal import DiskError, JournalWriter

    appended = JournalWriter.append
    calls: list[object] = []

    def fails(self: JournalWriter, *args: Any, **more: Any) -> None:
        calls.append(args)
        if len(calls) == 3:  # after the first agent's cut
            raise DiskError("no room")
        appended(self, *args, **more)

    monkeypatch.setattr(JournalWriter, "append", fails)
    before = picture(run_dir)

    def begin(directory: rundir.RunDir, past: Past) -> None:
        with pytest.raises(MachineError, match="DiskError: no room"):
            resume.begin(directory, past)

    looked(run_dir, begin)
    assert len(calls) == 3
    assert picture(run_dir) == before


@pytest.mark.slow
def test_a_resume_that_comes_to_nothing_leaves_all_as_it_was(run_dir: Path, tmp_path: Path) -> None:
    """A policy that is not there, and one that doesn't take the atoms' state."""
    before, key = picture(run_dir), "agents[0].policy.entry"
    for policy, code in (("dsec.nowhere:X", 2), (f"{actors.HERE}:Averaging", 1)):
        options = ["--set", f"{key}={policy}", "--allow", key]
        argv = [runs.COMMAND, "run", "--resume", run_dir, "--json", *options]
        done = watchdog.run(argv, tmp_path / str(code), timeout_s=90, cwd=watchdog.ROOT)
        assert done.returncode == code, done.stderr
        assert picture(run_dir) == before
    assert "can't go on from" in done.stderr


def test_a_new_run_does_not_go_on_in_another_ones_pool(tmp_path: Path) -> None:
    config = runs.write_config(tmp_path / "config.yaml", [AGENT], steps=200, pool=POOL)
    run_dir = tmp_path / "run"
    path = segment_of(run_dir)
    try:
        ShmPool.create(pool_name(NAME, str(run_dir)), 1 << 20, persist=True).close()
        before = path.read_bytes()
        done = runs.run(config, tmp_path)
        assert done.code == 3 and "dsec-rdma-gc" in done.stderr, done.stderr
        assert path.read_bytes() == before
        path.unlink()
        ShmPool.create(pool_name(NAME, str(run_dir)), 1 << 20).close()
        done = runs.run(config, tmp_path)
        assert done.code == 0, done.stderr
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.slow
def test_of_two_resumes_at_once_one_goes_on(run_dir: Path, tmp_path: Path) -> None:
    argv = [runs.COMMAND, "run", "--resume", run_dir, "--json", "--set", "run.steps=100000001"]
    streams = [(tmp_path / f"{i}.err").open("wb") for i in range(2)]
    both = [
        subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=each, cwd=watchdog.ROOT)
        for each in streams
    ]
    try:
        watchdog.until(lambda: any(each.poll() is not None for each in both), 30, "one refused")
        [lost] = [each for each in both if each.poll() is not None]
        [won] = [each for each in both if each is not lost]
        assert lost.returncode == 3
        said = (tmp_path / f"{both.index(lost)}.err").read_text()
        assert "a run is going on in" in said
        watchdog.until(lambda: bool(runs.committed(run_dir)), 30, "the other goes on")
        with pytest.raises(RunDirBusy):
            looked(run_dir)
        won.send_signal(2)
        assert won.wait(60) == 130
    finally:
        for each, stream in zip(both, streams, strict=True):
            each.kill()
            each.wait()
            stream.close()
    assert json.loads((run_dir / "summary.json").read_text())["exit_code"] == 130
