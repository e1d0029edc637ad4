"""From rules about system calls to the program that the system runs before each of them. Pure.

A program is a list of `Step`s of classic BPF, of which seccomp allows few: load a word of the call,
compare, jump forward, return a verdict. What is denied, and why, is in rules.py. Rule 1: the first
steps turn away calls of another architecture or calling convention, whose numbers mean something
else. Rule 2: arguments are compared by their lower half, so only those that the system reads as
32-bit numbers are compared at all.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from dsec.ipc.syscalls import NEWEST, Machine

KILL: Final = 0x80000000  # SECCOMP_RET_KILL_PROCESS
TRAP: Final = 0x00030000  # SIGSYS, which the crash handler tells of
ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000

LOAD, AND = 0x20, 0x54  # BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_AND|BPF_K
EQUAL, ABOVE, AT_LEAST, ANY_BIT = 0x15, 0x25, 0x35, 0x45  # BPF_JMP|…|BPF_K
RETURN: Final = 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data, little-endian machines


class Step(NamedTuple):
    """One instruction: what it does, by how many steps to go on further if a comparison holds and
    if not, and its operand."""

    code: int
    yes: int
    no: int
    operand: int


def refuse(code: int) -> int:
    """The verdict that makes a call fail with this errno."""
    return _ERRNO | code


@dataclass(frozen=True, slots=True)
class Rule:
    """A call by name, and the verdict on it; perhaps only for some of its arguments.

    Attributes:
        argument: the number of the one that is looked at, -1: none, it is denied in any case.
        mask: which bits of it count.
        values: that it may have (`only`), or may not have.
        any_bit: instead of comparing: any bit of `mask` is too many.
    """

    call: str
    verdict: int
    argument: int = -1
    mask: int = 0xFFFFFFFF
    values: tuple[int, ...] = ()
    only: bool = False
    any_bit: bool = False

    def denies(self, arguments: tuple[int, ...]) -> bool:
        """Whether the rule, on a call of its name, gives its verdict."""
        if self.argument < 0:
            return True
        found = arguments[self.argument] & self.mask & 0xFFFFFFFF
        if self.any_bit:
            return found != 0
        return (found in self.values) is not self.only


def assemble(rules: Iterable[Rule], machine: Machine) -> list[Step]:
    """The program: what no rule denies is allowed, but for numbers that are newer than the table,
    which the system is made to not have."""
    program = [
        Step(LOAD, 0, 0, _ARCH),
        Step(EQUAL, 1, 0, machine.audit),
        Step(RETURN, 0, 0, KILL),
        Step(LOAD, 0, 0, _NUMBER),
    ]
    if machine.foreign_from:
        program += [Step(AT_LEAST, 0, 1, machine.foreign_from), Step(RETURN, 0, 0, KILL)]
    program += [Step(ABOVE, 0, 1, NEWEST), Step(RETURN, 0, 0, refuse(errno.ENOSYS))]
    for rule in rules:
        if rule.call in machine.numbers:
            body = _body(rule)
            program += [Step(EQUAL, 0, len(body), machine.numbers[rule.call]), *body]
    return [*program, Step(RETURN, 0, 0, ALLOW)]


def _body(rule: Rule) -> list[Step]:
    """What is done for a call of this name; it ends in a verdict on each way."""
    deny, allow = Step(RETURN, 0, 0, rule.verdict), Step(RETURN, 0, 0, ALLOW)
    if rule.argument < 0:
        return [deny]
    load = Step(LOAD, 0, 0, _ARGUMENTS + 8 * rule.argument)
    if rule.any_bit:
        return [load, Step(ANY_BIT, 0, 1, rule.mask), deny, allow]
    steps = [load, Step(AND, 0, 0, rule.mask)]
    for at, value in enumerate(rule.values):
        steps.append(Step(EQUAL, len(rule.values) - at, 0, value))
    # All comparisons failed, or one has jumped beyond the next step.
    return [*steps, *((deny, allow) if rule.only else (allow, deny))]


def packed(program: Iterable[Step]) -> bytes:
    """As struct sock_filter has it."""
    return b"".join(struct.pack("=HBBI", *step) for step in program)
