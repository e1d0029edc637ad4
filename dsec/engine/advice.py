"""What a person can do about a death, or about a machine that can't: one sentence each.

Kept apart from the kernel, which finds causes and knows no configuration, and from the command
line, which shows them: a program that embeds dsec shows the same words.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

from dsec.errors import lacks_memory
from dsec.failover.diagnose import PEERS_FAULTS
from dsec.ipc import memory
from dsec.ipc.frames import Phase, Role
from dsec.report import EXIT_PERMANENT, Death

_DEADLINE_KEYS = {
    Phase.IMPORT: "construct_s",
    Phase.CONSTRUCT: "construct_s",
    Phase.RESET: "reset_s",
    Phase.STEP: "step_s",
    Phase.ACT: "act_s",
    Phase.LEARN: "learn_s",
    Phase.REWARD: "reward_s",
    Phase.CLOSE: "close_s",
    Phase.REPLAY: "construct_s",  # of which, with reset_s, a takeover has the sum
}
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
_WHOSE = {
    Role.ENV: "the environment",
    Role.POLICY: "the policy",
    Role.REWARD: "the reward",
    Role.RECORDER: "the recorder",
}


def advice(death: Death) -> str:
    """What to do about `death`, in one sentence; empty where there is nothing to add."""
    whose = _WHOSE.get(death.role, "the runner")
    if death.kind == "hang":
        key = _DEADLINE_KEYS.get(death.phase)
        raise_it = f"; if it may take that long, raise deadlines.{key}" if key else ""
        return f"Its whole Python stack is in the stderr log{raise_it}"
    if _out_of_memory(death):
        limit_mb = death.memory_limit_bytes // 2**20
        return f"It reached its limit of {limit_mb} MiB; raise limits.memory_mb, or use less"
    if death.short_of_memory:
        return memory.remedy()
    if death.kind == "signal":
        if death.signal in _CRASHES:
            return f"Native code under {whose} crashed; the log of its stderr may name the place"
        if death.signal == signal.SIGKILL:
            return (
                "Somebody else killed it; if nobody did, the machine ran out of memory "
                "(`dmesg | grep -i oom` says so): run fewer agents or give them less"
            )
        return f"Something sent {death.signal_name} to it; the kernel did not"
    if death.kind == "exit":
        if death.exit_code == EXIT_PERMANENT:
            return f"Code 125 is how {whose} asks not to be started again"
        return f"Something under {whose} called sys.exit() or os._exit()"
    if death.kind == "exception" and _peers_fault(death):
        return (
            f"Not {whose} is to blame: whoever writes that ring wrote what it may not. Native code "
            "that overwrites memory does this"
        )
    if death.error is not None and death.error.type == "dsec.errors.FrameError":
        return (
            "The runner and its supervisor seem to be of two versions of dsec-kernel; is there "
            "another copy in the working directory or on PYTHONPATH?"
        )
    if death.kind == "exception" and death.error is not None and not death.error.traceback:
        return "Mend what the first line says; where it was found is in the stderr log"
    if death.kind == "exception":
        return f"Mend the code of {whose}; the traceback is above and in the stderr log"
    if death.kind == "import":
        return "Import the module by hand, in the same Python, to see the same error"
    if death.kind == "protocol":
        return (
            f"Something under {whose} wrote into descriptors or memory that are not its own; "
            "if it is all Python, please report this"
        )
    return ""


def remedy(failure: str, deaths: Iterable[Death]) -> str:
    """What to do about the `failure` of a whole run for which the machine is to blame, given in
    the words of whoever met it, with the deaths that led there; empty where they say it."""
    if lacks_memory(failure) or any(death.short_of_memory for death in deaths):
        return memory.remedy()
    return ""


def _peers_fault(death: Death) -> bool:
    """Our own exceptions about what another process wrote; user code has no part in them."""
    return death.error is not None and death.error.type in PEERS_FAULTS


def _out_of_memory(death: Death) -> bool:
    if not death.memory_limit_bytes:
        return False
    if death.error is not None and death.error.type.rpartition(".")[2] == "MemoryError":
        return True
    return death.kind == "signal" and death.rss_peak_bytes >= 0.95 * death.memory_limit_bytes
