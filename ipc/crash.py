"""The last gasp: arm the C handlers that write down how this process dies (crash.c).

Runners call `arm` early, after `faulthandler.enable()` (which is called next when a signal comes,
and prints the Python stack), and `attach` once they have an outbox. The kernel reads the record
with `segment.read_crash`.
"""

from __future__ import annotations

import errno
import os

from dsec.errors import LocalError, MachineError
from dsec.ipc._ring import lib
from dsec.ipc.ring import Outbox

_attached: Outbox | None = None  # C keeps the address of its handle


def arm(control_fd: int = -1) -> None:
    """Install handlers for SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS on their own stack.

    On such a signal the process writes its crash record, one line and the native stack to stderr,
    and hands the signal to the handler installed before; the exit status stays the signal. A
    second call only changes `control_fd`. A forked child announces nothing until it calls this.

    Args:
        control_fd: the control channel, which gets a Crashing frame before the stack is unwound.

    Raises:
        MachineError: no memory for the signal stack.
    """
    code = lib.dsec_crash_arm(control_fd)
    if code:
        raise MachineError(f"can't install the crash handlers: {os.strerror(code)}", "")


def attach(outbox: Outbox) -> None:
    """Make this outbox the one of this process: crash records go into its header page, until it is
    closed, and processes that are forked from here can't write it.

    Raises:
        MachineError: the system refuses.
        LocalError: it is closed.
    """
    global _attached
    code = lib.dsec_crash_attach(outbox.c)
    if code == errno.EINVAL:
        raise LocalError("the outbox to attach was closed")
    if code:
        raise MachineError(f"can't attach an outbox: {os.strerror(code)}", "")
    _attached = outbox


def enter(_phase: int, seq: int) -> None:
    """As `Outbox.enter`, for who has no outbox yet: the Crashing frame says that it was at record
    `seq`."""
    lib.dsec_crash_at(seq)


def _forget_in_child() -> None:
    global _attached
    outbox, _attached = _attached, None
    if outbox is not None:
        outbox.abandon()


os.register_at_fork(after_in_child=_forget_in_child)
