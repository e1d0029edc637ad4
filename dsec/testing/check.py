"""`check_env`: what an environment is good for, found out in processes of its own.

Owns the order of the questions, their limits, and what counts as a problem. The environment is
stepped in probes (probing.py) and in two real runs (runs.py), one with planned faults and one
without; it never comes into this process.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dsec.config import Fault, load, loads
from dsec.config.source import render
from dsec.errors import ConfigError, Diagnostic
from dsec.ipc.frames import EnvSettings
from dsec.testing import runs
from dsec.testing.probing import EnvironmentUnusable, Told, probe
from dsec.testing.report import (
    CheckReport,
    CodecTrial,
    Determinism,
    Growth,
    Holds,
    Survival,
    Trial,
)

FAULTS: Final = ("segv", "kill", "hang", "exit", "exception")
STEPS: Final = 1000
COURSE_S: Final = 5.0
PROBE_S: Final = 60.0
RUN_S: Final = 120.0
RUN_STEPS_S: Final = 2.0
"""Of stepping in a run, so that slow environments are given their faults sooner."""
GAP_MIN, GAP_MAX = 10, 100
DEADLINE_MIN_S: Final = 1.0
DEADLINE_TIMES: Final = 50  # the slowest step that was seen

LEAK_KIB = 256.0
LEAK_EACH = 0.5
PARTS = ("observation", "reward", "terminated", "truncated", "the reset that follows")

Tell = Callable[[str], None]


def named(name: str) -> dict[str, Any]:
    """What a configuration says for an environment that is named on a command line: an `id`
    (`CartPole-v1`, `module:Name-v0`), or an `entry` (`module:Class`)."""
    module, colon, last = name.partition(":")
    if colon and module and re.fullmatch(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*", last):
        return {"entry": name}
    return {"id": name}


def check_env(
    env: str,
    *,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
    faults: Sequence[str] = FAULTS,
    tell: Tell = lambda _: None,
) -> CheckReport:
    """Find out what an environment is good for. Takes half a minute, more for a slow one.

    Args:
        env: an id, or `module:Class`.
        kwargs: keywords for it.
        wrappers: as in a configuration, `{"entry": ..., "kwargs": ...}`, innermost first.
        seed: of the environment and of the actions.
        faults: kinds of `chaos.faults` that it is to survive in a step.
        tell: is told what is being done, in a few words.

    Raises:
        ConfigError: no such name, keyword or wrapper can be.
        EnvironmentUnusable: it can't be made or stepped; says why.
        EngineDied, MachineError, RunTooLong: a run can't be made.
    """
    stated = {**named(env), "kwargs": dict(kwargs or {}), "wrappers": [*map(dict, wrappers)]}
    return check_settings(env, stated, seed=seed, faults=faults, tell=tell)


def check_config(
    path: Path,
    agent: str = "",
    *,
    seed: int = 0,
    faults: Sequence[str] = FAULTS,
    tell: Tell = lambda _: None,
) -> CheckReport:
    """The same for the environment of an entry of `agents` in a configuration; the first one, if
    none is named.

    Raises:
        ConfigError: the file is wrong, or has no such agent.
        As check_env.
    """
    config = load(path).config
    found = [each for each in config.agents if agent in ("", each.name)]
    if not found:
        names = ", ".join(each.name for each in config.agents)
        raise ConfigError(
            [Diagnostic("agents", f"no agent is called {agent}: there are {names}", str(path))]
        )
    stated = found[0].env.model_dump(exclude_none=True, exclude={"num_envs"})
    name = f"{path}: {found[0].name}"
    return check_settings(name, stated, seed=seed, faults=faults, tell=tell)


def check_settings(
    name: str, stated: Mapping[str, Any], *, seed: int, faults: Sequence[str], tell: Tell
) -> CheckReport:
    """The same for what a configuration states as `agents[].env`."""
    return _Check(name, stated, seed, tuple(dict.fromkeys(faults)), tell).report()


class _Check:
    """One check, in its order."""

    def __init__(
        self, name: str, stated: Mapping[str, Any], seed: int, faults: tuple[str, ...], tell: Tell
    ) -> None:
        self._name, self._stated, self._seed, self._tell = name, dict(stated), seed, tell
        self._faults = faults
        self._began = time.monotonic()
        self._problems: list[str] = []
        self._notes: list[str] = []
        self._document(GAP_MIN, DEADLINE_MIN_S)  # what is wrong with the names is told at once
        self._settings = EnvSettings(
            id=stated.get("id", ""),
            entry=stated.get("entry", ""),
            kwargs=stated.get("kwargs", {}),
            wrappers=tuple(stated.get("wrappers", ())),
        )

    def report(self) -> CheckReport:
        """Do all of it."""
        self._tell("constructing and stepping it")
        first = self._probe(STEPS, ("leaks", "codecs"))
        made, course = first.parts.get("constructed"), first.parts.get("coursed")
        if made is None or course is None:
            raise EnvironmentUnusable(
                f"{self._name}: {first.failed}", lookup=first.lookup, detail=first.detail
            )
        if first.failed:
            self._problems.append(first.failed)
        self._tell("doing it again in a fresh process")
        same = self._determinism(course)
        self._tell("running it with faults")
        hit, calm, survivals = self._runs(course)
        identical = None
        if hit is not None and calm is not None:
            identical = bool(hit.chains) and hit.chains == calm.chains
        level = codec = ""
        if hit is not None:
            protection = hit.agents["env"]["protection"].get("env", {})
            level, codec = protection.get("level", ""), protection.get("codec", "")
            self._notes += protection.get("notes", ())
        leaks = {
            of: Growth(batch=each["batch"], measured=each["measured"], **each["growth"])
            for of in ("steps", "resets")
            if (each := first.parts.get(f"leaked {of}")) is not None
        }
        opened, stepped = (msgspec.convert(each["holds"], Holds) for each in (made, course))
        self._judge(same, leaks, survivals, identical, hit)
        return CheckReport(
            env=self._name,
            sound=not self._problems,
            problems=tuple(self._problems),
            notes=tuple(dict.fromkeys(self._notes)),
            observation_space=made["observation_space"],
            action_space=made["action_space"],
            construct_ms=made["ms"],
            step_us=course["step_us"],
            deterministic=same,
            opened=opened,
            stepped=stepped,
            per_1000_steps=leaks.get("steps"),
            per_100_resets=leaks.get("resets"),
            codecs=msgspec.convert(
                first.parts.get("codec", {}).get("tried", []), tuple[CodecTrial, ...]
            ),
            replay=_trial(first.parts.get("replayed")),
            fork=_trial(first.parts.get("forked")),
            level=level,
            codec=codec,
            faults=survivals,
            identical=identical,
            lost=hit.agents["env"]["lost"] if hit is not None else 0,
            left=hit.left if hit is not None else (),
            seconds=round(time.monotonic() - self._began, 1),
            seed=self._seed,
        )

    # ------------------------------------------------------------ alone

    def _probe(self, steps: int, parts: Sequence[str] = (), hash_seed: int = 0) -> Told:
        return probe(
            self._settings,
            seed=self._seed,
            steps=steps,
            seconds=COURSE_S,
            parts=parts,
            limit_s=PROBE_S,
            hash_seed=hash_seed,
        )

    def _determinism(self, course: Mapping[str, Any]) -> Determinism:
        """Compare with a process of another hash seed; if it differs, with one of the same."""
        other = self._differs(course, hash_seed=1)
        if other.step is None:
            return other
        alike = self._differs(course, hash_seed=0)
        if alike.step is None:
            return msgspec.structs.replace(other, verdict="hash seed")
        return alike

    def _differs(self, course: Mapping[str, Any], *, hash_seed: int) -> Determinism:
        told = self._probe(course["steps"], hash_seed=hash_seed)
        again = told.parts.get("coursed")
        if again is None:
            return Determinism("no", 0, 0, f"length ({told.failed})")
        steps = min(course["steps"], again["steps"])
        for step in range(steps + 1):
            one, two = course["digests"][step], again["digests"][step]
            if one == two:
                continue
            names = PARTS if step else PARTS[:1]
            unlike = [n for n, a, b in zip(names, one, two, strict=False) if a != b]
            return Determinism("no", steps, step, ", ".join(unlike) or "length")
        return Determinism("yes", steps)

    # ------------------------------------------------------------ in real runs

    def _document(self, gap: int, deadline_s: float) -> str:
        """The configuration of the run with faults."""
        agent = {
            "name": "env",
            "env": self._stated,
            "policy": {"entry": "dsec.policies:RandomPolicy"},
            "deadlines": {"step_s": deadline_s},
            "failover": {"restarts": {"max": 10 * (len(self._faults) + 1)}},
        }
        plan = [
            {"agent": "env", "role": "env", "phase": "step", "step": gap * (at + 1), "kind": kind}
            for at, kind in enumerate(self._faults)
        ]
        steps = gap * (len(self._faults) + 2)
        run = {"name": "check", "seed": self._seed, "steps": steps}
        text = render({"run": run, "agents": [agent], "chaos": {"faults": plan}})
        loads(text, self._name)
        return text

    def _runs(
        self, course: Mapping[str, Any]
    ) -> tuple[runs.Ran | None, runs.Ran | None, tuple[Survival, ...]]:
        if not self._faults:
            return None, None, ()
        mean_s = course["step_us"] / 1e6
        gap = int(RUN_STEPS_S / max(mean_s, 1e-6) / (len(self._faults) + 2))
        gap = max(GAP_MIN, min(GAP_MAX, gap))
        slowest_s = course["step_us_max"] / 1e6
        text = self._document(gap, max(DEADLINE_MIN_S, DEADLINE_TIMES * slowest_s))
        with tempfile.TemporaryDirectory(prefix="dsec-check-") as folder:
            config = Path(folder, "check.yaml")
            config.write_text(text)
            hit = runs.run(config, Path(folder, "hit"), limit_s=RUN_S)
            plan = loads(text, self._name).config.chaos.faults
            survivals = tuple(_survivals(hit, plan))
            calm = runs.run(config, Path(folder, "calm"), set=("chaos=null",), limit_s=RUN_S)
        if not hit.agents:
            why = (hit.error or {}).get("message", f"exit code {hit.code}")
            self._problems.append(f"no run came about: {why}")
            return None, None, ()
        return hit, calm, survivals

    # ------------------------------------------------------------ the verdict

    def _judge(
        self,
        same: Determinism,
        leaks: Mapping[str, Growth],
        survivals: Sequence[Survival],
        identical: bool | None,
        hit: runs.Ran | None,
    ) -> None:
        problems = self._problems
        if same.verdict == "no":
            where = f"step {same.step}" if same.step else "the first reset"
            problems.append(f"not deterministic: {same.what} of {where} differs in a second run")
        elif same.verdict == "hash seed":
            self._notes.append(
                "deterministic only with a fixed PYTHONHASHSEED, as all runners have it"
            )
        for of, growth in leaks.items():
            if told := _leak(growth):
                problems.append(f"leaks {told} in {growth.batch:,} {of}")
        for each in survivals:
            if not each.happened:
                problems.append(f"{each.kind}: it never came to step {each.step}")
            elif not each.survived:
                problems.append(f"{each.kind}: not survived: {each.cause}")
            elif not each.exact:
                problems.append(f"{each.kind}: survived, but not exactly: {each.why}")
        if identical is False and all(each.exact for each in survivals):
            problems.append("the run with faults recorded something else than the one without")
        if hit is not None and hit.left:
            problems.append(f"left behind: {'; '.join(hit.left)}")


def _survivals(hit: runs.Ran, plan: Sequence[Fault]) -> list[Survival]:
    """Each planned fault, with the failover that it led to: they come in the same order, and each
    at another step."""
    failovers = [each for each in hit.failovers if each["role"] == "env"]
    died = {each["seq_last"]: each for each in hit.summary.get("deaths_in_order", [])}
    found = []
    for fault in plan:
        if hit.happened(fault) is None:
            found.append(Survival(fault.kind, fault.step, happened=False))
            continue
        failover = next((each for each in failovers if each["seq"] == fault.step), None)
        if failover is None:
            death = died.get(fault.step, {})
            cause = death.get("cause", "the kernel tells of no death there")
            found.append(Survival(fault.kind, fault.step, happened=True, cause=cause))
            continue
        found.append(
            Survival(
                fault.kind,
                fault.step,
                happened=True,
                survived=True,
                exact=failover["exact"],
                cause=failover["death"]["cause"],
                why=failover["why"] or "",
                ms=failover["ms"]["total"],
            )
        )
    return found


def _leak(growth: Growth) -> str:
    """What of it is too much; empty if nothing is."""
    found = []
    if growth.memory_kib > LEAK_KIB:
        found.append(f"{growth.memory_kib:,.0f} KiB of memory")
    for name in ("descriptors", "threads", "children"):
        if (gained := getattr(growth, name)) >= LEAK_EACH:
            found.append(f"{gained:g} {name}")
    return " and ".join(found)


def _trial(told: Mapping[str, Any] | None) -> Trial | None:
    return None if told is None else Trial(told["faithful"], told["why"])
