"""The caller's side of isolated environments: it is their policy, and they are its lanes.

Owns the rings as a caller has them: one outbox for each lane, written here and nowhere else, the
arrays that actions are sent from and observations arrive in, and every wait, which has a limit and
hears from the kernel meanwhile. A step is one C call. What Gymnasium wants to be told of it is the
affair of tracked.py and vector.py.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from numpy.typing import NDArray

from dsec.engine import talk
from dsec.engine.client import Hosted
from dsec.errors import (
    DsecError,
    LocalError,
    RingInterrupted,
    RingTimeout,
    SandboxFailed,
    SandboxTimeout,
)
from dsec.failover.keep import Snapshot
from dsec.ipc import values
from dsec.ipc.frames import Role
from dsec.ipc.group import Lockstep, Piece
from dsec.ipc.layout import EnvRecord, Layout, decode_spaces
from dsec.ipc.ring import (
    FLAG_BOUNDARY,
    FLAG_END,
    FLAG_REQUEST,
    KIND_ACTION,
    KIND_END,
    Reader,
)
from dsec.sandbox import remote
from dsec.sandbox.hearing import News
from dsec.sandbox.lane import Lane
from dsec.sandbox.trees import arrays, copy_fixed, place_slots, slice_rows

SLICE_S = 0.05  # how long the kernel is not listened to while an answer is waited for
BUSY_CLOSE_S = 1.0
COAST_SLICE_S = 0.002  # the same, where a process that is away is not waited for

Told = tuple[dict[int, Any], list[dict[str, Any]]]
"""Terminal observations by environment, and an info for each."""


class Lanes:
    """Environments in other processes: `order.lanes` runners of `num_envs` each.

    Args:
        order: what the kernel is asked to run.
        num_envs: environments in each lane.
        start_s: limit of the start; answer_s: of the wait for one answer.

    Attributes:
        observation_space, action_space: those of a single environment.
        count: environments in all.
        obs, reward, flags: what arrived last, (count, ...); obs is a tree of arrays.
        actions: the tree of arrays that is sent.
        failovers: what was survived, the latest of it.
        busy: something was sent whose answer has not been taken in.
        away: the lanes whose environments are being replaced, as far as the kernel was heard.

    Raises:
        MachineError: the machine, or an installation, can't.
        SandboxFailed: an environment can't be made.
        SandboxTimeout: the start took too long.
    """

    def __init__(
        self, order: talk.Order, num_envs: int, *, start_s: float, answer_s: float, close_s: float
    ) -> None:
        self.count = order.lanes * num_envs
        self.width = num_envs
        self.busy = False
        self._early = self._arrived = False
        self._answer_s, self._close_s = answer_s, close_s
        self._reads_rewards = order.reward
        self._lock = threading.Lock()
        self._closed = False
        self.lanes: list[Lane] = []
        self._kernel = Hosted(order)
        self._news = News(self._kernel)
        self.failovers, self.away = self._news.failovers, self._news.away
        try:
            spaces = self._attach(order.lanes, time.monotonic() + start_s)
            self.observation_space, self.action_space = decode_spaces(spaces)
            self._arrange()
            self._gather(self._lockstep.gather, start_s)
        except BaseException:
            self._abandon()
            raise

    def _attach(self, count: int, until: float) -> bytes:
        spaces = b""
        while len(self.lanes) < count:
            got = self._kernel.receive(max(0.0, until - time.monotonic()))
            if got is None:
                raise SandboxTimeout(
                    f"{len(self.lanes)} of {count} environments are there; give it more time with"
                    " start_timeout_s, or deadlines={'construct_s': ...}"
                )
            message, fds = got
            if isinstance(message, talk.Attach):
                self.lanes.append(Lane(message, fds))
                spaces = spaces or message.spaces
                if message.spaces != spaces:
                    raise SandboxFailed("the environments were constructed with different spaces")
            else:
                self._news.take(message, fds)
                self._news.check()
        self.lanes.sort(key=lambda lane: lane.name)
        return spaces

    def _arrange(self) -> None:
        n, count = self.width, self.count
        self.record = EnvRecord(self.observation_space, n)
        self.layout = Layout(self.observation_space, count, "observation")
        self.action_layout = Layout(self.action_space, n, "action", indices=True)
        self.all_actions = Layout(self.action_space, count, "action", indices=True)
        self.obs = self.layout.views(bytearray(max(1, self.layout.nbytes)))
        self.actions = self.all_actions.views(bytearray(max(1, self.all_actions.nbytes)))
        self.reward: NDArray[np.float64] = np.zeros(count)
        self.flags: NDArray[np.uint8] = np.zeros(count, np.uint8)
        self.variable = bool(self.layout.variable)
        parts = zip(self.record.layout.leaves, arrays(self.obs), strict=True)
        sinks = [Piece(self.record.obs_off + leaf.offset, array) for leaf, array in parts]
        sent = zip(self.action_layout.leaves, arrays(self.actions), strict=True)
        self._lockstep = Lockstep(
            [(lane.outbox, lane.reader) for lane in self.lanes],
            actions=[Piece(leaf.offset, array) for leaf, array in sent],
            sinks=[
                Piece(self.record.reward_off, self.reward),
                Piece(self.record.flags_off, self.flags),
                *sinks,
            ],
            action_bytes=self.action_layout.nbytes,
            fixed_bytes=self.record.fixed_bytes,
        )
        if self._reads_rewards:
            for lane in self.lanes:
                lane.rewards = Reader(lane.outbox, lane.peers[Role.REWARD])

    # ------------------------------------------------------------ steps and requests

    def enter(self) -> None:
        """Begin to use them. Every use is between `enter` and `leave`.

        Raises:
            ClosedEnvironmentError: they are closed.
            SandboxFailed: they are gone.
            LocalError: another thread uses them, or this is a fork of the process they belong to.
        """
        if not self._lock.acquire(blocking=False):
            raise LocalError(
                "this environment is in use by another thread; give each thread one of its own"
            )
        try:
            if self._closed:
                raise ClosedEnvironmentError("this environment is closed")
            if not self._kernel.mine:
                raise LocalError(
                    "this environment belongs to the process that this one was forked from; make"
                    " one here"
                )
            self._news.check()
        except BaseException:
            self._lock.release()
            raise

    def leave(self) -> None:
        """End a use that `enter` began."""
        self._lock.release()

    def send(self, *, again: bool = False) -> bool:
        """Send `actions`, wait for all; return whether any has more to tell (`told`).

        Args:
            again: they have been sent; only wait.
        """
        call = self._begin(again=again)
        try:
            notable = call(SLICE_S)
        except (RingTimeout, RingInterrupted):
            notable = self._gather(self._lockstep.gather)
        return self._taken_in(notable)

    def send_or_leave(self, *, again: bool) -> bool | None:
        """As `send`, but None as soon as it is known that an environment's process is away. Its
        answer is waited for by another call then, with `again`."""
        call = self._begin(again=again)
        until = time.monotonic() + self._answer_s
        while True:
            with contextlib.suppress(RingTimeout, RingInterrupted):
                return self._taken_in(call(0.0 if again and self.away else COAST_SLICE_S))
            self._listen(until)
            if self.away:
                return None
            call = self._lockstep.gather

    def _begin(self, *, again: bool) -> Callable[[float], bool]:
        self.busy = True
        if again:
            return self._lockstep.gather
        if not self.all_actions.variable:
            return self._lockstep.step
        self._send_each()
        return self._lockstep.gather

    def _taken_in(self, notable: bool) -> bool:
        if notable and self._lockstep.ended:
            self._await_the_end()
        if self._reads_rewards:
            self._await_rewards(range(len(self.lanes)))
        self.busy = False
        return notable or self.variable

    def send_only(self) -> None:
        """Send `actions`; `wait` is to follow."""
        self.busy = True
        if self.all_actions.variable:
            self._send_each()
            return
        with contextlib.suppress(RingTimeout, RingInterrupted):
            self._early = self._lockstep.step(0.0)
            self._arrived = True

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for what `send_only` has sent; returns, and raises, what `send` does."""
        notable, arrived = self._early, self._arrived
        if not arrived:
            notable = self._gather(self._lockstep.gather, timeout_s)
        self._arrived = False
        return self._taken_in(notable)

    def request(self, asked: dict[str, Any], lanes: Sequence[int] | None = None) -> dict[int, Told]:
        """Ask these lanes, all by default, for something that is no step; return what they told.

        Raises:
            Exception: what the code of an environment raised there.
        """
        which = range(len(self.lanes)) if lanes is None else lanes
        self.settle()
        self._ask(dict.fromkeys(which, asked))
        return self._answers(which)

    def request_each(self, asked: dict[int, dict[str, Any]]) -> dict[int, Told]:
        """As `request`, something else of each lane."""
        self.settle()
        self._ask(asked)
        return self._answers(list(asked))

    def post(self, asked: dict[str, Any]) -> None:
        """Ask the first lane for something, and don't wait: `collect` is to follow."""
        self.settle()
        self.busy = True
        self._commit(0, FLAG_REQUEST, None, values.encode(asked, "request"))

    def collect(self) -> dict[str, Any]:
        """Wait for the answer to what was posted; its info."""
        self.settle()
        return self.told(0)[1][0]

    def settle(self) -> None:
        """Take in what an interrupted call left under way."""
        if self.busy and not self._arrived:
            self._gather(self._lockstep.gather)
        self._arrived = self.busy = False

    def _ask(self, asked: dict[int, dict[str, Any]]) -> None:
        self.busy = True
        for lane, each in asked.items():
            self._commit(lane, FLAG_REQUEST, None, values.encode(each, "request"))
        self._gather(self._lockstep.gather)
        if self._reads_rewards:
            self._await_rewards(list(asked))
        self.busy = False

    def _answers(self, which: Sequence[int]) -> dict[int, Told]:
        answers = {lane: self.told(lane) for lane in which}
        for _, infos in answers.values():
            raised = remote.raised(infos[0])
            if raised is not None:
                raise raised
        return answers

    def _send_each(self) -> None:
        """What has no fixed size goes lane by lane."""
        n, layout = self.width, self.action_layout
        for i in range(len(self.lanes)):
            rows = slice_rows(self.actions, i * n, n)
            self._commit(i, 0, rows, layout.pack(rows))

    def _commit(self, i: int, flags: int, rows: Any, rest: bytes) -> None:
        lane, fixed = self.lanes[i], self.action_layout.nbytes
        until = time.monotonic() + self._answer_s
        while True:
            try:
                at = lane.outbox.claim(fixed, SLICE_S)
                views = self.action_layout.views(lane.outbox.buffer, at)
                lane.outbox.buffer[at : at + fixed] = bytes(fixed)
                if rows is not None:
                    copy_fixed(views, rows)
                flags |= self._lockstep.flags(i) & FLAG_BOUNDARY
                lane.spill.commit(self._lockstep.seq(i), KIND_ACTION, flags, fixed, rest, SLICE_S)
                break
            except (RingTimeout, RingInterrupted):
                self._listen(until)
        lane.reader.release()
        self._lockstep.sent(i)

    # ------------------------------------------------------------ what came

    def told(self, lane: int) -> Told:
        """What the lane's current record has beside observation, reward and flags."""
        extras = self._lockstep.extras(lane)
        if self.variable:
            views = slice_rows(self.obs, lane * self.width, self.width)
            extras = extras[self.record.layout.unpack(views, bytes(extras)) :]
            place_slots(self.obs, views, lane * self.width)
        return self.record.decode_extras(extras)

    def seq(self, lane: int) -> int:
        """The number of the lane's current record."""
        return self._lockstep.seq(lane)

    def section(self, lane: int, role: int, seq: int) -> Snapshot:
        """What a role has kept of its state at record `seq`, which it was asked for.

        Raises:
            SandboxTimeout: it has not, in all the time that an answer may take.
        """
        until = time.monotonic() + self._answer_s
        return self._news.section(self.lanes[lane].name, role, seq, until)

    @property
    def telling(self) -> list[int]:
        """The lanes that have something to tell."""
        return list(range(len(self.lanes))) if self.variable else self._lockstep.with_extras

    def _await_rewards(self, which: Sequence[int]) -> None:
        for i in which:
            rows = slice(i * self.width, (i + 1) * self.width)
            until = time.monotonic() + self._answer_s
            while True:
                try:
                    seq = self._lockstep.seq(i) - 1
                    self.lanes[i].take_rewards(seq, SLICE_S, self.reward[rows], self.flags[rows])
                    break
                except (RingTimeout, RingInterrupted):
                    self._listen(until)

    # ------------------------------------------------------------ waiting

    def _gather(self, call: Callable[[float], bool], limit_s: float | None = None) -> bool:
        limit_s = self._answer_s if limit_s is None else limit_s
        until = time.monotonic() + limit_s
        while True:
            with contextlib.suppress(RingTimeout, RingInterrupted):
                return call(min(SLICE_S, max(0.0, until - time.monotonic())))
            self._listen(until)
            call = self._lockstep.gather

    def _listen(self, until: float) -> None:
        """Hear what the kernel has to say; raise if nobody is left to wait for."""
        self.hear()
        self._news.check()
        if time.monotonic() > until:
            missing = ", ".join(self.lanes[i].name for i in self._lockstep.missing)
            raise SandboxTimeout(
                f"no answer from {missing} in time, and no death either. Is the machine stopped, or"
                " overloaded? More time: answer_timeout_s"
            )

    def _await_the_end(self) -> None:
        """An environment has ended, and not because it was closed here: the kernel says why."""
        until = time.monotonic() + self._answer_s
        while True:
            self._listen(until)
            self._news.hear(SLICE_S)

    def hear(self) -> None:
        """Take in what the kernel has told since the last time; of a closed one, nothing."""
        if not self._closed:
            self._news.hear()

    @property
    def files(self) -> tuple[str, ...]:
        """Those of the recording, once this is closed."""
        return self._news.files

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Have the environments closed, and see all processes gone. Again is no error."""
        if self._closed:
            return
        if not self._kernel.mine:
            self._forget()
            return
        if not self._lock.acquire(blocking=False):
            raise LocalError("this environment can't be closed while another thread uses it")
        try:
            if self._news.failed is None:
                self._say_goodbye()
            grace_s = self._close_s if self._news.failed is None else 0.0
            self._news.files = self._kernel.close(grace_s)
        finally:
            self._forget()
            self._lock.release()

    def _say_goodbye(self) -> None:
        # Who was interrupted in a step has not waited for it, and won't now for long.
        self._answer_s = min(self._close_s, BUSY_CLOSE_S) if self.busy else self._close_s
        try:
            self.settle()
            self._ask({lane: {"do": "close"} for lane in range(len(self.lanes))})
            for i, lane in enumerate(self.lanes):
                lane.outbox.claim(0, SLICE_S)
                lane.outbox.commit(self._lockstep.seq(i), KIND_END, FLAG_END, 0)
        except DsecError as error:
            self._news.fail(str(error))

    def _abandon(self) -> None:
        self._kernel.close(0.0)
        self._forget()

    def _forget(self) -> None:
        self._closed = True
        for lane in self.lanes:
            lane.close()
        self._news.forget()
        self._kernel.forget()
