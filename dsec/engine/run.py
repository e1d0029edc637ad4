"""One run, or one validation, from options to outcome: load, check, claim, supervise, account.

Everything expected comes back as an `Outcome`; everything unexpected too, as an internal error with
its traceback in the run directory. Runs in the supervisor process (see `guard`), which stays free
of numpy, Gymnasium and torch: kernel and uvloop are imported here only when they are needed, after
it is known that they can be.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsec import __version__, rundir, signals
from dsec.config import Loaded, Override, dump, load
from dsec.engine import footprint, identity, isolating, preflight
from dsec.engine import fork as forking
from dsec.engine import resume as resuming
from dsec.engine.advice import remedy
from dsec.engine.diagnose import config_problems
from dsec.engine.plan import Quota, make_spec, pool_name, quotas
from dsec.engine.progress import Meter
from dsec.engine.recount import recount
from dsec.engine.showing import View, make_hooks
from dsec.engine.stop import StopSignals
from dsec.engine.summary import Exit, details, exit_code, totals
from dsec.errors import ConfigError, Diagnostic, DsecError, MachineError, PoolExists, PoolOwned
from dsec.ipc import memory, proc
from dsec.report import RunReport
from dsec.seeds import fresh_run_seed
from dsec.sml.orphans import discard, sweep

if TYPE_CHECKING:
    from dsec.kernel.supervisor import Supervisor
    from dsec.spec import RunSpec


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to run.

    Attributes:
        config: the file; None, where a run is resumed: the one that it began with; and in a fork,
            which takes it from the run that it forks.
        out: the run directory; None: a new one below ./runs.
        resume: the directory of a run that is to go on, instead of `out`.
        allow: keys of the configuration that may then differ from what they were.
        fork: the agent of another run that begins a run of its own.
    """

    config: Path | None
    overrides: Sequence[Override] = ()
    out: Path | None = None
    argv: Sequence[str] = ()
    resume: Path | None = None
    allow: Sequence[str] = ()
    fork: forking.Fork | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended.

    Attributes:
        code: the exit code.
        totals: the run in numbers, all keys always there.
        error: why there is no whole run: a ConfigError, a MachineError or an InternalError.
        report: the kernel's report, None if it never came to one.
    """

    code: Exit
    totals: dict[str, Any]
    error: DsecError | None = None
    report: RunReport | None = None


class InternalError(DsecError):
    """A mistake of ours. The traceback is in the file named, or in `detail` if there is none."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


def guard(main: Callable[[], int], own: Sequence[int] = ()) -> int:
    """Run `main` in a child process that is the supervisor, and this process as its guardian.

    The guardian outlives the supervisor and kills whatever it left, however it ended. It closes
    `own`, descriptors whose other ends are to see the end of the supervisor.

    Returns:
        The exit code.

    Raises:
        MachineError: something isn't installed or mounted, or this user may have no more processes.
    """
    preflight.check_installation()
    preflight.check_proc()
    from dsec.engine import guardian

    try:
        return guardian.run(main, own)
    except BlockingIOError:  # what fork says where a limit is reached
        raise MachineError(
            "no process can be started: this user, control group or machine has as many as it may",
            "Raise the limit (`ulimit -u`, TasksMax= of systemd, --pids-limit of docker), or end "
            "some",
        ) from None


def run(options: RunOptions, view: View) -> Outcome:
    """Run a configuration to its end. Raises nothing that is an `Exception`.

    The process's signals are this run's until it ends (see `engine.stop`), and ignored afterwards.
    A KeyboardInterrupt before the supervisor listens to them leaves no run directory.
    """
    claimed: list[rundir.RunDir] = []
    try:
        return _run(options, view, claimed)
    except KeyboardInterrupt:
        if claimed:
            claimed[0].discard()
        raise
    except (ConfigError, MachineError) as error:
        where = str(claimed[0].path) if claimed else None
        for directory in claimed:
            directory.take_back()
        return _failed(error, where)
    except MemoryError:
        return _failed(_no_memory(), str(claimed[0].path) if claimed else None)
    except Exception as error:
        return _internal(error, claimed[0] if claimed else None)
    finally:
        for directory in claimed:
            directory.close()


def _run(options: RunOptions, view: View, claimed: list[rundir.RunDir]) -> Outcome:
    for name, nbytes in sweep():
        view.log("info", "a pool that a killed kernel left is gone", pool=name, bytes=nbytes)
    past: resuming.Past | None = None
    branch: forking.Branch | None = None
    if options.resume is None:
        if options.fork is not None:
            branch = forking.look(options.fork)
            loaded = branch.loaded
        else:
            assert options.config is not None, "a run that is not resumed has one"
            loaded = load(options.config, options.overrides)
        open_files = _preflight(loaded, len(quotas(loaded.config)))
        with signals.held():  # a directory that nobody knows of would stay
            directory = rundir.claim(options.out, loaded.config.run.name)
            claimed.append(directory)
    else:
        directory = rundir.reopen(options.resume)
        claimed.append(directory)
        loaded, changed = resuming.configuration(
            directory, options.config, options.overrides, options.allow
        )
        open_files = _preflight(loaded, len(quotas(loaded.config)))
        past = resuming.look(directory, loaded, changed)
    seed = loaded.config.run.seed
    if seed is None:
        seed = fresh_run_seed()
    starts = past.starts if past is not None else None
    if past is None and loaded.config.pool is not None:
        _free_pool_name(pool_name(loaded.config.run.name, str(directory.path)))
    if branch is not None:
        starts = forking.begin(directory, branch)
    run_id = past.facts.get("id", "") if past is not None else identity.fresh()
    spec = make_spec(
        loaded, run_dir=str(directory.path), seed=seed, open_files=open_files, starts=starts,
        run_id=run_id,
    )  # fmt: skip
    spec, unenforced = isolating.settle(spec)
    resolved = loaded.config.model_copy(
        update={"run": loaded.config.run.model_copy(update={"seed": seed})}
    )
    facts = ({"id": run_id} if run_id else {}) | _kernel_facts(options.argv)
    if past is not None:
        resuming.begin(directory, past)
        facts |= resuming.facts(past)
    if branch is not None:
        facts |= forking.facts(branch)
    text = dump(resolved)
    directory.write_json(identity.FILE, identity.sealed(facts, text))
    directory.write_text(identity.CONFIG, text)
    view.begin(str(directory.path), len(spec.agents), seed)
    _warn(view, unenforced)
    if loaded.config.pool is not None:
        reached = preflight.reach(loaded.config.pool)
        view.log("info", "pool", backend=reached.name, why=reached.why)
    if past is not None:
        _tell(view, past)
    if branch is not None:
        view.log("info", "forked", **forking.facts(branch)["forked"])
    return _supervised(spec, loaded, directory, view, past)


def _free_pool_name(name: str) -> None:
    """A run that is new has a pool that is: what a killed one left there goes.

    Raises:
        PoolOwned, PoolExists: somebody writes it, or it was to be kept.
    """
    if not discard(name):
        raise PoolExists(
            f"an earlier run in the same place has left pool {name}, and it was to be kept",
            f"See what it holds: dsec-rdma-gc {name}; to take it away: --force --persisted",
        )


def _warn(view: View, unenforced: Mapping[str, Sequence[str]]) -> None:
    """What the configuration asks for and this machine can't enforce is not pretended."""
    for group, said in unenforced.items():
        for each in said:
            view.log("warning", "isolation not enforced", agents=group, what=each)


def _tell(view: View, past: resuming.Past) -> None:
    """What somebody who resumes a run should know of how it goes on."""
    view.log("info", "resumed", agents=len(past.starts) - len(past.done), done=len(past.done))
    for change in past.changed:
        view.log("info", "configuration changed", key=str(change))
    for note in past.notes:
        view.log("warning", note)


def _supervised(
    spec: RunSpec,
    loaded: Loaded,
    directory: rundir.RunDir,
    view: View,
    past: resuming.Past | None,
) -> Outcome:
    shares = [
        Quota(max(0, start.steps - agent.first * agent.num_envs), start.episodes)
        for agent, start in ((each, each.runners[0].start) for each in spec.agents)
    ]
    ledger = footprint.Ledger()
    try:
        report = _supervise(spec, view, Meter(shares, time.monotonic()), ledger)
    finally:
        if spec.pool is not None and not spec.pool.persist:
            with contextlib.suppress(PoolOwned):  # by somebody else, which was said
                discard(spec.pool.name)  # its server may have been killed before it could do so
    ledger.supervisor_peak = footprint.own_peak_bytes()
    problems = config_problems(loaded, report, dry=False)
    ended = Exit.CONFIG if problems else exit_code(report)
    nothing = not any(agent.steps for agent in report.agents.values())
    if past is not None:
        nothing = ended is not Exit.DONE and not resuming.moved(directory, past, report)
    if nothing and (problems or past is not None):
        return _came_to_nothing(directory, problems, report, ended, ledger)
    directory.settle()
    if past is not None:
        past.add_to(report)
    if not report.files:
        recount(report, directory.path)
    numbers = totals(report, str(directory.path), ledger)
    code = Exit.CONFIG if problems else exit_code(report)
    error = ConfigError(problems) if problems else _failure(report, code)
    said = {**numbers, "exit_code": int(code), "failure": report.failure}
    try:
        directory.write_json("summary.json", {**said, **details(report, ledger)})
    except MachineError as unwritten:  # whoever reads the output has the numbers all the same
        code, error = Exit.MACHINE, error or unwritten
    return Outcome(code, numbers, error, report)


def _came_to_nothing(
    directory: rundir.RunDir,
    problems: list[Diagnostic],
    report: RunReport,
    code: Exit,
    ledger: footprint.Ledger,
) -> Outcome:
    """The directory is left as it was found."""
    directory.discard()
    if problems:
        return _failed(ConfigError(problems), None)
    return Outcome(code, totals(report, None, ledger), _failure(report, code), report)


def validate(config: Path, overrides: Sequence[Override], scratch: Path, view: View) -> Outcome:
    """Check a configuration down to constructing one agent of each entry, recording nothing.

    Args:
        config: the file.
        overrides: changes to it.
        scratch: an empty directory for what the runners print; the caller removes it.
        view: only its `log` is called.
    """
    try:
        loaded = load(config, overrides)
        open_files = _preflight(loaded, len(quotas(loaded.config)))
        seed = loaded.config.run.seed or 0
        spec = make_spec(loaded, run_dir=str(scratch), seed=seed, open_files=open_files, dry=True)
        spec, unenforced = isolating.settle(spec)
        _warn(view, unenforced)
        report = _supervise(spec, view, None)
        problems = config_problems(loaded, report, dry=True)
        if problems:
            raise ConfigError(problems)
        code = exit_code(report)
        return Outcome(code, totals(report, None), _failure(report, code), report)
    except (ConfigError, MachineError) as error:
        return _failed(error, None)
    except MemoryError:
        return _failed(_no_memory(), None)
    except Exception as error:
        return _internal(error, None)


def _preflight(loaded: Loaded, agents: int) -> int:
    preflight.check_record(loaded)
    preflight.check_open_files(loaded)
    preflight.check_cores(loaded)
    open_files = preflight.check_limits(agents, preflight.spares(loaded))
    preflight.check_pool(loaded)
    if loaded.config.pool is not None:
        preflight.reach(loaded.config.pool)
    preflight.check_memory(loaded)
    return open_files


def _kernel_facts(argv: Sequence[str]) -> dict[str, Any]:
    return {
        "version": __version__,
        "argv": list(argv),
        "supervisor_pid": os.getpid(),
        "guardian_pid": os.getppid(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cwd": str(Path.cwd()),
    }


# ---------------------------------------------------------------- the supervisor


def _supervise(
    spec: RunSpec, view: View, meter: Meter | None, ledger: footprint.Ledger | None = None
) -> RunReport:
    import uvloop

    async def main() -> RunReport:
        from dsec.engine.guardian import orphaned
        from dsec.engine.servers import servers
        from dsec.kernel.supervisor import Supervisor

        hooks = make_hooks(view, spec)
        supervisor = Supervisor(spec, hooks, orphaned=orphaned, servers=servers)
        stop = StopSignals(supervisor, view, asyncio.get_running_loop())
        stop.install()
        beside = [_show(supervisor, view, meter)] if meter else []
        if ledger is not None:
            beside.append(footprint.sample(ledger, [*supervisor.agents], _living(supervisor)))
        tasks = [asyncio.ensure_future(each) for each in beside]
        try:
            report = await supervisor.run()
        finally:
            stop.remove()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        hooks.progress(report)
        if meter is not None and report.failure_kind != "config":
            view.snapshot(meter.read(report, time.monotonic()))
        return report

    signals.hold()  # a loop that is half made can't take them
    proc.be_prompt()  # what it has to do is little, and urgent where a runner has died
    return uvloop.run(main())


async def _show(supervisor: Supervisor, view: View, meter: Meter) -> None:
    while True:
        view.snapshot(meter.read(supervisor.report, time.monotonic()))
        await asyncio.sleep(view.interval_s)


def _living(supervisor: Supervisor) -> footprint.Living:
    from dsec.kernel.spawn import Server

    def living(name: str) -> list[tuple[str, int]]:
        if not name:
            return [
                (server.name, server.runner.pid)
                for server in (*supervisor.zygotes.values(), *supervisor.servers.values())
                if isinstance(server, Server) and server.up and server.runner
            ]
        agent = supervisor.agents[name]
        runners = agent.runners.items() if agent.report.state == "running" else ()
        return [(role.name.lower(), runner.pid) for role, runner in runners if runner.pid]

    return living


# ---------------------------------------------------------------- what went wrong


def _failure(report: RunReport, code: Exit) -> DsecError | None:
    if not report.failure:
        return None
    if code == Exit.MACHINE:
        return MachineError(report.failure, remedy(report.failure, report.deaths))
    error = report.failure_error
    return InternalError(report.failure, error.traceback if error is not None else "")


def _failed(error: ConfigError | MachineError, run_dir: str | None) -> Outcome:
    code = Exit.CONFIG if isinstance(error, ConfigError) else Exit.MACHINE
    return Outcome(code, totals(None, run_dir), error)


def _no_memory() -> MachineError:
    return MachineError("the supervisor got no more memory", memory.remedy())


def _internal(error: Exception, directory: rundir.RunDir | None) -> Outcome:
    text = "".join(traceback.format_exception(error))
    message = f"internal error: {type(error).__name__}: {error}"
    if directory is not None:
        try:
            directory.write_text("internal-error.txt", text)
            message += f" (traceback in {directory.path / 'internal-error.txt'})"
            text = ""
        except MachineError:
            pass
    where = str(directory.path) if directory is not None else None
    return Outcome(Exit.INTERNAL, totals(None, where), InternalError(message, text))
