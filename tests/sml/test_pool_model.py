"""The pool against a dict: any order of puts, frees, marks and new writers (Hypothesis).

Run over every backend. The model knows what each id holds; the pool may refuse for lack of room
and must otherwise agree in everything, a reader in step with the writer included.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dsec.errors import AtomAbsent, AtomExists, PoolFull
from dsec.sml.pool import Label, Marks
from tests.sml.backends import BACKENDS

IDS = st.integers(0, 30) | st.integers((1 << 62) - 5, (1 << 62) - 1)
SIZES = st.integers(1, 200) | st.integers(1, 6000)


class PoolMachine(RuleBasedStateMachine):
    """One pool through several writers, with one reader that stays."""

    kind = "shm"

    @initialize(atoms_max=st.sampled_from([4, 12, 200]))
    def begin(self, atoms_max: int) -> None:
        self.backend = BACKENDS[self.kind]()
        self.atoms_max = atoms_max
        self.pool = self.backend.create(40_000, atoms_max)
        self.reader = self.backend.reader()
        self.model: dict[int, tuple[Label, bytes, Marks]] = {}

    @rule(atom_id=IDS, nbytes=SIZES, seed=st.integers(0, 1000))
    def put(self, atom_id: int, nbytes: int, seed: int) -> None:
        body = random.Random(seed).randbytes(nbytes)
        label = Label(atom_id, seed % 3, seed % 5, seed % 7, seed)
        try:
            self.pool.put(label, body)
        except AtomExists:
            assert atom_id in self.model
        except PoolFull:
            usage = self.pool.usage()
            assert atom_id not in self.model
            assert len(self.model) == self.atoms_max or usage.room_bytes + nbytes > 0.3 * (
                usage.data_bytes
            )
        else:
            assert atom_id not in self.model
            self.model[atom_id] = (label, body, Marks.NONE)

    @rule(atom_id=IDS)
    def free(self, atom_id: int) -> None:
        if atom_id in self.model:
            self.pool.free(atom_id)
            del self.model[atom_id]
        else:
            with pytest.raises(AtomAbsent):
                self.pool.free(atom_id)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), marks=st.sampled_from(list(range(4))))
    def mark(self, data: st.DataObject, marks: int) -> None:
        atom_id = data.draw(st.sampled_from(sorted(self.model)))
        self.pool.mark(atom_id, Marks(marks))
        self.model[atom_id] = (*self.model[atom_id][:2], Marks(marks))

    @rule()
    def replace_the_writer(self) -> None:
        epoch = self.pool.epoch
        self.pool.close()
        self.pool = self.backend.adopt()
        assert self.pool.epoch == epoch + 1

    @invariant()
    def both_sides_hold_what_the_model_holds(self) -> None:
        if not hasattr(self, "pool"):
            return
        for side in (self.pool, self.reader):
            found = {each.label.id: each for each in side.entries()}
            assert found.keys() == self.model.keys()
            for atom_id, (label, body, marks) in self.model.items():
                assert side.get(atom_id) == body
                assert (found[atom_id].label, found[atom_id].marks) == (label, marks)
        usage = self.pool.usage()
        assert usage.atoms == len(self.model)
        assert usage.payload_bytes == sum(len(body) for _, body, _ in self.model.values())
        assert usage.room_bytes == sum(each.room for each in self.pool.entries())

    def teardown(self) -> None:
        if hasattr(self, "backend"):
            self.backend.end()


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(BACKENDS))
def test_a_pool_does_what_a_dict_does(kind: str) -> None:
    machine = type("Machine", (PoolMachine,), {"kind": kind})
    # A remote pool takes a thousand times as long for each answer, and its index is the same code.
    most = settings().max_examples if kind == "shm" else min(settings().max_examples, 15)
    found = settings(stateful_step_count=40, max_examples=most)
    run_state_machine_as_test(machine, settings=found)
