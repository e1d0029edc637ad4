"""Faults around the runners: of zygotes, the recorder, the machine, and the supervisor itself."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.simulation.faults import fault
from tests.simulation.recorder import RecorderProcess
from tests.simulation.runners import Zygote

if TYPE_CHECKING:
    from tests.simulation.world import World


@fault("zygote_kill")
def zygote_kill(world: World) -> bool:
    """A zygote dies; another one is made."""
    zygotes = world.living(Zygote)
    if zygotes:
        world.whole = False
        world.chance.choice(zygotes).signal(signal.SIGKILL)
    return bool(zygotes)


@fault("zygote_dies_forking")
def zygote_dies_forking(world: World) -> bool:
    """It dies when it is asked for the next runner, which may exist by then or not."""
    zygotes = world.living(Zygote)
    if zygotes:
        zygote = world.chance.choice(zygotes)
        assert isinstance(zygote, Zygote)
        world.whole = False
        zygote.dies_forking = world.chance.choice(("before", "after"))
    return bool(zygotes)


@fault("zygote_stop", rare=True)
def zygote_stop(world: World) -> bool:
    """A zygote is stopped for a while, or for good."""
    zygotes = world.living(Zygote)
    if not zygotes:
        return False
    world.whole = False
    zygote = world.chance.choice(zygotes)
    zygote.signal(signal.SIGSTOP)
    if world.chance.random() < 0.7:
        world.machine.loop.after(2.0, zygote.signal, signal.SIGCONT)
        world.machine.loop.after(2.0, world.mend)
    return True


@fault("fork_refused")
def fork_refused(world: World) -> bool:
    """The system has no process more to give."""
    zygotes = world.living(Zygote)
    if zygotes:
        zygote = world.chance.choice(zygotes)
        assert isinstance(zygote, Zygote)
        world.whole = False
        zygote.refusals += world.chance.choice((1, 1, 3))
    return bool(zygotes)


@fault("recorder_kill")
def recorder_kill(world: World) -> bool:
    """The recorder dies, between two commits or within one."""
    found = world.living(RecorderProcess)
    if not found:
        return False
    world.whole = False
    recorder = found[0]
    assert isinstance(recorder, RecorderProcess)
    if world.chance.random() < 0.5:
        recorder.die_between = True
    else:
        recorder.signal(signal.SIGKILL)
    return True


@fault("recorder_stop", rare=True)
def recorder_stop(world: World) -> bool:
    """The recorder is stopped for a while, or for good."""
    found = world.living(RecorderProcess)
    if found:
        world.whole = False
        found[0].signal(signal.SIGSTOP)
        if world.chance.random() < 0.5:
            world.machine.loop.after(3.0, found[0].signal, signal.SIGCONT)
            world.machine.loop.after(3.0, world.mend)
    return bool(found)


@fault("disk_full")
def disk_full(world: World) -> bool:
    """The disk is full, and mostly there is room again in time."""
    found = world.living(RecorderProcess)
    if not found:
        return False
    recorder = found[0]
    assert isinstance(recorder, RecorderProcess)
    world.whole = False
    recorder.fill()
    if world.chance.random() < 0.8:
        later = world.chance.choice((0.1, 1.0, 4.0))
        world.machine.loop.after(later, recorder.make_room)
        world.machine.loop.after(later, world.mend)
    return True


# ---------------------------------------------------------------- the machine and the supervisor


def _refuse(what: str) -> None:
    @fault(f"no_{what}", rare=True)
    def refuse(world: World) -> bool:
        """The next such call fails."""
        world.whole = False
        world.machine.refuse[what] = world.machine.refuse.get(what, 0) + 1
        return True


for name in ("memory", "pair", "pidfd", "logs", "reopen", "exec"):
    _refuse(name)


@fault("stall")
def stall(world: World) -> bool:
    """The supervisor alone is stopped; its agents go on."""
    seconds = world.chance.choice((0.1, 0.6, 3.0, 12.0))
    world.machine.loop.stopped_until = world.machine.now() + seconds
    world.machine.loop.after(seconds, world.mend)
    return True


@fault("suspend")
def suspend(world: World) -> bool:
    """The whole machine is."""
    seconds = world.chance.choice((0.1, 0.6, 3.0, 12.0))
    world.machine.loop.suspend(seconds)
    world.machine.loop.after(seconds, world.mend)
    return True


@fault("drain", rare=True)
def drain(world: World) -> bool:
    """Somebody asks for the end."""
    world.supervisor.request_drain("asked to")
    return True


@fault("kill_run", rare=True)
def kill_run(world: World) -> bool:
    """Somebody asks for the end at once."""
    world.supervisor.request_kill()
    return True


@fault("orphan", rare=True)
def orphan(world: World) -> bool:
    """The guardian is gone."""
    world.orphaned = True
    world.whole = False
    return True


@fault("no_image", rare=True)
def no_image(world: World) -> bool:
    """What an image imports is gone, for zygotes that start from now on."""
    world.broken_image = "gone"
    world.whole = False
    return True
