"""Numbers of system calls, for whoever filters them and whoever has to name one by its number.

Owns the table and the making of a call that the C library has no function for; what is denied, and
why, is no matter of it. Two architectures: on another one nothing can be filtered, which is said.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final, NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)

# Of x86_64 and of aarch64; None: that one has no such call.
_NUMBERS: Final[dict[str, tuple[int | None, int | None]]] = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "listen": (50, 201),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
NEWEST: Final = 469
"""The highest number that was looked through for this table (Linux 6.17)."""


class Machine(NamedTuple):
    """What a filter has to know of an architecture: its name for the audit, and where numbers of
    another calling convention begin (0: there is none)."""

    audit: int
    foreign_from: int
    numbers: dict[str, int]


def _machine(audit: int, foreign_from: int, column: int) -> Machine:
    numbers = {n: each[column] for n, each in _NUMBERS.items()}
    return Machine(audit, foreign_from, {n: k for n, k in numbers.items() if k is not None})


MACHINES: Final = {
    "x86_64": _machine(0xC000003E, 0x40000000, 0),
    "aarch64": _machine(0xC00000B7, 0, 1),
}


def machine() -> Machine | None:
    """The architecture that this process runs on; None for one that is not in the table."""
    return MACHINES.get(os.uname().machine)


def name_of(number: int) -> str:
    """`ptrace` for 101 on x86_64; `system call 7` for one that is not in the table."""
    here = machine()
    names = {k: name for name, k in here.numbers.items()} if here is not None else {}
    return names.get(number, f"system call {number}")


def call(name: str, *arguments: object) -> int:
    """Make a call of the table; return what it returns.

    Raises:
        OSError: the system refuses, or has no such call (ENOSYS).
    """
    here = machine()
    number = here.numbers[name] if here is not None else -1
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result
