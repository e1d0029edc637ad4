"""The simulated policy and reward runners: they answer records of others, and end with them.

A policy's answer depends on all that it has answered before, so a successor that has not its state
is seen by what it says. As runners/policy.py, reward.py and heir_actor.py do it.
"""

from __future__ import annotations

from dsec.ipc import frames
from dsec.ipc.frames import Phase, Protection, Role
from tests.simulation.runners import Runner, mix
from tests.simulation.things import END, Thing

RESTORE_S = (2e-4, 4e-3)


class ActorRunner(Runner):
    """What both have in common: to take over by answering again."""

    level = "none"

    def take_over(self, frame: frames.Takeover, things: list[Thing]) -> None:
        self.replays(self.span(Phase.CONSTRUCT) + self.between(RESTORE_S), self.taken_over)

    def taken_over(self) -> None:
        assert self.outbox is not None
        exact, seq = self.agent.actors_kept, len(self.outbox.records) - 1
        why = "" if exact else f"no state was kept: the {self.role.name.lower()} begins anew"
        level = "state" if exact else "none"
        self.send(frames.TakenOver(exact, level, seq, 0, 0.1, 0.0, why))

    def resume(self, kept: Thing | None) -> None:
        assert self.outbox is not None
        if not self.answer_again() and self.agent.actors_kept:
            differs = Protection("none", differs="an answer came out differently")
            self.send(frames.Kept(0, differs))
        self.serve()

    def answer_again(self) -> bool:
        """Get to where the predecessor was. Whether what it had said came out again."""
        return True


class PolicyRunner(ActorRunner):
    """Action n follows from observation n and all before it."""

    role = Role.POLICY

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.memory = mix(self.agent.seed, 2)

    def answer(self, observation: int) -> int:
        self.memory = mix(self.memory, observation)
        return mix(self.memory, observation, 3)

    def answer_again(self) -> bool:
        same = True
        if self.agent.actors_kept:
            for held in self.outbox.records if self.outbox is not None else ():
                seen = self.at(Role.ENV, held.seq)
                if not held.flags & END and seen is not None:
                    same = same and self.answer(seen.value) == held.value
        return same

    def work(self) -> None:
        n = self.view
        seen = self.at(Role.ENV, n)
        if seen is None:
            self.await_on(self.peers[Role.ENV])
        elif seen.flags & END:
            self.publish(0, END)
            self.advance()
        elif self.agent.learns and n and self.at(Role.REWARD, n - 1) is None:
            self.await_on(self.peers[Role.REWARD])
        else:
            self.spend(Phase.ACT, n, self.act, seen.value)

    def act(self, observation: int) -> None:
        self.publish(self.answer(observation))
        self.advance()

    def straggled(self) -> None:
        seen = self.at(Role.ENV, self.view)
        if seen is not None and self.phase is Phase.ACT:
            self.publish(self.answer(seen.value))


class RewardRunner(ActorRunner):
    """Reward n follows from action n and observation n + 1."""

    role = Role.REWARD

    def work(self) -> None:
        n = self.view
        seen, action, led = (
            self.at(Role.ENV, n),
            self.at(Role.POLICY, n),
            self.at(Role.ENV, n + 1),
        )
        if seen is not None and seen.flags & END:
            self.publish(0, END)
            self.advance()
        elif action is None or led is None:
            if self.fenced:
                self.finish()
            else:
                self.await_on(self.peers[Role.ENV], self.peers[Role.POLICY])
        else:
            self.spend(Phase.REWARD, n, self.reward, action.value, led.value)

    def reward(self, action: int, led: int) -> None:
        self.publish(mix(action, led, 4))
        self.advance()

    def straggled(self) -> None:
        action, led = self.at(Role.POLICY, self.view), self.at(Role.ENV, self.view + 1)
        if action is not None and led is not None and self.phase is Phase.REWARD:
            self.publish(mix(action.value, led.value, 4))
