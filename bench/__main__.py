"""`python -m bench NAME [--quick] [--json]`: runs benchmarks and prints what they found.

Owns the names. Each benchmark is a module of this folder with `run(quick: bool) -> list[Result]`;
it is imported only when it is asked for, so that a missing peer spoils nobody else.
"""

from __future__ import annotations

import argparse
import importlib
import sys

from bench import measure

NAMES = {
    "ring": "one ring between two processes against Pipe, Queue, faster-fifo and iceoryx2",
    "api": "SB3 rollouts, a sandbox's step, make_vec by default, episodes/s beside a plain loop",
    "vector": "isolated environments in lockstep beside AsyncVectorEnv, SB3, TorchRL, EnvPool, Ray",
    "run": "whole agents against the plain loop of Gymnasium and torch in one process",
    "spawn": "a thousand agents: time to start, memory, idle cost, time to end",
    "import": "what a user waits for: import, --help, validate, the first step",
    "plots": "steps/s against agents and payload, as pictures in docs/ (not part of all)",
    "asa": "the pool of Agent State Atoms: size, churn, and reads against lmdb and pickle",
    "pool": "atoms of another host over TCP, and of shm, beside memcpy and a plain socket, in GB/s",
    "chain": "the hash chain in the recorder beside what a transition costs it anyway",
    "failover": "SIGSEGV to the next observation against a fresh process; what protection costs",
    "exact": "runs whose runners are killed at random instants, compared with runs in peace",
    "turns": "what a call costs when processes take turns on a core: why bench run is as it is",
    "buffer": "TrajectoryBuffer beside lists of tensors and sb3-extra-buffers",
    "codecs": "capturing and restoring environments against pickle, deepcopy and fork",
}

MODULES = {"import": "importing"}  # a module can't have the name of a keyword


def main() -> int:
    """Parse the command line, run what it names, print the results."""
    epilog = "\n".join(f"  {name:8} {text}" for name, text in NAMES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        epilog="benchmarks:\n" + epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=[*NAMES, "all"], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="few short rounds: only a smoke test")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args()
    names = [name for name in NAMES if name != "plots"] if "all" in options.names else options.names
    results = []
    for name in names:
        print(f"bench {name} …", file=sys.stderr, flush=True)
        results += importlib.import_module(f"bench.{MODULES.get(name, name)}").run(options.quick)
    print(measure.report(results, as_json=options.json))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
