"""The programs that filter system calls, simulated; and what else of isolation is pure."""

from __future__ import annotations

import errno
import itertools
import os
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.ipc import launch
from dsec.ipc.syscalls import MACHINES, NEWEST, Machine, name_of
from dsec.runners.isolation import bpf, landlock, rules

PROFILES = {
    "strict": rules.of_strict(network=False),
    "strict, with the internet": rules.of_strict(network=True),
    "without network": rules.of_network(),
}
EVERY = [(machine, profile) for machine in MACHINES for profile in PROFILES]
PROGRAMS = {each: bpf.assemble(PROFILES[each[1]], MACHINES[each[0]]) for each in EVERY}


def verdict(program: Sequence[bpf.Step], audit: int, number: int, arguments: Sequence[int]) -> int:
    """Run a program as the system does, over a struct seccomp_data."""
    data = struct.pack("<IIQ6Q", number, audit, 0, *arguments)
    accumulator, at = 0, 0
    for _ in program:
        code, yes, no, operand = program[at]
        at += 1
        if code == bpf.LOAD:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif code == bpf.AND:
            accumulator &= operand
        elif code == bpf.RETURN:
            return operand
        else:
            held = {
                bpf.EQUAL: accumulator == operand,
                bpf.ABOVE: accumulator > operand,
                bpf.AT_LEAST: accumulator >= operand,
                bpf.ANY_BIT: bool(accumulator & operand),
            }[code]
            at += yes if held else no
    raise AssertionError("the program ran out of its end")


def meant(wanted: Sequence[bpf.Rule], name: str, arguments: tuple[int, ...]) -> int:
    """What the rules say, read one after the other."""
    for rule in wanted:
        if rule.call == name:
            return rule.verdict if rule.denies(arguments) else bpf.ALLOW
    return bpf.ALLOW


numbers64 = st.integers(0, 2**64 - 1) | st.integers(0, 64) | st.sampled_from([2**32, 0x10000011])


@given(st.sampled_from(EVERY), st.integers(0, 2), st.tuples(numbers64, numbers64, numbers64))
def test_a_program_decides_as_its_rules_say(
    which: tuple[str, str], shift: int, drawn: tuple[int, int, int]
) -> None:
    """On every call that there is, whatever its arguments are."""
    machine, wanted, program = MACHINES[which[0]], PROFILES[which[1]], PROGRAMS[which]
    names = {number: call for call, number in machine.numbers.items()}
    arguments = (drawn[shift:] + drawn[:shift]) * 2
    for number in range(NEWEST + 1):
        expected = meant(wanted, names.get(number, ""), arguments)
        assert verdict(program, machine.audit, number, arguments) == expected, names.get(number)


@pytest.mark.parametrize(("name", "profile"), EVERY)
def test_what_is_no_call_of_this_system_is_turned_away(name: str, profile: str) -> None:
    machine = MACHINES[name]
    program = bpf.assemble(PROFILES[profile], machine)
    nothing = (0,) * 6
    other = next(each.audit for each in MACHINES.values() if each is not machine)
    assert verdict(program, other, 1, nothing) == bpf.KILL
    newer = bpf.refuse(errno.ENOSYS)
    assert verdict(program, machine.audit, NEWEST + 1, nothing) == newer
    foreign = verdict(program, machine.audit, 0x40000000 | 101, nothing)  # ptrace by x32's door
    assert foreign == (bpf.KILL if machine.foreign_from else newer)


@pytest.mark.parametrize(("name", "profile"), EVERY)
def test_a_program_is_one_that_the_system_takes(name: str, profile: str) -> None:
    """As its verifier: at most 4,096 steps, jumps that stay inside, and a verdict at the end."""
    program = bpf.assemble(PROFILES[profile], MACHINES[name])
    assert len(bpf.packed(program)) == 8 * len(program) <= 8 * 4096
    for at, step in enumerate(program):
        assert 0 <= step.yes < 256 and 0 <= step.no < 256
        if step.code != bpf.RETURN:
            assert at + 1 + max(step.yes, step.no) < len(program)
    assert program[-1].code == bpf.RETURN


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_every_rule_names_a_call_of_the_table(machine: Machine) -> None:
    only_there = {"chmod", "iopl", "ioperm"}  # that aarch64 never had
    for wanted in PROFILES.values():
        named = {rule.call for rule in wanted}
        assert named - machine.numbers.keys() <= only_there
        assert len(named) == len(wanted), "a second rule for a call would never be asked"


def test_a_denied_call_has_a_name() -> None:
    here = MACHINES[os.uname().machine]
    assert name_of(here.numbers["ptrace"]) == "ptrace"
    assert name_of(468) == "system call 468"


def test_each_version_of_landlock_handles_what_the_one_before_did() -> None:
    handled = [landlock.handled(abi) for abi in range(1, 9)]
    assert handled[0].bit_count() == 13
    for before, after in itertools.pairwise(handled):
        assert before & after == before
    assert handled[-1].bit_count() == 16


names = st.text(st.characters(codec="ascii", categories=("Lu",)), min_size=1, max_size=12)


@given(st.dictionaries(names, st.text(max_size=8)), st.lists(names, max_size=3), st.booleans())
def test_a_scrubbed_environment_has_only_what_is_promised(
    environment: dict[str, str], keep: list[str], deterministic: bool
) -> None:
    whole = environment | dict(launch.environment("run", deterministic=deterministic))
    secrets = {f"{name}_TOKEN": "secret" for name in environment}
    left = launch.scrubbed(whole | secrets, keep)
    assert not left.keys() & secrets.keys() - set(keep)
    assert left.keys() >= {launch.MARK, "PYTHONPATH", "PYTHONHASHSEED", *launch.ONE_THREAD}
    assert left.keys() >= set(keep) & whole.keys()
    assert all(whole[name] == text for name, text in left.items() if name in whole)
    assert launch.scrubbed(whole, None) is whole
