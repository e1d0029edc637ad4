"""The pool of Agent State Atoms: what fits, what churn leaves, and reads against lmdb and pickle.

Owns the measuring. The arena is measured in C (asa_churn.c, compiled here); reads are measured from
Python, as their users make them, in CPU time, because they wait for nobody. lmdb is a peer where it
is installed: it holds the same bytes, on the same tmpfs, without syncing. It proves no checksum;
the pool proves every read.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import random
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.asa_atoms import agent_state, atom_of
from bench.measure import ROOT, Result, interleave
from dsec.sml import codec
from dsec.sml.pool import Label
from dsec.sml.pool_shm import METADATA_BYTES, ShmPool, ShmReader

SHM = Path("/dev/shm")
LIVE = 100_000
GIB = 1 << 30
SIZES = {
    "CartPole's kind, 7.5 to 9 KB": (7500, 9000),
    "2 to 3 KB": (2000, 3000),
    "0.5 to 20 KB": (500, 20_000),
}


def run(quick: bool) -> list[Result]:
    """Everything that is measured of the pool."""
    kinds = [agent_state(number) for number in range(64)]
    results = sizes(kinds)
    with tempfile.TemporaryDirectory(prefix="bench-asa-") as folder:
        churn = compiled(Path(folder))
        results += arena(churn, quick)
    results += live(kinds, quick)
    return results + reads(kinds, quick)


def sizes(kinds: list[dict[str, Any]]) -> list[Result]:
    """Bytes of one atom."""
    samples = {
        "pickle of the same state": [float(len(pickle.dumps(each, -1))) for each in kinds],
        "atom, three touched Mersenne Twisters": [
            float(len(codec.encode(atom_of(each)))) for each in kinds
        ],
        "atom, PCG64 touched and the Twisters not": [
            float(len(codec.encode(atom_of(each, touched=False)))) for each in kinds
        ],
    }
    note = f"Wanted: at most 20,000 and 4,000 bytes. In the pool {METADATA_BYTES} bytes more each."
    baseline = "pickle of the same state"
    return [Result("size of an atom", "bytes", samples, baseline, better="lower", note=note)]


def compiled(folder: Path) -> Path:
    """asa_churn.c with the pool's own sources, optimised as the package is."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    sources = [ROOT / "sml" / name for name in ("xxh3.c", "arena.c", "view.c", "pool.c")]
    program = folder / "asa_churn"
    flags = ["-std=c11", "-O3", "-fno-omit-frame-pointer", f"-I{ROOT / 'sml'}"]
    argv = [compiler, *flags, "-o", program, ROOT / "bench" / "asa_churn.c", *sources]
    subprocess.run(argv, check=True)
    return program


def arena(program: Path, quick: bool) -> list[Result]:
    """The arena at the edge of being full: utilisation and the cost of a call, in C."""
    size = GIB // 8
    use: dict[str, list[float]] = {}
    middle: dict[str, list[float]] = {}
    slow: dict[str, list[float]] = {}
    many = {"pool": 300_000 if quick else 1_000_000, "arena": 1_000_000 if quick else 10_000_000}
    for name, (low, high) in SIZES.items():
        for what, operations in many.items():
            argv = [program, what, size, 2 * size // (low + high), operations, low, high]
            done = subprocess.run([str(each) for each in argv], capture_output=True, check=True)
            found = json.loads(done.stdout)
            use[f"{name}, {what}"] = [100 * found["utilisation"], 100 * found["utilisation_min"]]
            for call in ("allocate", "give") if what == "arena" else ("put", "free"):
                p50, p99 = found[f"{call}_ns"]
                middle.setdefault(call, []).append(float(p50))
                slow.setdefault(call, []).append(float(p99))
    note = (
        f"Bodies as a share of a data area of {size >> 20} MiB, each operation a put at the edge "
        "of being full or the free of a random atom; mean and least of the second half. `pool`: "
        f"whole puts and frees, {many['pool']:,}; `arena`: only the places, {many['arena']:,}. "
        "Wanted: at least 90 %."
    )
    calls = (
        "`allocate` and `give` are the arena alone, wanted: at most 1,000; `put` and `free` are "
        "whole operations on an atom, checksum and copy included. A sample for each kind of sizes."
    )
    return [
        Result("utilisation under churn", "%", use, next(iter(use)), note=note),
        Result("p50 of a call in C", "ns", middle, "put", better="lower", note=calls),
        Result("p99 of a call in C", "ns", slow, "put", better="lower"),
    ]


@contextlib.contextmanager
def a_pool(size: int, atoms: int) -> Iterator[ShmPool]:
    """A pool that is gone when the block ends."""
    pool = ShmPool.create(f"bench-{os.getpid()}", size, atoms_max=atoms)
    try:
        yield pool
    finally:
        pool.close()
        with ShmPool.adopt(pool.name, verify=False) as last:
            last.unlink()


def live(kinds: list[dict[str, Any]], quick: bool) -> list[Result]:
    """100,000 live atoms: what they take, and how long a successor needs to know them all."""
    bodies = [codec.encode(atom_of(each)) for each in kinds]
    memory: dict[str, list[float]] = {}
    opening: dict[str, list[float]] = {}
    with a_pool(2 * GIB if not quick else GIB, LIVE) as pool:
        for number in range(LIVE):
            pool.put(Label(number, number % 8, seq=number), bodies[number % len(bodies)])
        usage = pool.usage()
        pool.close()
        for verify in (False, True):
            name = "checksums proven" if verify else "headers only"
            opening[name] = []
            for _ in range(2 if quick else 5):
                start = time.process_time()
                heir = ShmPool.adopt(pool.name, verify=verify)
                opening[name].append((time.process_time() - start) * 1000)
                atoms = heir.usage().atoms
                heir.close()
        if atoms != LIVE:
            raise RuntimeError(f"{atoms} atoms were found of {LIVE}")
    index = usage.segment_bytes - usage.data_bytes
    memory["atoms of CartPole's kind"] = [(usage.room_bytes + index) / GIB]
    memory["bodies alone"] = [usage.payload_bytes / GIB]
    if not quick:
        with a_pool(2 * GIB, LIVE) as pool:
            body = random.Random(1).randbytes(20_000)
            for number in range(LIVE):
                pool.put(Label(number), body)
            memory["atoms of 20,000 bytes"] = [(pool.usage().room_bytes + index) / GIB]
    wanted = f"Live atoms: {LIVE:,}, in at most 2 GiB with their index."
    opened = f"{LIVE:,} atoms, {usage.payload_bytes >> 20} MiB. Wanted: at most 1,000 ms."
    return [
        Result("memory", "GiB", memory, "bodies alone", better="lower", note=wanted),
        Result("index rebuilt", "ms of CPU", opening, "headers only", better="lower", note=opened),
    ]


def reads(kinds: list[dict[str, Any]], quick: bool) -> list[Result]:
    """Raw bytes, and a state that can be used, read at random from Python."""
    atoms, rounds, count = (2000, 3, 2000) if quick else (10_000, 9, 10_000)
    bodies = [codec.encode(atom_of(each)) for each in kinds]
    pickles = [pickle.dumps(each, -1) for each in kinds]
    pickled_atoms = [pickle.dumps(atom_of(each), -1) for each in kinds]
    order = random.Random(5).choices(range(atoms), k=count)

    def each(call: Callable[[int], object]) -> Callable[[], float]:
        def measure() -> float:
            start = time.process_time()
            for number in order:
                call(number)
            return (time.process_time() - start) / count * 1e6

        return measure

    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(a_pool(atoms * 12_000, atoms))
        for number in range(atoms):
            pool.put(Label(number), bodies[number % len(bodies)])
        reader = stack.enter_context(ShmReader(pool.name))
        raw: dict[str, Callable[[], float]] = {"pool": each(reader.get)}
        decoded = {"pool + codec": each(lambda number: codec.decode(reader.get(number)))}
        for name, held in (("lmdb, a transaction each", False), ("lmdb, one for all", True)):
            fetch = lmdb_of(stack, bodies, atoms, held)
            if fetch is not None:
                raw[name] = each(fetch)
        for name, stored in (("lmdb + pickle", pickles), ("lmdb + pickled atom", pickled_atoms)):
            fetch = lmdb_of(stack, stored, atoms, False)
            if fetch is not None:
                decoded[name] = each(unpickling(fetch))
        decoded["dict + pickle"] = each(unpickling(lambda n: pickles[n % len(pickles)]))
        gc.freeze()  # as runners do: nobody is measured by what this benchmark keeps
        samples = interleave(raw, rounds), interleave(decoded, rounds)
        gc.unfreeze()
    return [
        Result(
            "raw get",
            "µs of CPU",
            samples[0],
            "lmdb, a transaction each" if len(raw) > 1 else "pool",
            better="lower",
            target={"pool": 0.5},
            note=f"{len(bodies[0]):,} bytes. A pool's reader sees the latest at every call; so "
            "does lmdb with a transaction for each; one held for all sees what was there when it "
            "began. Wanted: at most twice lmdb's. The pool proves a checksum; lmdb has none.",
        ),
        Result(
            "decoded state",
            "µs of CPU",
            samples[1],
            "lmdb + pickle" if len(decoded) > 2 else "dict + pickle",
            better="lower",
            target={"pool + codec": 2},
            note="Bytes to values. `lmdb + pickle`: the state as Python hands it out, in one dict, "
            "a transaction each; `pickled atom`: the pool's own value types, pickled.",
        ),
    ]


def unpickling(fetch: Callable[[int], bytes]) -> Callable[[int], object]:
    """What was pickled here, from where it was stored."""
    return lambda number: pickle.loads(fetch(number))


def lmdb_of(
    stack: contextlib.ExitStack, bodies: list[bytes], atoms: int, held: bool
) -> Callable[[int], bytes] | None:
    """A read of an lmdb that holds these bodies; None where lmdb isn't installed."""
    try:
        import lmdb
    except ImportError:
        return None
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-asa-", dir=SHM))
    env = lmdb.open(folder, map_size=atoms * 24_000 + (1 << 20), sync=False)
    stack.callback(env.close)
    keys = [number.to_bytes(8, "big") for number in range(atoms)]
    with env.begin(write=True) as transaction:
        for number, key in enumerate(keys):
            transaction.put(key, bodies[number % len(bodies)])
    if held:
        one = stack.enter_context(env.begin())
        return lambda number: one.get(keys[number])

    def fresh(number: int) -> bytes:
        with env.begin() as transaction:
            return transaction.get(keys[number])

    return fresh
