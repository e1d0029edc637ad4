"""Isolated tool classes look like the original, and die without harm."""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsec.errors import JournalError, ToolLost, ToolUnresolved
from dsec.integrations.trl import close, isolated, unresolved
from tests.integrations.tools import Shop, Unkept


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """Makes an object of an isolated class, and closes it in the end."""
    made = []

    def open_one(tool_class: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(tool_class(*args, **kwargs))
        return made[-1]

    yield open_one
    for each in made:
        close(each)


def public(tool_class: type) -> dict[str, Any]:
    """As TRL finds tools."""
    found = inspect.getmembers(tool_class, inspect.isfunction)
    return {name: each for name, each in found if not name.startswith("_")}


def test_it_looks_like_the_original(make: Callable[..., Any]) -> None:
    mine = isolated(Shop)
    assert public(mine).keys() == public(Shop).keys()
    assert (mine.__name__, mine.__doc__) == ("Shop", Shop.__doc__)
    assert inspect.signature(mine) == inspect.signature(Shop)
    tools, plain = make(mine, stock=5), Shop(stock=5)
    for name in public(Shop):
        my, their = getattr(tools, name), getattr(plain, name)
        assert my.__name__ == name and my.__doc__ == their.__doc__
        assert inspect.signature(my) == inspect.signature(their), name
        assert inspect.iscoroutinefunction(my) == inspect.iscoroutinefunction(their)
    for each in (tools, plain):
        assert each.reset(prompt=["x"]) == "open ['prompt']"
        assert each.buy("tea", count=2) == "2 tea, 3 left"
        assert asyncio.run(each.order("milk")) == "ordered milk"
        assert each.add(1, 2) == 3
        with pytest.raises(ValueError, match="only 3 left"):
            each.buy("tea", 4)
        each.stock = 9
        assert (each.sold, each.reward, each.stock) == (["tea", "tea", "milk"], 2.0, 9)
        with pytest.raises(AttributeError):
            _ = each.nothing
    assert tools.pid() != os.getpid() == plain.pid()
    with pytest.raises(TypeError, match="can't be carried"):
        tools.odd()
    assert tools.stock == 8
    with pytest.raises(TypeError, match=r"buy\(\)"):
        tools.buy(object())
    with pytest.raises(TypeError, match="pickled or copied"):
        copy.copy(tools)


@pytest.mark.guarantee("G3", "G6")
def test_deaths(make: Callable[..., Any], tmp_path: Path) -> None:
    """Between two calls nothing is seen of one; in a call it is done again, or told."""
    diary, trace = tmp_path / "diary", tmp_path / "trace"
    mine = isolated(Shop, idempotent=["look"], trace=trace, timeout_s=2.0)
    tools = make(mine, 10, diary=str(diary))
    tools.buy("tea")
    os.kill(tools.pid(), signal.SIGKILL)
    assert tools.buy("milk") == "1 milk, 8 left"
    assert tools.look(str(tmp_path / "once")) == "tea,milk"
    assert (tmp_path / "once").exists()
    with pytest.raises(ToolUnresolved, match=r"Shop\.buy: .*SIGSEGV.*not done again"):
        tools.buy("poison")
    with pytest.raises(ToolUnresolved, match="hung"):
        tools.buy("patience")
    assert tools.look() == "tea,milk" and tools.stock == 8 and tools.get_reward() == 2.0
    assert diary.read_text().split() == ["tea", "milk", "poison", "patience"]
    left = unresolved(trace)
    assert [(each.tool, each.args) for each in left] == [
        ("Shop.buy", ["poison"]),
        ("Shop.buy", ["patience"]),
    ]
    assert "SIGSEGV" in left[0].cause


@pytest.mark.guarantee("G3")
def test_random_numbers_go_on(make: Callable[..., Any]) -> None:
    """What a tool draws after a death is what it would have drawn: both have the same seed."""
    tools, same = make(isolated(Shop, seed=4)), make(isolated(Shop, seed=4))
    rolled = [tools.roll() for _ in range(2)]
    os.kill(tools.pid(), signal.SIGKILL)
    rolled += [tools.roll() for _ in range(2)]
    assert rolled == [same.roll() for _ in range(4)]


@pytest.mark.guarantee("G4")
def test_what_can_not_be_kept_is_said(make: Callable[..., Any]) -> None:
    tools = make(isolated(Unkept))
    assert tools.more() == 1
    os.kill(tools.pid(), signal.SIGKILL)
    with pytest.raises(ToolLost, match=r"way.*reset\(\) begins anew"):
        tools.more()
    tools.reset()
    assert tools.more() == 1


def test_a_trace_of_a_program_that_died(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    begun = '{"call": "a-0", "do": "intent", "at": 1.0, "tool": "T.x", "args": [1], "kwargs": {}}\n'
    path.write_text(begun + begun.replace("a-0", "a-1") + '{"call": "a-0", "do": "result"}\n{"ca')
    (left,) = unresolved(path)
    assert (left.call, left.tool, left.args, left.cause) == ("a-1", "T.x", [1], "")
    path.write_text("nonsense\n")
    with pytest.raises(JournalError, match="line 1"):
        unresolved(path)


def test_mistakes_are_told(make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="no public method sell"):
        isolated(Shop, idempotent=["sell"])
    with pytest.raises(TypeError, match="class"):
        isolated(Shop())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'price'"):
        make(isolated(Shop), price=3)

    class Local:
        def reset(self) -> str:
            return "carried by value"

    assert make(isolated(Local)).reset() == "carried by value"
