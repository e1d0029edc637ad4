"""Faults of runners: by their own code, from outside, and in what they say."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from dsec.ipc import frames
from dsec.ipc.frames import ErrorInfo, Phase, Protection
from tests.simulation.env import EnvRunner
from tests.simulation.faults import fault, victim
from tests.simulation.process import Process
from tests.simulation.recorder import RecorderProcess
from tests.simulation.things import Memory

if TYPE_CHECKING:
    from tests.simulation.world import World


@fault("segv")
def segv(world: World) -> bool:
    """User code crashes, and the handler says so."""
    runner = victim(world)
    if runner is not None:
        runner.crash(world.chance.choice((signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE)))
    return runner is not None


@fault("segv_unsaid")
def segv_unsaid(world: World) -> bool:
    """It crashes where no handler runs."""
    runner = victim(world)
    if runner is not None:
        runner.crash(signal.SIGSEGV, handled=False)
    return runner is not None


@fault("abort_sent")
def abort_sent(world: World) -> bool:
    """Somebody else sent the signal, which counts against no step."""
    runner = victim(world)
    if runner is not None:
        runner.crash(signal.SIGABRT, sender=77)
    return runner is not None


@fault("exit")
def leaves(world: World) -> bool:
    """User code calls os._exit."""
    runner = victim(world)
    if runner is not None:
        runner.exit(world.chance.choice((0, 1, 3, 70)))
    return runner is not None


@fault("exit_for_good", rare=True)
def leaves_for_good(world: World) -> bool:
    """With the code that asks for no restart."""
    runner = victim(world)
    if runner is not None:
        runner.exit(125)
    return runner is not None


@fault("raise")
def raises(world: World) -> bool:
    """User code raises."""
    runner = victim(world)
    if runner is not None:
        phase = runner.phase or Phase.STEP
        runner.fail(ErrorInfo("ValueError", "no"), phase, runner.view)
    return runner is not None


@fault("raise_lookup", rare=True)
def raises_lookup(world: World) -> bool:
    """What the configuration names is not there."""
    runner = victim(world)
    if runner is not None:
        world.whole = False
        runner.fail(ErrorInfo("NameNotFound", "no such", lookup=True), Phase.CONSTRUCT, -1)
    return runner is not None


@fault("hang")
def hangs(world: World) -> bool:
    """User code never comes back, from where it is or from where it goes next."""
    runner = victim(world)
    if runner is not None:
        runner.hang()
    return runner is not None


@fault("slow")
def slow(world: World) -> bool:
    """The next phase takes longer than usual, near its deadline or beyond it."""
    runner = victim(world)
    if runner is not None:
        runner.slow_s = world.chance.choice((0.3, 1.0, 1.9, 2.2))
    return runner is not None


@fault("torn")
def torn(world: World) -> bool:
    """It is killed between the payload and the tail of its next record."""
    runner = victim(world, serving=True)
    if runner is not None:
        runner.torn_next = True
    return runner is not None


# ---------------------------------------------------------------- a runner, from outside


@fault("kill")
def kill(world: World) -> bool:
    """SIGKILL from nobody knows where."""
    runner = victim(world)
    if runner is not None:
        runner.signal(signal.SIGKILL)
    return runner is not None


@fault("stop")
def stop(world: World) -> bool:
    """SIGSTOP, and mostly SIGCONT some time later."""
    runner = victim(world)
    if runner is not None:
        runner.signal(signal.SIGSTOP)
        if world.chance.random() < 0.7:
            later = world.chance.choice((0.02, 0.5, 3.0, 8.0))
            world.machine.loop.after(later, runner.signal, signal.SIGCONT)
            world.machine.loop.after(later, world.mend)
    return runner is not None


@fault("leave_child")
def leave_child(world: World) -> bool:
    """User code starts a program, which outlives it."""
    runner = victim(world)
    if runner is None:
        return False
    other_group = world.chance.random() < 0.5
    child = Process(world.machine, runner.pid, "child", 0 if other_group else runner.group)
    child.marks = runner.pid
    if world.chance.random() < 0.3 and runner.channel is not None:
        child.held.append(runner.channel.hold())  # it was left open across the fork
    if world.chance.random() < 0.3:
        child.after(world.chance.random(), child.exit, 0)
    return True


# ---------------------------------------------------------------- what a runner says


@fault("nonsense")
def nonsense(world: World) -> bool:
    """Bytes that are no frame."""
    runner = victim(world)
    if runner is not None:
        runner.send_bytes(b"\xc1" + bytes(world.chance.randrange(20)))
    return runner is not None


@fault("out_of_turn")
def out_of_turn(world: World) -> bool:
    """A frame that may not come now."""
    runner = victim(world)
    if runner is None:
        return False
    said: list[frames.AnyFrame] = [
        frames.Hello(runner.pid),
        frames.Constructed(b"spaces", {0: 4096, 1: 4096, 2: 4096}),
        frames.Ready(),
        frames.Done(runner.role, 3),
        frames.Prepared("base"),
        frames.Wired("a-0"),
        frames.Kept(4096, Protection("state")),
        frames.Go(),
    ]
    if (
        runner.serving
    ):  # a standby that lies about having taken over is believed, and compared later
        said.append(frames.TakenOver(True, "state", 3, 0, 0.0, 0.0))
    runner.send(world.chance.choice(said))
    return True


@fault("hang_up")
def hang_up(world: World) -> bool:
    """It closes its control channel, and lives on."""
    runner = victim(world)
    if runner is not None:
        runner.hang_up()
        runner.hung = world.chance.random() < 0.7
        runner.exit(3) if not runner.hung else None
    return runner is not None


@fault("bad_word")
def bad_word(world: World) -> bool:
    """Its progress word is none."""
    runner = victim(world, serving=True)
    if runner is None or runner.outbox is None:
        return False
    runner.outbox.word = (77, world.machine.now(), 1)
    runner.hung = True
    return True


@fault("bad_kept")
def bad_kept(world: World) -> bool:
    """What it says that it keeps its state in could be resized."""
    runner = victim(world, EnvRunner, serving=True)
    if runner is None:
        return False
    file = Memory("kept", runner.role, 4096)
    file.sealed = False
    runner.send(frames.Kept(4096, Protection("state")), file)
    return True


@fault("unprotected")
def unprotected(world: World) -> bool:
    """Its state can't be kept any more."""
    runner = victim(world, EnvRunner, serving=True)
    if runner is not None:
        runner.send(frames.Kept(0, Protection("none", notes=("too dear",))))
    return runner is not None


@fault("other_spaces")
def other_spaces(world: World) -> bool:
    """The next one is constructed with other spaces."""
    runner = victim(world, EnvRunner)
    if runner is not None:
        runner.agent.others += world.chance.choice((1, 1, 2))
    return runner is not None


@fault("unfaithful")
def unfaithful(world: World) -> bool:
    """What is restored the next time is not what was captured."""
    runner = victim(world, EnvRunner)
    if runner is not None:
        runner.agent.unfaithful += 1
    return runner is not None


@fault("poison")
def poison(world: World) -> bool:
    """A step that kills whoever tries it."""
    runner = victim(world, EnvRunner, serving=True)
    if runner is not None:
        runner.agent.fatal[runner.view + world.chance.choice((0, 1, 3))] = world.chance.choice(
            (1, 2, 9)
        )
    return runner is not None


@fault("dies_in_replay")
def dies_in_replay(world: World) -> bool:
    """A successor dies while it does again what was done."""
    runner = victim(world)
    if runner is not None:
        runner.agent.fatal_replays += world.chance.choice((1, 1, 2, 5))
    return runner is not None


@fault("dies_in_close")
def dies_in_close(world: World) -> bool:
    """Its work is done, and its end fails."""
    runner = victim(world)
    if runner is not None:
        runner.agent.fatal_closes += 1
    return runner is not None


@fault("corrupt")
def corrupt(world: World) -> bool:
    """A ring holds what its writer may not write, and the recorder sees it."""
    runner = victim(world, serving=True)
    recorders = world.living(RecorderProcess)
    if runner is None or not recorders:
        return False
    recorder = recorders[0]
    assert isinstance(recorder, RecorderProcess)
    return recorder.see_corrupt(runner.agent.name, runner.role)
