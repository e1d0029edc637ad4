"""What a served kernel does when it is asked: one method each for what methods.py lists.

Owns all sandboxes and runs, their names, and who asked for which: what a program has opened ends
with its connection. Knows no bytes (connection.py) and no socket (serve.py).
"""

from __future__ import annotations

import asyncio
import resource
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import yaml
from pydantic import ValidationError

from dsec import __version__
from dsec.config import Agent
from dsec.engine import methods, preflight, talk
from dsec.engine.handover import Parcels
from dsec.engine.hiring import Run
from dsec.engine.hosting import Sandbox
from dsec.engine.methods import AgentRow
from dsec.engine.rpc import Code, Problem
from dsec.errors import FrameError, MachineError

RUNS_KEPT = 100  # that have ended, to be asked about


class Customer(Protocol):
    """Who asks: a connection."""

    def told(self, source: Mapping[str, str], message: talk.AnyMessage, ticket: str = "") -> None:
        """Hear what concerns a run or sandbox of its own; `ticket` is for descriptors beside it."""


class Desk:
    """One kernel.

    Args:
        folder: an empty one of its own.
        leave: called with an exit code when a program asks for the end of it all.
    """

    def __init__(self, folder: Path, leave: Callable[[int], None]) -> None:
        self.folder = folder
        self.leave = leave
        self.shut = False  # nothing new is begun
        self._sandboxes: dict[str, tuple[Sandbox, Customer]] = {}
        self._runs: dict[str, tuple[Run, Customer]] = {}
        self._dropped = set[str]()  # sandboxes that nobody will close
        self._count = 0
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    # ------------------------------------------------------------ methods

    async def run_start(self, who: Customer, asked: methods.RunStart) -> methods.RunStarted:
        """Begin a run."""
        self._check_open()
        if asked.config is None and asked.resume is None:
            raise Problem(Code.INVALID_PARAMS, "it is missing", "config", "Name a file, or resume")
        if asked.resume is not None and asked.out is not None:
            raise Problem(Code.INVALID_PARAMS, "a run that goes on has a directory", "out")
        name = self._name("run", "")
        hire = talk.Hire(asked.config, asked.set, asked.out, asked.resume)
        try:
            run = Run(name, hire, asked.keep, lambda said: self._tell_run(name, said))
        except MachineError as error:
            raise Problem(Code.MACHINE, error.problem, name, error.remedy) from None
        self._runs[name] = run, who
        ended = [each for each, (run, _) in self._runs.items() if run.ended]
        for old in ended[:-RUNS_KEPT]:
            del self._runs[old]
        try:
            return await run.started()
        except Problem:
            self._runs.pop(name, None)
            raise

    async def run_status(self, who: Customer, asked: methods.RunName) -> methods.RunStatus:
        """Where a run stands."""
        return self._run(asked.run).status()

    async def run_stop(self, who: Customer, asked: methods.RunStop) -> methods.RunStatus:
        """End a run, and wait for its end; one that has ended says how."""
        run = self._run(asked.run)
        run.stop(kill=asked.kill)
        return await run.gone()

    async def sandbox_open(
        self, who: Customer, asked: methods.SandboxOpen
    ) -> methods.SandboxOpened:
        """Begin a sandbox, and wait for its environments."""
        self._check_open()
        agent = _agent_of(asked.agent)
        fields = {each: getattr(asked, each) for each in _ORDER_FIELDS}
        if asked.pool is not None:
            made_up = f"{agent.name}-{uuid.uuid4().hex[:12]}"
            fields["pool"] = msgspec.structs.asdict(asked.pool)
            fields["pool"]["name"] = asked.pool.name or made_up
        order = talk.Order(version=__version__, agent={"given": asked.agent}, **fields)
        try:
            talk.encode(order)  # about what each of its processes will be told
        except FrameError as error:
            raise Problem(Code.INVALID_PARAMS, str(error), "agent") from None
        name = self._name("sandbox", asked.sandbox)
        lanes = asked.lanes + sum(len(each.agents()) for each, _ in self._sandboxes.values())
        try:
            preflight.check_limits(lanes, lanes)
        except MachineError as error:
            raise Problem(Code.MACHINE, error.problem, name, error.remedy) from None
        place = self.folder / f"s{self._count}"
        sandbox = Sandbox(
            name, order, agent, place, self._open_files, lambda *said: self._tell(name, *said)
        )
        self._sandboxes[name] = sandbox, who
        try:
            agents = await sandbox.opened()
        except Problem:
            self._drop(name)
            raise
        return methods.SandboxOpened(sandbox=name, agents=agents, ticket=sandbox.ticket)

    async def sandbox_close(
        self, who: Customer, asked: methods.SandboxClose
    ) -> methods.SandboxClosed:
        """See a sandbox gone."""
        found = self._sandboxes.get(asked.sandbox)
        if found is None:
            raise Problem(Code.UNKNOWN, f"there is no sandbox {asked.sandbox!r}", "sandbox")
        sandbox, _ = found
        await sandbox.gone(max(0.0, asked.grace_s))
        self._sandboxes.pop(asked.sandbox, None)
        self._dropped.discard(asked.sandbox)
        return methods.SandboxClosed(sandbox=asked.sandbox, files=sandbox.files)

    async def agents_list(self, who: Customer, asked: methods.AgentsList) -> methods.Agents:
        """All agents, or those of one run or sandbox."""
        rows: list[AgentRow] = []
        if asked.run:
            rows = self._run(asked.run).agents()
        elif asked.sandbox:
            if asked.sandbox not in self._sandboxes:
                raise Problem(Code.UNKNOWN, f"there is no sandbox {asked.sandbox!r}", "sandbox")
            rows = self._sandboxes[asked.sandbox][0].agents()
        else:
            for run, _ in self._runs.values():
                rows += run.agents()
            for sandbox, _ in self._sandboxes.values():
                rows += sandbox.agents()
        return methods.Agents(agents=tuple(rows))

    async def shutdown(self, who: Customer, asked: methods.Nothing) -> methods.Done:
        """End all runs and sandboxes, and begin no new ones."""
        self.request_drain("shutdown")
        await self.gone()
        return methods.Done()

    # ------------------------------------------------------------ ends

    def release(self, who: Customer) -> None:
        """End what a connection has opened, for it has ended."""
        for name, (_, owner) in tuple(self._sandboxes.items()):
            if owner is who:
                self._drop(name)
        for run, owner in self._runs.values():
            if owner is who and not run.keep:
                run.stop(kill=True)

    def request_drain(self, reason: str) -> None:
        """Have all runs and sandboxes end at their next boundaries."""
        self.shut = True
        for sandbox, _ in self._sandboxes.values():
            sandbox.drain(reason)
        for run, _ in self._runs.values():
            run.stop(kill=False)

    def request_kill(self) -> None:
        """End all runs and sandboxes at once."""
        self.shut = True
        for sandbox, _ in self._sandboxes.values():
            sandbox.kill()
        for run, _ in self._runs.values():
            run.stop(kill=True)

    async def gone(self) -> None:
        """Wait until nothing is left of them."""
        await asyncio.gather(*(each.gone(None) for each, _ in self._sandboxes.values()))
        await asyncio.gather(*(each.gone() for each, _ in self._runs.values()))

    def claim(self, ticket: str) -> Parcels:
        """What a ticket is for."""
        for sandbox, _ in self._sandboxes.values():
            if found := sandbox.claim(ticket):
                return found
        return []

    # ------------------------------------------------------------ inside

    def _check_open(self) -> None:
        if self.shut:
            raise Problem(Code.STATE, "this kernel is ending", remedy="Start another one")

    def _name(self, kind: str, wanted: str) -> str:
        self._count += 1
        name = wanted or f"{kind}-{self._count}"
        if name in self._sandboxes or name in self._runs:
            raise Problem(Code.INVALID_PARAMS, f"there is a {kind} {name!r}", kind)
        return name

    def _run(self, name: str) -> Run:
        if name not in self._runs:
            raise Problem(Code.UNKNOWN, f"there is no run {name!r}", "run")
        return self._runs[name][0]

    def _tell_run(self, name: str, message: talk.AnyMessage) -> None:
        if name in self._runs:
            self._runs[name][1].told({"run": name}, message)

    def _tell(self, name: str, message: talk.AnyMessage, ticket: str) -> None:
        if name not in self._sandboxes:
            return
        self._sandboxes[name][1].told({"sandbox": name}, message, ticket)
        if isinstance(message, talk.Ended) and name in self._dropped:
            self._dropped.discard(name)
            del self._sandboxes[name]

    def _drop(self, name: str) -> None:
        """End what nobody will close: it was never there, or whoever opened it is gone."""
        sandbox, _ = self._sandboxes[name]
        sandbox.kill()
        if sandbox.ended:
            del self._sandboxes[name]
        else:
            self._dropped.add(name)


_ORDER_FIELDS = tuple(
    name for name in talk.Order.__struct_fields__ if name not in ("version", "agent")
)


def _agent_of(given: dict[str, Any] | str) -> Agent:
    """The agent that is described, checked.

    Raises:
        Problem: it is none.
    """
    try:
        if isinstance(given, str):
            given = yaml.safe_load(given)
        return Agent.model_validate(given)
    except ValidationError as error:
        said = [
            f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}"
            for each in error.errors()
        ]
        raise Problem(Code.CONFIG, "; ".join(said), "agent", "See docs/CONFIG.md") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise Problem(Code.CONFIG, f"no YAML: {error}", "agent") from None


def convert(params: msgspec.Raw | None, kind: type[methods.Params]) -> methods.Params:
    """The parameters of a request: an object, or an array in the order of the fields.

    Raises:
        Problem: they don't fit.
    """
    given = msgspec.json.decode(params) if params is not None else {}
    names = kind.__struct_fields__
    if isinstance(given, list):
        if len(given) > len(names):
            what = f"{len(given)} parameters; at most {len(names)} fit"
            raise Problem(Code.INVALID_PARAMS, what, "params")
        given = dict(zip(names, given, strict=False))
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at ")
        path = where.strip("`").removeprefix("$").removeprefix(".") or "params"
        known = f"Known are {', '.join(names)}" if "unknown field" in text else ""
        raise Problem(Code.INVALID_PARAMS, text, path, known) from None
