"""What a writer counts beside its records, whoever dies at whatever instant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import LocalError
from dsec.ipc import recall
from dsec.ipc.frames import Role
from tests.ipc.rings import Wires


@pytest.mark.guarantee("G4")
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), max_size=30
    )  # records without news, whether the next has some, and whether its writer dies before it
)
def test_a_successor_goes_on_with_the_count_of_what_is_published(
    records: list[tuple[int, bool, bool]],
) -> None:
    with Wires() as wires:
        outbox = wires.outbox(Role.ENV)
        assert recall.tally(outbox, 0) == (0, 0)
        seq = episodes = lost = 0
        for plain, news, dies in records:
            seq += plain
            if news:
                outbox.note(seq + 1, episodes + 1, lost + 2)
            if dies:
                outbox.close()
                outbox = wires.outbox(Role.ENV)
                outbox.note(seq, episodes, lost)
            else:
                seq += 1
                episodes, lost = episodes + news, lost + 2 * news
            assert recall.tally(outbox, seq) == (episodes, lost)
        outbox.close()
        with pytest.raises(LocalError, match="closed"):
            recall.tally(outbox, seq)
