"""The lifecycles of a runner and of an agent, as two tables.

Rule 1: every lifecycle transition is in this file. Rule 2: this file knows no clock, no pid, no
socket and no asyncio; it says what to do, and runner.py and agent.py do it.

A *runner* is one incarnation of one role: one process. An *agent* is the set of its runners with
their rings. A runner's actions `hold`, `ready`, `fault` and `leave` become, once they are true of
all its runners (`fault`: of one), the agent's events CONSTRUCTED, READY, FAULT and GONE; an
agent's actions `wire`, `go`, `drain` and `fence` become events of its runners. A recorder is a
runner, too: it has nothing to be wired with.

How a row is read, table.py says.
"""

from __future__ import annotations

import enum

from dsec.failover.table import table

# FORKING: asked for, no process yet. BOOTING: a process that has not said Hello. CONSTRUCTING: env
# only, the user's constructor runs. HOLDING: waits for Wire. WIRING: attaches its rings; policy and
# reward construct. READY: waits for Go. TAKING: restores and replays what a lost one had. TAKEN:
# has, and publishes nothing. RUNNING: serves. CLOSING: said Done, must exit with 0. FAULTY: at
# fault; must exit, or is being killed. FENCED: killed for no fault of its own. GONE: reaped, or
# never was.
RunnerState = enum.Enum(
    "RunnerState",
    "FORKING BOOTING CONSTRUCTING HOLDING WIRING READY TAKING TAKEN RUNNING CLOSING FAULTY FENCED"
    " GONE",
)
# HELLO_ENV is the Hello of a role that constructs before it is wired. VIOLATION is a frame that
# may not come now, CRASHING the word of its signal handler, HANGUP the end of the control channel.
# EXIT_* is the wait status: code 0, SIGKILL, anything else.
RunnerEvent = enum.Enum(
    "RunnerEvent",
    "FORKED FORK_FAILED HELLO HELLO_ENV CONSTRUCTED READY DONE FAILED VIOLATION HANGUP OVERDUE"
    " CRASHING TAKEN_OVER RETIRED WIRE TAKEOVER RESUME GO DRAIN EXCUSE FENCE EXIT_OK EXIT_KILLED"
    " EXIT_BAD",
)
# WAITING: its images are not warm, or too many start already. STARTING: its runners are forked and
# construct. WIRING: its segments are handed out. RUNNING: steps. RECOVERING: so it does, but for a
# role that is being replaced, and those that wait for it. DRAINING: ends at the next boundary.
# STOPPING: asked to end, being killed. OUTLIVED: a runner failed in close, its work done, which is
# told; the others finish theirs. FENCING: a runner is dead, the others are being killed, the reward
# runner once it has answered what was published. SETTLING: no process is left, the recorder
# finishes its stream. ABANDONING: the same after a fault. DONE: ended as asked. QUARANTINED: ended
# by a fault.
AgentState = enum.Enum(
    "AgentState",
    "WAITING STARTING WIRING RUNNING RECOVERING DRAINING STOPPING OUTLIVED FENCING SETTLING"
    " ABANDONING DONE QUARANTINED",
)
# ADMIT: its images are warm and there is room to start. AWAY, BACK: a role is being replaced; none
# is any more. FAULT_LATE: a fault in close, when the runner had published its last. FENCE: end at
# once. FINISHED: the recorder has its last record, or there is no recorder (any more).
AgentEvent = enum.Enum(
    "AgentEvent", "ADMIT CONSTRUCTED READY AWAY BACK DRAIN FENCE FAULT FAULT_LATE GONE FINISHED"
)

# What all processes have in common while nothing is wrong with them. A dying one closes its
# channel first; one that lives on without it is cut off. `lost` is said as soon as it is known
# that it won't go on, `fault` when it has been reaped and the cause is complete.
_LIVING = """HELLO|HELLO_ENV|CONSTRUCTED|READY|TAKEN_OVER|RETIRED|DONE|VIOLATION > FAULTY kill lost,
    FAILED > FAULTY expect_exit lost, CRASHING > FAULTY expect_crash lost, HANGUP > = expect_exit,
    OVERDUE > FAULTY dump lost, FENCE > FENCED kill,
    EXIT_OK|EXIT_KILLED|EXIT_BAD > GONE lost fault leave,"""

_RUNNER = {
    "FORKING": "FORKED > BOOTING watch, FORK_FAILED > GONE lost fault leave, FENCE > FENCED",
    "BOOTING": _LIVING + "HELLO > HOLDING start hold, HELLO_ENV > CONSTRUCTING start",
    "CONSTRUCTING": _LIVING + "CONSTRUCTED > HOLDING hold",
    # EXCUSE: in a dry run, a peer is at fault; what else is wrong comes out before Drain is read.
    "HOLDING": _LIVING + "WIRE > WIRING wire, TAKEOVER > TAKING takeover, EXCUSE > RUNNING drain",
    "WIRING": _LIVING + "READY > READY ready",
    # A dry run ends here: Drain in place of Go closes what was constructed.
    "READY": _LIVING + "GO > RUNNING go, DRAIN > RUNNING drain",
    "TAKING": _LIVING + "TAKEN_OVER > TAKEN taken",
    "TAKEN": _LIVING + "RESUME > RUNNING resume",
    # RETIRED: it is well, and leaves for a successor: a loss like any other from here on.
    "RUNNING": _LIVING
    + "DRAIN > = drain, DONE > CLOSING expect_close, RETIRED > FAULTY expect_close lost",
    "CLOSING": _LIVING + "HANGUP > =, EXIT_OK > GONE leave",
    "FAULTY": "OVERDUE|FENCE > = kill, EXIT_OK|EXIT_KILLED|EXIT_BAD > GONE fault leave",
    # FORKED: it was fenced while the zygote was at it. EXIT_BAD: it had died before the SIGKILL.
    "FENCED": """FORKED > = watch kill, FORK_FAILED|EXIT_OK|EXIT_KILLED > GONE leave,
        EXIT_BAD > GONE fault leave""",
    "GONE": "",
}

# Before an agent runs nothing is published, so there is no boundary to drain to.
_STARTING = "DRAIN|FENCE > STOPPING fence, FAULT|FAULT_LATE > FENCING fence,"
_RUNNING = """FENCE > STOPPING fence, FAULT > FENCING cut, FAULT_LATE > OUTLIVED await,
    GONE > SETTLING settle,"""

_AGENT = {
    "WAITING": """ADMIT > STARTING fork, DRAIN|FENCE > DONE close,
        FAULT|FAULT_LATE > QUARANTINED close""",
    "STARTING": _STARTING + "CONSTRUCTED > WIRING wire",
    "WIRING": _STARTING + "READY > RUNNING go",
    "RUNNING": _RUNNING + "DRAIN > DRAINING drain, AWAY > RECOVERING",
    "RECOVERING": _RUNNING + "DRAIN > DRAINING drain, BACK > RUNNING",
    "DRAINING": _RUNNING,
    "OUTLIVED": "FENCE|FAULT > FENCING fence, GONE > SETTLING settle",
    "STOPPING": "FENCE > = fence, GONE > SETTLING abandon",
    "FENCING": "FENCE > = fence, GONE > ABANDONING abandon",
    # FENCE: the recorder won't answer. FAULT: it can't read what they left.
    "SETTLING": "FINISHED|FENCE > DONE close, FAULT > ABANDONING abandon",
    "ABANDONING": "FINISHED|FENCE > QUARANTINED close",
    "DONE": "",
    "QUARANTINED": "",
}


RUNNER = table(_RUNNER, RunnerState, RunnerEvent)
AGENT = table(_AGENT, AgentState, AgentEvent)
