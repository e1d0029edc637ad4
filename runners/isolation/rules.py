"""Which system calls a profile denies, and how: a table. Pure.

`TRAP` is for what no environment does by accident: the runner dies of SIGSYS, and its death names
the call. What libraries try and can do without fails with the errno that they expect. Rule: a call
that does work for a runner of ours (rings, clones, pidfds, fork) is not here.
"""

from __future__ import annotations

import errno
from typing import Final

from dsec.runners.isolation.bpf import TRAP, Rule, refuse

_NO = refuse(errno.EPERM)
_NONE = refuse(errno.ENOSYS)
_NO_NETWORK = refuse(errno.EACCES)

# Flags of clone(2): new mount, control group, UTS, IPC, user, PID and network namespaces.
_NAMESPACES: Final = (
    0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # type into a terminal
_INTERNET: Final = (2, 10, 16)  # AF_INET, AF_INET6, and AF_NETLINK, which name look-ups ask
_CONNECTED: Final = (1, 5)  # SOCK_STREAM, SOCK_SEQPACKET: no such pair can be sent elsewhere

_HOSTILE: Final = (
    # Other processes' memory and descriptors.
    "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "process_madvise",
    "process_mrelease", "migrate_pages", "move_pages",
    # The system's own parts.
    "bpf", "keyctl", "add_key", "request_key", "init_module", "finit_module", "delete_module",
    "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl",
    "quotactl_fd", "iopl", "ioperm", "fanotify_init", "open_by_handle_at",
    "clock_settime", "settimeofday", "sethostname", "setdomainname",
    # What is where in the file system.
    "mount", "umount2", "pivot_root", "move_mount", "open_tree", "open_tree_attr", "fsopen",
    "fsconfig", "fsmount", "fspick", "mount_setattr", "chroot", "setns",
)  # fmt: skip
_TRIED: Final = (
    "unshare", "kcmp", "perf_event_open", "userfaultfd", "syslog", "adjtimex", "clock_adjtime",
    "name_to_handle_at",
    # A memory file is opened anew by its mode: segments that are handed out for reading stay so.
    "chmod", "fchmod", "fchmodat", "fchmodat2",
)  # fmt: skip
# Calls that are about the caller where this argument is 0, else about anybody of the same user.
_ABOUT_OTHERS: Final = (
    ("prlimit64", 0), ("setpriority", 1), ("sched_setaffinity", 0), ("sched_setattr", 0),
    ("sched_setscheduler", 0), ("sched_setparam", 0), ("ioprio_set", 1),
)  # fmt: skip


def of_network() -> list[Rule]:
    """No way out over sockets: pairs of connected ones stay."""
    calls = ("socket", "connect", "bind", "listen", "accept", "accept4")
    return [Rule(call, _NO_NETWORK) for call in calls] + [_pairs(), *_beside()]


def of_strict(*, network: bool) -> list[Rule]:
    """The profile `strict`. With `network`, of the internet: never a socket of this machine's, on
    which other programs listen."""
    rules = [Rule(call, TRAP) for call in _HOSTILE] + [Rule(call, _NO) for call in _TRIED]
    rules += [Rule(call, _NO, argument, values=(0,), only=True) for call, argument in _ABOUT_OTHERS]
    rules.append(Rule("clone", _NO, 0, mask=_NAMESPACES, any_bit=True))
    rules.append(Rule("clone3", _NONE))  # its flags lie where no filter can read; clone is next
    rules.append(Rule("ioctl", _NO, 1, values=(_TIOCSTI, _TIOCLINUX)))
    if network:
        sockets = Rule("socket", _NO_NETWORK, 0, values=_INTERNET, only=True)
        return [*rules, sockets, _pairs(), *_beside()]
    return rules + of_network()


def _pairs() -> Rule:
    return Rule("socketpair", _NO_NETWORK, 1, mask=0xF, values=_CONNECTED, only=True)


def _beside() -> list[Rule]:
    """The other way to all of this, which no filter sees into."""
    calls = ("io_uring_setup", "io_uring_enter", "io_uring_register")
    return [Rule(call, _NONE) for call in calls]
