"""Which record comes next on a ring, asked while its writer writes."""

from __future__ import annotations

from typing import Any

import pytest

from dsec.ipc import recall
from dsec.ipc.frames import Role
from dsec.ipc.ring import KIND_OBS
from dsec.runners.heir_actor import next_seq
from tests.ipc.rings import Wires


@pytest.mark.guarantee("G2")
def test_a_record_published_in_between_is_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for the last one read, and a reader then waited for the one after it."""
    wires = Wires()
    try:
        writer = wires.writer(Role.ENV, Role.REWARD)
        reader = wires.reader(Role.REWARD, Role.ENV)
        assert next_seq(reader, 0) == 0
        assert next_seq(reader, 7) == 7
        published: list[int] = []

        def meanwhile(ring: Any) -> Any:
            if not published:
                published.append(0)
                writer.claim(8, 1.0)
                writer.commit(0, KIND_OBS, 0, 8)
            return last_record(ring)

        last_record = recall.last_record
        monkeypatch.setattr(recall, "last_record", meanwhile)
        assert next_seq(reader, 0) == 0
        assert published == [0]
        reader.next(1.0)
        reader.release()
        assert next_seq(reader, 0) == 1
    finally:
        wires.close()
