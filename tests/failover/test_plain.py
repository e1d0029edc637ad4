"""Large tables of numbers: one node, exact, and an ordinary part of the graph once they are not."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsec.failover.codecs.plan import AttributePlan
from tests.failover.test_plan import Thing, shape


def table() -> dict[Any, Any]:
    """As toy text has it, with every type of number."""
    return {
        state: {action: [(0.5, np.int64(state), action, -0.0, True)] for action in range(3)}
        for state in range(20)
    }


def holder() -> Any:
    root = Thing()
    root.table = table()
    root.rows = [[float(i), 1] for i in range(40)]
    root.count = 0
    return root


def nodes(plan: AttributePlan) -> int:
    return len(plan._nodes)


def test_a_table_is_one_node_and_comes_back_exactly() -> None:
    root, spare, other = holder(), holder(), Thing()
    other.table, other.rows, other.count = {1: 2}, [], 5
    plan = AttributePlan(root, globals_too=False)
    data = plan.capture()
    assert nodes(plan) == 3
    kept = spare.table
    for each in (spare, other):
        AttributePlan(each, globals_too=False).restore(data)
        assert shape(each) == shape(root)
    assert spare.table is kept


def test_a_table_that_changes_or_is_shared_becomes_nodes() -> None:
    root = holder()
    plan = AttributePlan(root, globals_too=False)
    plan.capture()
    changes = (
        lambda: root.table[3][1].append("more"),
        lambda: setattr(root, "row", root.rows[7]),
        lambda: root.row.append(root),
        lambda: root.table.pop(5),
        lambda: root.table.__setitem__(6, {1: [(1.0, 1, 1, 0.0, 1)]}),
    )
    for change in changes:
        change()
        spare = holder()
        AttributePlan(spare, globals_too=False).restore(plan.capture())
        assert shape(spare) == shape(root)
    assert nodes(plan) > 100


def test_values_that_are_equal_and_not_the_same_are_told_apart() -> None:
    root = holder()
    plan = AttributePlan(root, globals_too=False)
    for value in (0.0, -0.0, 0, False, np.float32(0), np.int8(0)):
        root.rows[3][0] = value
        spare = holder()
        AttributePlan(spare, globals_too=False).restore(plan.capture())
        assert shape(spare) == shape(root)
