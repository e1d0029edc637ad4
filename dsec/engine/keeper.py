"""A host that keeps copies of others' atoms and goes on with what they lose: `dsec-kernel host`.

Owns the process: the node that peers connect to, the replica pools in this machine's shared memory,
what has to outlive it (one small file for each run), the decision to take over (wards.py has the
rules), and the runs that go on here, each a `dsec-kernel run` of its own below the host's folder.
What was promised is on disk before anything follows from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from dsec.config import agent_names, dump, loads
from dsec.engine import arrival, identity
from dsec.errors import ConfigError, DsecError, LocalError, MachineError, PoolAbsent, SizesDiffer
from dsec.runners.follow import ChainFollower
from dsec.sml import codec, spill
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmPool
from dsec.sml.remote import wire
from dsec.sml.remote.address import host_port
from dsec.sml.remote.node import Node
from dsec.sml.remote.tcp import TcpTransport
from dsec.sml.remote.wards import Ward, Wards

TICK_S: Final = 0.1
TELL_S: Final = 0.25
KEPT: Final = 2
"""Atoms of each agent in a replica."""
WARD: Final = "ward.json"


@dataclass(frozen=True, slots=True)
class HostOptions:
    """How a host is run.

    Attributes:
        folder: what it has on disk.
        listen: host and port; port 0 takes a free one.
        token: the secret of its peers.
        token_file: where that is.
        address: by which peers name it (pool.peers), so that runs that go on here leave it out of
            theirs; empty: where it listens.
        lease_s: of the runs that it is the heir of.
        pool_mb: all replicas together.
    """

    folder: Path
    listen: tuple[str, int]
    token: bytes
    token_file: Path
    address: str
    lease_s: float
    pool_mb: int


@dataclass(slots=True)
class Going:
    """A run that goes on here.

    Attributes:
        due: by agent, marks of the hash chain that it has to come to again: what the source had
            committed beyond the atom.
    """

    run_dir: Path
    program: subprocess.Popen[bytes]
    chains: ChainFollower
    due: dict[str, dict[int, bytes]] = field(default_factory=dict)
    told: bool = False


class Keeper:
    """One host.

    Args:
        log: is told what happens, by a word and facts.
    """

    def __init__(self, options: HostOptions, log: Callable[..., None]) -> None:
        self._options = options
        self._log = log
        self._wards = Wards(options.lease_s, _agents_of)
        self._pools: dict[str, ShmPool] = {}
        self._newest: dict[str, dict[int, list[Label]]] = {}
        self._going: list[Going] = []
        self._stop = asyncio.Event()
        self._told: dict[str, dict[str, int]] = {}
        self._tell_at_s = 0.0
        self._address = options.address

    async def run(self) -> None:
        """Serve until a signal ends it; runs that go on here are ended in order, too.

        Raises:
            MachineError: nobody can listen there, or the folder can't be written.
        """
        self._options.folder.mkdir(parents=True, exist_ok=True)
        self._remember()
        host, port = self._options.listen
        transport = await TcpTransport.open(host)
        node = Node(
            transport, self._options.token, self, lease_s=self._options.lease_s, event=self._log
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        try:
            found = await node.start(host, port)
            self._address = self._address or f"{found[0]}:{found[1]}"
            self._log("host", address=self._address, transport=transport.name)
            while not self._stop.is_set():
                self._tick()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._stop.wait()
        finally:
            await node.close()
            for going in self._going:
                with contextlib.suppress(ProcessLookupError):
                    going.program.terminate()
            for going in self._going:
                going.program.wait()
                going.chains.close()

    # ------------------------------------------------------------ the node's shelf

    def find(self, name: str) -> ShmPool:
        """See Shelf.find."""
        found = self._pools.get(name)
        if found is None:
            raise PoolAbsent(f"this host has no {name} that somebody writes", "")
        return found

    def seat(self, wanted: wire.Seat, pool: ShmPool | None) -> ShmPool:
        """See Shelf.seat."""
        ward = self._wards.check_seat(wanted.pool.removeprefix("replica-"))
        if pool is not None:
            pool.succeed()
            return pool
        name = self._pool_name(ward)
        taken = sum(each.usage().segment_bytes for each in self._pools.values())
        most = self._options.pool_mb << 20
        if taken + wanted.size > most:
            raise SizesDiffer(
                f"a replica of {wanted.size:,} bytes (pool.size_mb) has no place at this host, "
                f"which has {most:,} for replicas, {taken:,} of them taken: start it with a larger "
                "--pool-mb, or make the pool smaller"
            )
        try:
            made = ShmPool.adopt(name)
            if made.usage().segment_bytes != wanted.size:
                size = made.usage().segment_bytes
                made.close()
                raise SizesDiffer(
                    f"the replica that is here has {size:,} bytes, the pool {wanted.size:,}"
                    " (pool.size_mb)"
                )
        except MachineError:
            made = ShmPool.create(
                name, wanted.size, atoms_max=wanted.atoms_max, persist=True, space=wanted.space
            )
        return self._opened(wanted.pool, made)

    def left(self, name: str, pool: ShmPool) -> None:
        """See Shelf.left: its memory stays, for it is what would be gone on from."""
        self._pools.pop(name, None)
        pool.close()

    def stored(self, name: str, label: Label) -> None:
        """See Shelf.stored: older atoms of the agent go."""
        labels = self._newest.setdefault(name, {}).setdefault(label.agent, [])
        labels.append(label)
        labels.sort(key=lambda each: each.seq)
        while len(labels) > KEPT:
            with contextlib.suppress(LocalError):
                self._pools[name].free(labels.pop(0).id)

    async def asked(self, peer: str, what: dict[str, Any]) -> dict[str, Any]:
        """See Shelf.asked."""
        answer = self._wards.asked(what, time.monotonic())
        if what.get("do") in ("ward", "over"):
            self._write(self._wards.wards[what["run"]])
        return answer

    # ------------------------------------------------------------ taking over

    def _tick(self) -> None:
        for ward, agents in self._wards.due(time.monotonic()):
            try:
                self._take_over(ward, agents)
            except DsecError as error:
                self._log("not taken over", run=ward.run, why=str(error))
        if time.monotonic() >= self._tell_at_s:
            self._tell()
        for going in self._going:
            self._compare(going)
            if not going.told and going.program.poll() is not None:
                going.told = True
                code = going.program.returncode
                self._log("run ended here", run_dir=str(going.run_dir), exit_code=code)

    def _tell(self) -> None:
        """Which boundary the newest copy of each agent is of, where that has changed."""
        self._tell_at_s = time.monotonic() + TELL_S
        for ward in self._wards.wards.values():
            newest = self._newest.get(f"replica-{ward.run}", {})
            seqs = {ward.agents[rank]: found[-1].seq for rank, found in newest.items() if found}
            if seqs and seqs != self._told.get(ward.run):
                self._told[ward.run] = seqs
                self._log("copies", run=ward.run, seq=seqs)

    def _take_over(self, ward: Ward, agents: list[str]) -> None:
        name = f"replica-{ward.run}"
        mine = name not in self._pools
        pool = ShmPool.adopt(self._pool_name(ward)) if mine else self._pools[name]
        try:
            epoch = self._wards.take(ward, agents)
            self._write(ward)  # before anything of it runs
            run_dir = self._options.folder / f"{ward.run[:12]}-{epoch}"
            came, due = self._bring(ward, agents, pool, run_dir)
        finally:
            if mine:
                pool.close()
        self._log(
            "taken over", run=ward.run, epoch=epoch, run_dir=str(run_dir),
            agents={agent: each.seq for agent, each in came.items()},
            anew=[each for each in agents if each not in came],
        )  # fmt: skip
        if came:
            self._go_on(ward, epoch, came, due, run_dir)

    def _bring(
        self, ward: Ward, agents: list[str], pool: ShmPool, run_dir: Path
    ) -> tuple[dict[str, arrival.Arrived], dict[str, dict[int, bytes]]]:
        """The newest atom of each agent as a file, and the marks that come behind it."""
        ranks = {ward.agents.index(each): each for each in agents}
        newest: dict[int, Label] = {}
        for entry in pool.entries():
            label = entry.label
            if label.agent in ranks and label.seq >= newest.get(label.agent, label).seq:
                newest[label.agent] = label
        folder = run_dir / arrival.FOLDER
        came, due = {}, {}
        for rank, label in newest.items():
            agent = ranks[rank]
            spill.spill(pool, (label.id,), folder)
            manifest = codec.decode(pool.get(label.id)).manifest
            marks = ward.marks.get(agent, {})
            came[agent] = arrival.Arrived(
                spill.path_of(folder, label.id).name, label.seq, manifest.episode,
                marks.get(label.seq, b"").hex(),
            )  # fmt: skip
            due[agent] = {seq: mark for seq, mark in marks.items() if seq > label.seq}
        return came, due

    def _go_on(
        self, ward: Ward, epoch: int, came: dict[str, arrival.Arrived],
        due: dict[str, dict[int, bytes]], run_dir: Path,
    ) -> None:  # fmt: skip
        text = self._config_here(ward.config)
        (run_dir / identity.CONFIG).write_text(text)
        told = arrival.Arrival(ward.run, epoch, "its host fell silent, or handed it over", came)
        (run_dir / arrival.FILE).write_bytes(msgspec.json.encode(told))
        facts = identity.sealed({"id": ward.run}, text)
        (run_dir / identity.FILE).write_text(json.dumps(facts, indent=2) + "\n")
        command = [sys.executable, "-m", "dsec.cli.start", "run", "--json", "--resume"]
        with (run_dir / "output.txt").open("wb") as output:
            program = subprocess.Popen(
                [*command, str(run_dir)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                close_fds=True,
            )
        self._going.append(Going(run_dir, program, ChainFollower(run_dir), due))

    def _config_here(self, text: str) -> str:
        """The source's configuration, as it holds on this host."""
        config = loads(text, identity.CONFIG).config
        assert config.pool is not None, "what is replicated has a pool"
        peers = [each for each in config.pool.peers if each != self._address]
        pool = config.pool.model_copy(
            update={
                "peers": peers,
                "replicas": min(config.pool.replicas, len(peers)),
                "token_file": str(self._options.token_file),
                "backend": config.pool.backend if peers else "auto",
            }
        )
        return dump(config.model_copy(update={"pool": pool}))

    def _compare(self, going: Going) -> None:
        """Hold what is done again against what the source had committed."""
        for agent, marks in going.due.items():
            for seq in sorted(marks):
                with contextlib.suppress(DsecError):
                    mark = going.chains.mark(agent, seq)
                    if mark is None:
                        break
                    same = mark.pack() == marks.pop(seq)
                    what = "done again alike" if same else "done again otherwise"
                    self._log(what, agent=agent, seq=seq)

    # ------------------------------------------------------------ on disk

    def _pool_name(self, ward: Ward) -> str:
        place = hashlib.blake2b(str(self._options.folder).encode(), digest_size=6).hexdigest()
        return f"replica-{ward.run[:16]}-{place}"

    def _opened(self, name: str, pool: ShmPool) -> ShmPool:
        self._pools[name] = pool
        known = self._newest[name] = {}
        for entry in pool.entries():
            known.setdefault(entry.label.agent, []).append(entry.label)
        return pool

    def _write(self, ward: Ward) -> None:
        folder = self._options.folder / "wards" / ward.run
        folder.mkdir(parents=True, exist_ok=True)
        waiting = folder / f".{WARD}.new"
        with waiting.open("wb") as file:
            file.write(json.dumps(ward.lasting()).encode())
            file.flush()
            os.fsync(file.fileno())
        waiting.replace(folder / WARD)

    def _remember(self) -> None:
        for path in sorted(self._options.folder.glob(f"wards/*/{WARD}")):
            try:
                ward = Ward.known(json.loads(path.read_bytes()))
            except (OSError, ValueError, KeyError) as error:
                raise MachineError(
                    f"{path} is not what this host has written: {error!r}", "Put a copy of it back"
                ) from None
            self._wards.remember(ward, time.monotonic())


def _agents_of(config: str) -> tuple[str, ...]:
    try:
        known = loads(config, identity.CONFIG).config
    except ConfigError as error:
        raise LocalError(f"the run's configuration is none: {error}") from None
    return tuple(name for each in known.agents for name in agent_names(each.name, each.count))


def options(
    folder: Path, listen: str, token_file: Path, address: str, lease_s: float, pool_mb: int
) -> HostOptions:
    """From what was typed. Raises MachineError: the token; LocalError: an address is none."""
    from dsec.sml.remote.handshake import read_token

    try:
        place = host_port(listen) if not listen.endswith(":0") else (listen[:-2], 0)
        if address:
            host_port(address)
    except ValueError as error:
        raise LocalError(f"expected host:port, as in 10.0.0.2:7070, not {error}") from None
    return HostOptions(
        folder.resolve(), place, read_token(token_file), token_file.resolve(), address, lease_s,
        pool_mb,
    )  # fmt: skip
