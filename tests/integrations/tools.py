"""Tool classes that the tests of isolated tools share."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path


class Shop:
    """Sells, remembers, and dies when it is asked to.

    Args:
        stock: how much there is of everything.
        diary: a file in which each sale is noted, outside of the process.
    """

    def __init__(self, stock: int = 3, diary: str = "") -> None:
        self.stock, self.diary = stock, diary
        self.sold: list[str] = []
        self.reward = 0.0
        self._till = 0

    def reset(self, **given: object) -> str:
        self.sold, self.reward = [], 0.0
        return f"open {sorted(given)}"

    def buy(self, item: str, count: int = 1) -> str:
        """Buy something.

        Args:
            item: what to buy.
            count: how much of it.

        Returns:
            What was bought.
        """
        if count > self.stock:
            raise ValueError(f"only {self.stock} left")
        self.stock -= count
        self.sold += [item] * count
        self.reward += count
        if self.diary:
            with Path(self.diary).open("a") as diary:
                diary.write(f"{item}\n")
        if item == "poison":
            os.kill(os.getpid(), signal.SIGSEGV)
        if item == "patience":
            while True:  # somebody may ask where it hangs, by a signal
                signal.pause()
        return f"{count} {item}, {self.stock} left"

    def look(self, fatal: str = "") -> str:
        """Look at what was sold.

        Args:
            fatal: a file; if it is not there it is made, and the process dies.
        """
        if fatal and not Path(fatal).exists():
            Path(fatal).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return ",".join(self.sold)

    async def order(self, item: str) -> str:
        """Order something that comes later.

        Args:
            item: what to order.
        """
        await asyncio.sleep(0)
        self.sold.append(item)
        return f"ordered {item}"

    @staticmethod
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first one.
            b: the second one.
        """
        return a + b

    def roll(self) -> float:
        """Roll the dice."""
        return random.random()

    def odd(self) -> object:
        """Return what can't be carried, and change something."""
        self.stock -= 1
        return object()

    def get_reward(self) -> float:
        return self.reward

    def pid(self) -> int:
        """Tell the process."""
        return os.getpid()


class Unkept:
    """Holds something that no codec can capture."""

    def __init__(self) -> None:
        self.count = 0
        self.way = (step for step in range(3))

    def reset(self) -> None:
        self.count = 0

    def more(self) -> int:
        """Count."""
        self.count += 1
        return self.count

    def pid(self) -> int:
        """Tell the process."""
        return os.getpid()


class Fragile:
    """Counts; the first of its processes that gets to `dies_at` dies of it.

    Args:
        dies_at: the count that is fatal; none if negative.
        crumb: a file that says that one has died.
    """

    def __init__(self, dies_at: int = -1, crumb: str = "") -> None:
        self.counted, self.dies_at, self.crumb = 0, dies_at, crumb

    def reset(self, **_row: object) -> None:
        """Begin anew; what was counted stays."""

    def count(self) -> int:
        """Count."""
        self.counted += 1
        if self.counted == self.dies_at and not Path(self.crumb).exists():
            Path(self.crumb).touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.counted

    def total(self) -> int:
        """Tell what was counted."""
        return self.counted
