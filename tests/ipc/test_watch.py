"""Watched memory: what has changed is found, and only that."""

from __future__ import annotations

import ctypes
import weakref

from hypothesis import given
from hypothesis import strategies as st

from dsec.ipc.watch import Region, Watch

_SIZES = st.lists(st.lists(st.integers(1, 40), max_size=3), max_size=6)


@given(_SIZES, st.data())
def test_tells_each_entry_of_which_a_byte_has_changed(
    sizes: list[list[int]], data: st.DataObject
) -> None:
    entries, memories = [], []
    for numbers in sizes:
        mine = [ctypes.create_string_buffer(n) for n in numbers]
        memories.append(mine)
        entries.append([Region(each, ctypes.addressof(each), len(each)) for each in mine])
    watch = Watch(entries)
    assert watch.changed() == []
    for _ in range(3):
        expected = set()
        for number, mine in enumerate(memories):
            for each in mine:
                if data.draw(st.booleans()):
                    at = data.draw(st.integers(0, len(each) - 1))
                    each[at] = bytes([each.raw[at] ^ 1])
                    expected.add(number)
        assert watch.changed() == sorted(expected)
        assert watch.changed() == []


def test_holds_the_owners_of_what_it_watches() -> None:
    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    watch = Watch([[Region(owner, id(owner), 8)]])
    del owner
    assert alive() is not None
    del watch
    assert alive() is None
