"""The simulated env runner: it steps, keeps its state, and takes over from a dead one.

Owns the environment (an observation is its whole state), the four levels of protection, replay and
its comparison, and what follows where that is not exact. As runners/env.py and heir_env.py do it.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from dsec.ipc import frames
from dsec.ipc.frames import Phase, Protection, Role
from tests.simulation.process import SUPERVISOR
from tests.simulation.runners import RING_BYTES, Agent, Runner, mix
from tests.simulation.things import END, INFRA, Memory, Thing

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

KEPT_BYTES = 8192
REPLAY_STEP_S = (1e-4, 2e-3)
RESTORE_S = (2e-4, 5e-3)


def first_state(agent: Agent, generation: int) -> int:
    """What a reset leads to: the first one, or a fresh one before record `generation`."""
    return mix(agent.seed, 1, generation)


class EnvRunner(Runner):
    """One incarnation of an agent's environment."""

    role = Role.ENV

    def __init__(
        self, machine: Machine, agent: Agent, name: str, epoch: int, parent: int = SUPERVISOR
    ) -> None:
        super().__init__(machine, agent, name, epoch, parent)
        self.state = 0
        self.snapshot: tuple[int, int] | None = None  # what this process is a copy of
        self.exact = True
        self.file: Memory | None = None
        self.clone: EnvRunner | None = None
        self.faithful = True
        self._due = 0
        self._replayed = self._began = 0
        self._inherited: Thing | None = None
        self._said = self.truncate = False

    def started(self) -> None:
        self.phase = Phase.CONSTRUCT
        self.after(self.span(Phase.CONSTRUCT), self.constructed)

    def constructed(self) -> None:
        self.phase = Phase.IDLE
        sizes = {int(role): size for role, size in RING_BYTES.items()}
        other = self.agent.others > 0 and self.machine.memories
        self.agent.others -= bool(other)
        self.send(frames.Constructed(b"other" if other else b"spaces", sizes))

    def building_s(self) -> float:
        return self.between((1e-4, 2e-3))

    # ------------------------------------------------------------ serving

    def work(self) -> None:
        n = self.view - 1
        if n < 0:
            self.spend(Phase.RESET, 0, self.reset)
            return
        if not self.exact:
            self.exact = True
            self.state = first_state(self.agent, n + 1)
            self.observe(INFRA)
            return
        if self.agent.recycle and self.view % self.agent.recycle == 0 and self.retire():
            return
        action = self.at(Role.POLICY, n)
        if action is None or not self.has_room():
            self.await_on(self.peers[Role.POLICY], self.peers.get(Role.RECORDER))
            return
        if self.agent.fatal.get(n + 1, 0) > 0:
            self.agent.fatal[n + 1] -= 1
            self.enter(Phase.STEP, n + 1)
            self.machine.tell("poisoned", self)
            self.crash(signal.SIGSEGV)
            return
        self.spend(Phase.STEP, n + 1, self.step, action.value)

    def has_room(self) -> bool:
        recorder = self.peers.get(Role.RECORDER)
        return recorder is None or self.view - recorder.cursors.get(0, 0) < self.agent.slots

    def reset(self) -> None:
        self.state = first_state(self.agent, 0)
        self.observe(0)

    def step(self, action: int) -> None:
        self.state = mix(self.state, action)
        self.observe(0)

    def observe(self, flags: int) -> None:
        """Publish the observation; keep the state, if that is due; go on."""
        self.publish(self.state, self.flagged(flags))
        if not self.hung and not self.ended and self.view > self._due:
            self.keep()
        self.advance()

    def flagged(self, flags: int) -> int:
        """With END, if the quota is filled, or the agent drains."""
        assert self.outbox is not None
        lost = sum(bool(each.flags & INFRA) for each in self.outbox.records)
        lost += bool(flags & INFRA)
        return flags | END * (self.view - lost >= self.agent.steps or self.draining)

    def straggled(self) -> None:
        action = self.at(Role.POLICY, self.view - 1)
        if action is not None and self.phase is Phase.STEP:
            self.publish(mix(self.state, action.value), self.flagged(0))

    def leave(self) -> None:
        if self.clone is not None and self.clone.alive:
            self.clone.signal(signal.SIGKILL)
        super().leave()

    # ------------------------------------------------------------ keeping

    def keep(self) -> None:
        """Keep the state as it is after the last record."""
        self._due = self.view + self.agent.interval - 1
        if self.level == "state":
            if self.file is None:
                self.file = Memory("kept", Role.ENV, KEPT_BYTES)
                self.held.append(self.file.hold())
                self.file.kept = (self.view - 1, self.state)
                self.send(frames.Kept(KEPT_BYTES, Protection(self.level)), self.file)
            self.file.kept = (self.view - 1, self.state)
        elif self.level == "fork":
            self.fork_itself((self.view - 1, self.state))

    def fork_itself(self, snapshot: tuple[int, int]) -> None:
        """A copy sleeps; the one before is ended."""
        old, machine = self.clone, self.machine
        self.clone = EnvRunner(machine, self.agent, self.name, self.epoch + 1, self.pid)
        self.clone.snapshot, self.clone.start = snapshot, self.start
        ours, theirs = machine.ends()
        self.clone.talk_on(theirs.hold())
        self.send(frames.Clone(self.clone.pid, snapshot[0]), ours)
        if old is not None and old.alive:
            old.signal(signal.SIGKILL)

    def retire(self) -> bool:
        """Step aside for a fresh process. False where nothing was kept that it could go on from."""
        if self.level != "state" or self.file is None or self.epoch_served < 2:
            return False
        self.file.kept = (self.view - 1, self.state)
        self.send(frames.Retired(self.view - 1, "it is time"))
        self.busy = True
        self.after(self.span(Phase.CLOSE), self.exit, 0)
        return True

    @property
    def epoch_served(self) -> int:
        """Records that this very process has published."""
        return self.view - self._began

    # ------------------------------------------------------------ taking over

    def take_over(self, frame: frames.Takeover, things: list[Thing]) -> None:
        assert self.outbox is not None
        if self.snapshot is not None:
            self.fork_itself(self.snapshot)
        if frame.kept >= 0:
            self._inherited = things[frame.kept].hold()
            self.held.append(self._inherited)
        self.truncate = frame.truncate
        if self.agent.unfaithful:
            self.agent.unfaithful -= 1
            self.faithful = False
        self.restore(self._inherited)
        replay = self.between(REPLAY_STEP_S) * self._replayed
        self.replays(self.between(RESTORE_S) + replay, self.taken_over)

    def restore(self, kept: Thing | None) -> None:
        """Find what there is, and replay to the last record that is published."""
        assert self.outbox is not None
        records, found = self.outbox.records, self.snapshot
        if found is None and isinstance(kept, Memory):
            found = kept.kept
        if found is None and self.level == "replay":
            found = (0, first_state(self.agent, 0))
        self.exact, self._replayed = not records, 0
        if self.truncate or found is None or not records:
            return
        at, self.state = found
        self.exact = self.faithful and at < len(records)
        while self.exact and at + 1 < len(records):
            action = self.at(Role.POLICY, at)
            if records[at + 1].flags & INFRA:
                self.state = first_state(self.agent, at + 1)
            elif action is None:
                self.exact = False
                return
            else:
                self.state = mix(self.state, action.value)
            at, self._replayed = at + 1, self._replayed + 1
            self.exact = records[at].value == self.state

    def taken_over(self) -> None:
        assert self.outbox is not None
        seq = len(self.outbox.records) - 1
        why = "" if self.exact else "nothing of the environment's state was kept"
        level = "fork" if self.snapshot is not None else self.level
        self._said = self.exact
        self.send(frames.TakenOver(self.exact, level, seq, self._replayed, 0.1, 0.1, why))

    def resume(self, kept: Thing | None) -> None:
        """What was published between Takeover and the fence is replayed, too."""
        if kept is not None:
            self._inherited = kept.hold()
            self.held.append(kept)
        self.restore(self._inherited)
        if self._said and not self.exact:
            differs = Protection("none", differs="it came out differently")
            self.send(frames.Kept(0, differs))
        elif not self._said:
            self.exact = False
        assert self.outbox is not None
        self._began = len(self.outbox.records)
        self.serve()
