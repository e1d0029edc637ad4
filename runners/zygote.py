"""A zygote: a process that has imported the modules of one runtime image and forks runners.

`python -m dsec.runners.zygote --control FD --lifeline FD`, started by the kernel. It serves
Prepare and Fork frames one after the other until its control channel ends. Rule 1: it stays
single-threaded, for a fork copies one thread and the locks of all. Rule 2: it constructs nothing
of the user's, opens nothing that runners would share, and touches no accelerator: what it holds,
every runner has.

A runner is a grandchild: the process in between exits at once, so that the supervisor inherits
the runner and is the one to reap it.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dsec.errors import ChannelClosed, ChannelTimeout, FrameError
from dsec.ipc import proc
from dsec.ipc.channel import Channel
from dsec.ipc.frames import (
    AnyFrame,
    ErrorInfo,
    Fork,
    Forked,
    ForkFailed,
    ImportFailed,
    Prepare,
    Prepared,
)
from dsec.origin import MISMATCH, mismatch
from dsec.runners import bootstrap, holes, isolate, lookup
from dsec.runners.failure import EXIT_FAILED, UserCodeError, describe

IDLE_SLICE_S = 60.0
FORK_TIMEOUT_S = 20.0  # on a machine with a hundred processes for each core a fork takes seconds
FORK_DESCRIPTORS = 4
FORKS_AT_ONCE = 8

# With these in the image, every env, policy and reward runner would import our own side of the
# work again after the fork.
_ROLE_MODULES = ("dsec.runners.env_life", "dsec.runners.policy", "dsec.runners.reward")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the kernel closes the control channel.

    Returns:
        The exit code: 0 after the kernel's end of the channel was closed, EXIT_FAILED if what
        came over it was no frame for a zygote.
    """
    parser = argparse.ArgumentParser(prog="dsec.runners.zygote", description=__doc__)
    parser.add_argument("--control", type=int, required=True, help="descriptor of the channel")
    parser.add_argument("--lifeline", type=int, required=True, help="read end of the lifeline")
    options = parser.parse_args(argv)
    # The terminal's Ctrl-C reaches the whole process group; it is the kernel's to interpret.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        lifeline = isolate.Lifeline(options.lifeline)
    except isolate.OrphanedError as reason:
        _log(str(reason))
        return EXIT_FAILED
    os.close(options.lifeline)
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    channel = Channel.from_fd(options.control)
    if said := mismatch():
        # Before anything that comes is read: it may mean something else here.
        channel.send(ImportFailed("", "dsec", ErrorInfo(MISMATCH, said)))
        return EXIT_FAILED
    _Zygote(channel).serve()
    channel.close()
    os.close(lifeline.fd)
    return 0


_opened: set[int] = set()
"""Descriptors that imported modules opened, and take for theirs in every runner, too."""


class _Zygote:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def serve(self) -> None:
        with contextlib.suppress(ChannelClosed):
            while True:
                with contextlib.suppress(ChannelTimeout):
                    self._serve(*self._channel.recv(IDLE_SLICE_S))

    def _serve(self, frame: AnyFrame, fds: list[int]) -> None:
        """Answer one frame, or all the Fork frames that have come by now."""
        came = [(frame, fds)]
        answers: Sequence[AnyFrame]
        try:
            if isinstance(frame, Prepare) and not fds:
                answers = [prepare(frame)]
            else:
                with contextlib.suppress(ChannelTimeout):
                    while len(came) < FORKS_AT_ONCE:
                        came.append(self._channel.recv(0.0))
                answers = fork_runners([_checked(*each) for each in came])
        finally:
            for _, descriptors in came:
                for fd in descriptors:
                    os.close(fd)
        for answer in answers:
            self._channel.send(answer)


def _checked(frame: AnyFrame, fds: list[int]) -> tuple[Fork, list[int]]:
    if isinstance(frame, Fork) and len(fds) == FORK_DESCRIPTORS:
        return frame, fds
    raise FrameError(f"{type(frame).__name__} with {len(fds)} descriptors came to a zygote")


def prepare(frame: Prepare) -> Prepared | ImportFailed:
    """Import the image's modules in order, and leave the heap ready to be shared.

    A module that can't be imported ends it; what came before stays loaded.
    """
    before = set(isolate.open_descriptors())
    for name in frame.modules:
        error = _try_import(name)
        if error is not None:
            return ImportFailed(image=frame.image, module=name, error=error)
    if "gymnasium" in sys.modules:
        for name in _ROLE_MODULES:
            importlib.import_module(name)
        importlib.import_module("dsec.runners.warm").warm_up()
    for name in frame.warm:
        _warm(frame.image, name)
    if "torch" in sys.modules:
        _warm_torch()
    threads = isolate.thread_count()
    if threads > 1:
        _log(
            f"image {frame.image}: {threads} threads after the imports; a runner forked from a"
            " threaded process may find locks held for ever. A module starts them when it is"
            " imported: give the agents that need it an image of their own, or let it start its"
            " threads when it is first used."
        )
    _opened.update(set(isolate.open_descriptors()) - before)
    _log_open_files(frame.image)
    gc.collect()
    holes.fill()
    gc.freeze()
    proc.be_prompt()  # agents that step already are no reason to keep those waiting that start
    return Prepared(image=frame.image)


def _try_import(name: str) -> ErrorInfo | None:
    try:
        lookup.import_module(name, where="")
    except UserCodeError as fault:
        return describe(fault)
    except BaseException as error:
        # Even `raise KeyboardInterrupt` at module level is this module's fault and no more.
        return describe(error)
    return None


def _warm(image: str, name: str) -> None:
    """Import a module, or the one that holds a registered environment's class, if that can be done.

    Packages register their environments by name and import them when the first one is made: each
    runner by itself, if it isn't done here. Whatever fails now fails again in the runner, which
    has the words for it and an agent to put them to.
    """
    module = name
    if (gymnasium := sys.modules.get("gymnasium")) is not None and name in gymnasium.registry:
        entry = gymnasium.registry[name].entry_point
        if not isinstance(entry, str):
            return  # registered with a class or function: its module is imported
        module = entry.partition(":")[0]
    elif not name.replace(".", "_").isidentifier():
        return  # an id that nobody has registered, or one without its version
    if (error := _try_import(module)) is not None:
        _log(f"image {image}: {name} is not warm: {error.type}: {error.message}")


def _warm_torch() -> None:
    """One forward, backward and optimizer step, so that runners share what torch sets up lazily.

    Without it each runner pays for it with a hundred megabytes and a second of its own.
    """
    import torch  # a core install has no torch; this image does

    torch.set_num_threads(1)
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.zeros(1, 2)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def fork_runners(wanted: Sequence[tuple[Fork, Sequence[int]]]) -> list[Forked | ForkFailed]:
    """Fork runners that belong to the supervisor. One process in between serves all of them, for
    a fork of this process costs more than anything else at the start of a runner.

    Args:
        wanted: which runners, each with its control socket, lifeline, stdout and stderr; the caller
            closes them afterwards.

    Returns:
        For each, Forked with the runner's pid, or ForkFailed with the reason and the remedy. In a
        runner this function doesn't return.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    try:
        try:
            between = os.fork()
        except OSError as error:
            why = _why_not(error.errno or 0)
            return [ForkFailed(frame.name, frame.epoch, why) for frame, _ in wanted]
        if between == 0:
            _between(wanted, writing)
        os.close(writing)
        writing = -1
        pids = _read_bounded(reading)
        _reap(between)
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    pids += [-errno.EIO] * (len(wanted) - len(pids))
    return [
        Forked(frame.name, frame.epoch, pid)
        if pid > 0
        else ForkFailed(frame.name, frame.epoch, _why_not(-pid))
        for (frame, _), pid in zip(wanted, pids, strict=True)
    ]


def _between(wanted: Sequence[tuple[Fork, Sequence[int]]], writing: int) -> None:
    """The middle process: fork the runners, say their pids, exit. Never returns."""
    own_pid = os.getpid()
    proc.be_prompt()
    try:
        for frame, fds in wanted:
            try:
                runner = os.fork()
            except OSError as error:
                runner = -(error.errno or errno.EAGAIN)
            if runner == 0:
                bootstrap.main(own_pid, frame.supervisor_pid, fds, _opened)
            os.write(writing, b"%d\n" % runner)
        os._exit(0)
    finally:
        os._exit(EXIT_FAILED)


def _read_bounded(reading: int) -> list[int]:
    """The pids or negative errnos that the middle process wrote until it left, or until it has
    said nothing for long: then -ETIMEDOUT is the last."""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    text = b""
    while poll.poll(FORK_TIMEOUT_S * 1000):
        if not (part := os.read(reading, 4096)):
            return [int(line) for line in text.split()]
        text += part
    return [*(int(line) for line in text.split()), -errno.ETIMEDOUT]


def _reap(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(FORK_TIMEOUT_S * 1000):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    finally:
        os.close(pidfd)


def _why_not(code: int) -> str:
    said = f"can't fork: {os.strerror(code)}"
    if code == errno.EAGAIN:
        return (
            f"{said}. The limit on processes is reached: raise it (`ulimit -u`, TasksMax= of the"
            " systemd unit, --pids-limit of the container), or run fewer agents"
        )
    if code == errno.ENOMEM:
        return f"{said}. Run fewer agents, or give the machine more memory"
    return said


def _log_open_files(image: str) -> None:
    """Say which files the imports left open: runners don't inherit them."""
    for fd in sorted(_opened):
        target = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
        if target.startswith("/") and not target.startswith(("/proc", "/dev", "/memfd")):
            _log(f"image {image}: an import left {target} open; runners don't inherit it")


def _log(text: str) -> None:
    sys.stderr.write(f"dsec zygote {os.getpid()}: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
