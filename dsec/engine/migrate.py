"""Asking a host to go on with an agent of a run: `dsec-kernel migrate`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from dsec.engine import identity
from dsec.errors import LocalError, MachineError, RunDirAbsent
from dsec.sml.remote import wire
from dsec.sml.remote.address import host_port
from dsec.sml.remote.handshake import read_token
from dsec.sml.remote.peer import Peer
from dsec.sml.remote.tcp import TcpTransport

POLL_S: Final = 0.05


def migrate(agent: Path, target: str, token_file: Path, wait_s: float) -> int:
    """Have it moved, and wait until it is; returns the epoch under which it goes on.

    Args:
        agent: the run directory and the agent's name below it.

    Raises:
        RunDirAbsent: no run has been there.
        LocalError: no such address, run or agent.
        MachineError: the token can't be read, or it took too long.
        RemotePoolError: the host can't be reached, or refuses.
    """
    run_id = identity.read(agent.parent).id
    if not run_id:
        raise RunDirAbsent(
            f"there is no run in {agent.parent} that can be moved",
            "Name the agent as RUN_DIR/AGENT, where RUN_DIR holds the kernel.json of its run",
        )
    try:
        host, port = host_port(target)
    except ValueError:
        raise LocalError(f"expected host:port, as in 10.0.0.2:7070, not {target}") from None
    return asyncio.run(_ask(host, port, read_token(token_file), run_id, agent.name, wait_s))


async def _ask(host: str, port: int, token: bytes, run: str, agent: str, wait_s: float) -> int:
    transport = await TcpTransport.open("127.0.0.1")
    try:
        peer = await Peer.connect(host, port, token, transport)
        try:
            until = time.monotonic() + wait_s
            while True:
                asked = wire.Ask({"do": "move", "run": run, "agent": agent})
                said = (await peer.ask(asked, wire.Told)).what
                if said["state"] == "taken":
                    return int(said["epoch"])
                if time.monotonic() > until:
                    raise MachineError(
                        f"{agent} was {said['state']} and is not taken after {wait_s:g} s",
                        "Is its run still going on, and in contact with that host?",
                    )
                await asyncio.sleep(POLL_S)
        finally:
            await peer.close()
    finally:
        await transport.close()
