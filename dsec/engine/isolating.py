"""What of the profile `strict` this machine can enforce, tried before anything is started.

The trial is the thing itself: a child process gives up what a runner would, and tells what it could
not. So what is said at the start of a run is what its runners will find. Owns also which user each
runner becomes, and where its temporary files go if they can't be in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from dsec.ipc.frames import Isolation, Role
from dsec.ipc.logs import file_name
from dsec.spec import AgentSpec, RunnerSpec, RunSpec

TRIAL_TIMEOUT_S = 20.0
UIDS_FROM, UIDS = 1 << 30, 1 << 29
"""Numbers that no machine gives to its users; which of them a run takes follows from where it
records, so two runs share one by a rare chance only, and then what the files may do still holds."""
ROLES_MAX: Final = 8


def settle(spec: RunSpec) -> tuple[RunSpec, dict[str, tuple[str, ...]]]:
    """The orders with what only this machine decides; and, by entry of the configuration, what its
    profile asks for and this machine can't enforce, a sentence each.

    Where the profile is nowhere `strict`, nothing is tried and nothing changes.
    """
    trials: dict[Isolation, tuple[Isolation, tuple[str, ...]]] = {}
    notes: dict[str, tuple[str, ...]] = {}
    agents = []
    for agent in spec.agents:
        runners = []
        for runner in agent.runners:
            asked = runner.start.isolation
            if asked.profile == "strict" and not runner.external:
                if asked not in trials:
                    trials[asked] = _tried(asked, spec)
                able, found = trials[asked]
                notes[agent.group] = tuple(dict.fromkeys((*notes.get(agent.group, ()), *found)))
                runner = _for(runner, able, agent, spec)
            runners.append(runner)
        agents.append(replace(agent, runners=tuple(runners)))
    return (replace(spec, agents=tuple(agents)), notes) if trials else (spec, {})


def _for(runner: RunnerSpec, able: Isolation, agent: AgentSpec, spec: RunSpec) -> RunnerSpec:
    """A runner with its own user and folder."""
    own = able
    if able.uid >= 0:
        uid = _uid(spec, agent.rank * ROLES_MAX + int(runner.role))
        own = msgspec.structs.replace(own, uid=uid)
    name = f"{file_name(agent.name)}.{Role(runner.role).name.lower()}"
    own = msgspec.structs.replace(own, folder=str(Path(able.folder, name)))
    return replace(runner, start=msgspec.structs.replace(runner.start, isolation=own))


def _uid(spec: RunSpec, index: int) -> int:
    place = hashlib.blake2b(str(Path(spec.run_dir).absolute()).encode(), digest_size=8).digest()
    return UIDS_FROM + (int.from_bytes(place) + index) % UIDS


def _tried(asked: Isolation, spec: RunSpec) -> tuple[Isolation, tuple[str, ...]]:
    """What is to be asked of runners, and what they won't get."""
    from dsec.runners.isolation import privileges

    run_dir = str(Path(spec.run_dir).absolute())
    plain = msgspec.structs.replace(asked, folder=f"{run_dir}/scratch", hidden=run_dir, uid=-1)
    why = ""
    if asked.uid >= 0:
        own = msgspec.structs.replace(plain, uid=_uid(spec, 0))
        if not privileges.may_change_user():
            why = "only root may have it become another one"
        elif not _mapped():
            why = "this user namespace has too few user numbers"
        else:
            missing, closed = _trial(own)
            if not closed:
                return own, missing
            reader = msgspec.structs.replace(own, reads_all=True)
            missing, closed = _trial(reader)
            if not closed:
                return reader, missing
            why = f"another one couldn't read {closed[0]} (`chmod o+rx` it and what it lies in)"
    said = (f"user: it keeps this one ({why})",) if why else ()
    return plain, said + _trial(plain)[0]


def _mapped() -> bool:
    """Whether this user namespace has the numbers that we give out."""
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(
        int(first) <= UIDS_FROM and int(first) + int(count) >= UIDS_FROM + UIDS
        for first, _, count in ranges
    )


def _trial(settings: Isolation) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a child process with these settings can't have enforced, and what it can't read."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.write(writing, _as_runner(settings))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        text = b""
        while poll.poll(TRIAL_TIMEOUT_S * 1000) and (part := os.read(reading, 65536)):
            text += part
        missing, closed = json.loads(text or b'[["it could not be tried"], []]')
        return tuple(missing), tuple(closed)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _as_runner(settings: Isolation) -> bytes:
    from dsec.runners import isolation

    # What is missing is to be told here, and refused by the runner, which knows the key.
    given = msgspec.structs.replace(settings, require=False, folder=f"{settings.folder}/trial")
    places = [each for each in (*sys.path, str(Path.cwd()), sys.prefix) if each]
    places = [each for each in places if Path(each).exists()]
    try:
        missing = isolation.enter(given)
    except OSError as error:
        missing = (f"isolation: {error}",)
    closed = [each for each in places if not os.access(each, os.R_OK, effective_ids=True)]
    return json.dumps([missing, closed]).encode()


def lines(notes: dict[str, tuple[str, ...]]) -> list[str]:
    """The same in sentences that name the entry."""
    return [f"{group}: not enforced here: {each}" for group in notes for each in notes[group]]
