"""What the hash chain costs the recorder, beside what it does with a transition anyway.

Owns the records, which are like those of real agents, and lie in memory one after the other as they
do in a ring. Times are of this thread's processor, so other work on the machine counts little.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from gymnasium import Space, spaces

from bench.measure import Result, interleave
from dsec.ipc.layout import EnvRecord, Layout, record_bytes
from dsec.ipc.ring import KIND_ACTION, KIND_OBS, KIND_REWARD
from dsec.runners.chained import shape_of
from dsec.runners.journal import JournalWriter, Kind, Run
from dsec.sml.chain import Chain

ROUNDS, ROUNDS_QUICK = 20, 3
BATCH_BYTES = 2 << 20
END_CHANCE = 1 / 22  # as often as CartPole's episodes end under a random policy
_HEAD = struct.Struct("<QQIIHHI")
_MARK = 0x4452

Stretches = tuple[bytes, bytes, bytes]


def run(quick: bool) -> list[Result]:
    """One table for each kind of agent, in microseconds a transition; smaller is better."""
    frame = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    screen = spaces.Box(0, 255, (210, 160, 3), np.uint8)
    pole = spaces.Box(-5, 5, (4,), np.float32)
    camera = spaces.Dict({"pixels": frame, "speed": pole})
    kinds: list[tuple[str, Space[Any], int]] = [
        ("CartPole", pole, 1),
        ("CartPole, 16 environments", pole, 16),
        ("Atari, 84 x 84 x 4", frame, 1),
        ("Atari, 210 x 160 x 3", screen, 1),
        ("a Dict of frame and numbers", camera, 1),
    ]
    rounds = ROUNDS_QUICK if quick else ROUNDS
    return [_measure(name, space, n, rounds) for name, space, n in kinds]


def _measure(name: str, space: Space[Any], n: int, rounds: int) -> Result:
    env, actions = EnvRecord(space, n), Layout(spaces.Discrete(2), n)
    each = record_bytes(env.fixed_bytes) + record_bytes(actions.nbytes) + record_bytes(8 * n)
    count = max(8, BATCH_BYTES // each)
    parts = _records(env, space, actions.nbytes, count)
    payload = b"".join(parts)
    size = env.fixed_bytes + actions.nbytes + 8 * n
    pieces = [payload[i * size : (i + 1) * size] for i in range(count)]
    shape = shape_of(env, actions)
    with tempfile.TemporaryDirectory() as folder:
        journal = JournalWriter(Path(folder) / "journal", Run("bench", 0))
        candidates = {
            "write to the journal": _timed(lambda: _write(journal, parts), count),
            "hash chain": _timed(lambda: Chain(shape).take(*parts, count), count),
            "xxhash of as many bytes, in a loop": _timed(
                lambda: _all(xxhash.xxh3_128_digest(piece) for piece in pieces), count
            ),
            "blake2b of as many bytes, in a loop": _timed(
                lambda: _all(hashlib.blake2b(piece).digest() for piece in pieces), count
            ),
        }
        samples = interleave(candidates, rounds)
        journal.close()
    note = (
        f"Batches of {count:,} transitions, {size:,} bytes each without headers; one in 22 ends an"
        " episode. Ratios are against the writing that the recorder does anyway."
    )
    baseline = "write to the journal"
    return Result(f"chain, {name}", "µs CPU", samples, baseline, better="lower", note=note)


def _timed(call: Callable[[], object], count: int) -> Callable[[], float]:
    def trial() -> float:
        started = time.thread_time()
        call()
        return (time.thread_time() - started) * 1e6 / count

    return trial


def _write(journal: JournalWriter, parts: Stretches) -> None:
    journal.append(Kind.REMAINDER, *parts)
    journal.end = 64  # over and over the same place: the disk is not what is measured


def _all(hashes: Iterable[bytes]) -> None:
    for _ in hashes:
        pass


def _records(env: EnvRecord, space: Space[Any], action_bytes: int, count: int) -> Stretches:
    """Raw records of `count` transitions, and the first observation."""
    noise = np.random.default_rng(1)
    space.seed(1)
    nothing: list[dict[str, Any]] = [{} for _ in range(env.n)]
    obs, policy, reward = bytearray(), bytearray(), bytearray()
    for seq in range(count + 1):
        body = bytearray(env.fixed_bytes)
        views = env.views(body)
        for i in range(env.n):
            env.layout.write(views.obs, i, space.sample())
        views.reward[:] = noise.normal(size=env.n)
        finals = {}
        if seq:
            views.flags[:] = noise.random(env.n) < END_CHANCE
            finals = {int(i): space.sample() for i in np.flatnonzero(views.flags)}
        _put(obs, seq, KIND_OBS, bytes(body) + env.encode_extras(finals, nothing))
        if seq < count:
            _put(policy, seq, KIND_ACTION, noise.bytes(action_bytes))
            _put(reward, seq, KIND_REWARD, noise.normal(size=env.n).tobytes())
    return bytes(obs), bytes(policy), bytes(reward)


def _put(stretch: bytearray, seq: int, kind: int, payload: bytes) -> None:
    head = _HEAD.pack(len(stretch), seq, len(payload), 0, kind, 0, _MARK)
    stretch += head + payload
    stretch += bytes(record_bytes(len(payload)) - len(head) - len(payload))
