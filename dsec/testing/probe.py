"""One environment alone in a fresh process: what it does on given actions, what it opens, what it
loses, and which codecs hold it. `python -m dsec.testing.probe FD` reads a job from stdin.

Owns what is done with the environment, in the way that an env runner would do it: the same
construction, seeds and hash seed. Each part is told as soon as it is known, as a line of JSON, so
that one that crashes or hangs here has said where. What it all means is check.py's.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import msgspec
import xxhash

from dsec.failover.codecs import codec_named, episodes_repeat, examine, scratch, selfcheck
from dsec.failover.codecs.futures import difference, exactly, go_on
from dsec.runners import isolate, seeds, shared
from dsec.runners.construct import make_env
from dsec.runners.failure import describe
from dsec.testing.job import Job

FORKED_STEPS = 50
FORK_S = 10.0
CODEC_S = 6.0
EPISODE_S = 6.0


class Probe:
    """The environment and where its story is told."""

    def __init__(self, job: Job, out: TextIO) -> None:
        self._job, self._out = job, out
        self._name = f"{job.seed:032x}"
        self._own_fds = set(isolate.open_descriptors())
        self._own_threads = _tasks()

    def run(self) -> None:
        """Everything that the job asks for."""
        self._tell("construct")
        began = time.perf_counter()
        seeds.reseed_globals(self._name, "env")
        env: Any = make_env(self._job.env)
        took_s = time.perf_counter() - began
        done = seeds.reseed_globals(self._name, "env")
        self._tell(
            "constructed",
            ms=round(took_s * 1000, 3),
            observation_space=str(env.observation_space),
            action_space=str(env.action_space),
            holds=self._holds(),
        )
        del done
        (seed,) = seeds.environment_seeds(self._name, 1)
        env.action_space.seed(seed)
        env.observation_space.seed(seed)
        self._course(env, seed)
        if "leaks" in self._job.parts:
            self._leaks(env)
        if "codecs" in self._job.parts:
            self._codecs(env, seed)
        self._tell("close")
        env.close()
        self._tell("closed", holds=self._holds())

    def _tell(self, what: str, **fields: Any) -> None:
        self._out.write(json.dumps({"what": what, **fields}) + "\n")
        self._out.flush()

    # ------------------------------------------------------------ the course

    def _course(self, env: Any, seed: int) -> None:
        """Reset and step; tell a digest of each part of each record."""
        self._tell("course")
        digests = [_digests([env.reset(seed=seed)[0]])]
        took: list[float] = []
        episodes = 0
        until = time.monotonic() + self._job.seconds
        while len(took) < self._job.steps and (not took or time.monotonic() < until):
            action = env.action_space.sample()
            began = time.perf_counter()
            obs, reward, terminated, truncated, _ = env.step(action)
            took.append(time.perf_counter() - began)
            record = _digests([obs, reward, bool(terminated), bool(truncated)])
            if terminated or truncated:
                episodes += 1
                record += _digests([env.reset()[0]])
            digests.append(record)
        self._tell(
            "coursed",
            steps=len(took),
            episodes=episodes,
            step_us=round(median(took) * 1e6, 1),
            step_us_max=round(max(took) * 1e6, 1),
            digests=digests,
            holds=self._holds(),
        )

    # ------------------------------------------------------------ what it holds and loses

    def _holds(self) -> dict[str, list[str]]:
        """Threads, children, files and sockets that are the environment's."""
        names = sorted(each.name for each in threading.enumerate())
        names.remove(threading.current_thread().name)
        names += ["of a library"] * max(0, _tasks() - self._own_threads - len(names))
        files: list[str] = []
        sockets: list[str] = []
        for fd in isolate.open_descriptors():
            if fd in self._own_fds:
                continue
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
            except OSError:
                continue
            (sockets if target.startswith(("socket:", "pipe:")) else files).append(target)
        children = [str(pid) for pid in shared.children()]
        return {"threads": names, "children": children, "files": files, "sockets": sockets}

    def _measure(self) -> dict[str, float]:
        gc.collect()
        held = self._holds()
        return {
            "memory_kib": _anonymous_kib(),
            "descriptors": len(held["files"]) + len(held["sockets"]),
            "threads": len(held["threads"]),
            "children": len(held["children"]),
        }

    def _leaks(self, env: Any) -> None:
        """Growth over steps and over resets: of two batches the smaller one, for caches fill."""

        def step() -> None:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()

        for what, call, batch in (("steps", step, 1000), ("resets", env.reset, 100)):
            self._tell("leaks", of=what)
            seconds, call_any = self._job.seconds / 2, functools.partial(_call, call)
            done = _repeat(call_any, batch, seconds / 2)  # what it fills once, it fills now
            marks = [self._measure()]
            for _ in range(2):
                done = _repeat(call_any, batch, seconds)
                marks.append(self._measure())
            growths = [
                {key: (after[key] - before[key]) * batch / done for key in after}
                for before, after in itertools.pairwise(marks)
            ]
            least = {key: round(min(each[key] for each in growths), 2) for key in growths[0]}
            self._tell("leaked", of=what, batch=batch, measured=done, growth=least)

    # ------------------------------------------------------------ whose state can be kept

    def _codecs(self, env: Any, seed: int) -> None:
        make = functools.partial(make_env, self._job.env)
        self._tell("codecs")
        found = examine(env, seed=seed, make=make, limit_s=CODEC_S)
        told: list[dict[str, Any]] = []
        if found.codec is not None:
            told.append(
                {
                    "name": found.codec.name,
                    "faithful": True,
                    "why": "",
                    "capture_us": round(found.capture_us, 1),
                    "restore_us": round(found.restore_us, 1),
                    "bytes": found.state_bytes,
                }
            )
        for note in found.notes:
            name, colon, why = note.removeprefix("codec ").partition(": ")
            if colon and note.startswith("codec "):
                told.append({"name": name, "faithful": False, "why": why})
        if all(each["name"] != "pickle" for each in told):
            bind = functools.partial(codec_named, "pickle")
            verdict = selfcheck.check(env, bind, seed=seed, make=make, limit_s=CODEC_S)
            told.append(
                {
                    "name": "pickle",
                    "faithful": not verdict.difference,
                    "why": verdict.difference,
                    "capture_us": round(verdict.capture_us, 1),
                    "restore_us": round(verdict.restore_us, 1),
                    "bytes": verdict.state_bytes,
                }
            )
        self._tell("codec", tried=told)
        self._tell("replay")
        again = episodes_repeat(env, seed=seed, make=make, limit_s=EPISODE_S)
        self._tell("replayed", faithful=not again.difference, why=again.difference)
        self._tell("fork")
        why, fork_us = self._fork(env)
        self._tell("forked", faithful=not why, why=why, fork_us=round(fork_us, 1))

    def _fork(self, env: Any) -> tuple[str, float]:
        """Whether a forked copy goes on as this process does; and what the fork takes."""
        in_the_way = "; ".join(shared.obstacles(self._own_fds, ()))
        actions = [env.action_space.sample() for _ in range(FORKED_STEPS)]

        def copied() -> bytes:
            return msgspec.msgpack.encode(go_on(env, actions, FORKED_STEPS // 2))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = scratch.run(copied, FORK_S)
            mine = msgspec.msgpack.encode(go_on(env, actions, FORKED_STEPS // 2))
        if outcome.result is None:
            return in_the_way or f"the copy {outcome.why}", outcome.fork_us
        seen = msgspec.msgpack.decode(outcome.result)
        found = difference(msgspec.msgpack.decode(mine), seen)
        return in_the_way or (found and f"the copy goes on differently: {found}"), outcome.fork_us


def _call(call: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()


def _repeat(call: Callable[[], Any], times: int, seconds: float) -> int:
    """How often it was done: that often, or as long as there was time for it, once at least."""
    until = time.monotonic() + seconds
    done = 0
    while not done or (done < times and time.monotonic() < until):
        call()
        done += 1
    return done


def _digests(values: list[Any]) -> list[str]:
    return [xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(exactly(value))) for value in values]


def _tasks() -> int:
    """Threads of this process, whoever made them."""
    return len(list(Path("/proc/self/task").iterdir()))


def _anonymous_kib() -> int:
    """Memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


def main() -> int:
    """Do the job on stdin, and tell through the descriptor that the first argument names."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    isolate.die_with_parent(job.ppid)
    os.set_inheritable(fd := int(sys.argv[1]), False)
    with os.fdopen(fd, "w") as out:
        try:
            Probe(job, out).run()
        except Exception as error:
            said = describe(error)
            out.write(json.dumps({"what": "raised", **msgspec.to_builtins(said)}) + "\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
