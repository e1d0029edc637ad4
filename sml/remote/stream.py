"""A session of the control plane as two asyncio streams: frames in, frames out, with limits.

Owns the bytes between a socket and wire.py, and the handshake's conversation. Knows nothing of what
is asked in a session.
"""

from __future__ import annotations

import asyncio
import contextlib

from dsec.errors import DsecError, FrameError, PeerGone, RemotePoolError
from dsec.sml.remote.handshake import ClientSide, Keys, ServerSide
from dsec.sml.remote.wire import LENGTH, AnyMessage, Envelope, Framer, refusal

HANDSHAKE_S = 5.0
_CLIENT, _SERVER = b"client", b"server"


class Stream:
    """One end of a session.

    Args:
        server: whether this end was connected to.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, server: bool
    ) -> None:
        self._reader, self._writer = reader, writer
        own, other = (_SERVER, _CLIENT) if server else (_CLIENT, _SERVER)
        self._out, self._in = Framer(own), Framer(other)

    @property
    def peer(self) -> str:
        """Address of the other end, to be printed."""
        found = self._writer.get_extra_info("peername")
        return f"{found[0]}:{found[1]}" if isinstance(found, tuple) else "a peer"

    @property
    def local_host(self) -> str:
        """The address of this machine by which the other end is reached."""
        return str(self._writer.get_extra_info("sockname")[0])

    async def send(self, message: AnyMessage, call: int = 0) -> None:
        """Send a message. Raises PeerGone, FrameError."""
        frame = self._out.pack(Envelope(call, message))
        try:
            self._writer.write(frame)
            await self._writer.drain()
        except OSError as error:
            raise PeerGone(f"{self.peer} is gone: {error}") from None

    async def receive(self, limit_s: float) -> Envelope:
        """The next message.

        Raises:
            PeerGone: the other end has closed, or says nothing for `limit_s`.
            FrameError: what came is no message.
        """
        try:
            async with asyncio.timeout(limit_s):
                head = await self._reader.readexactly(LENGTH.size)
                rest = await self._reader.readexactly(self._in.length(head))
        except TimeoutError:
            raise PeerGone(f"{self.peer} has said nothing for {limit_s:g} s") from None
        except (OSError, EOFError) as error:
            raise PeerGone(f"{self.peer} is gone: {error}") from None
        return self._in.unpack(rest)

    def secure(self, keys: Keys) -> None:
        """From now on every frame has a digest."""
        self._out.secure(keys.control)
        self._in.secure(keys.control)

    async def close(self) -> None:
        """Close it. Idempotent."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def greet(stream: Stream, token: bytes) -> Keys:
    """The client's handshake. Raises WrongToken, VersionMismatch, PeerGone, FrameError."""
    side = ClientSide(token)
    await stream.send(side.hello())
    await stream.send(side.answer((await stream.receive(HANDSHAKE_S)).message))
    side.finish((await stream.receive(HANDSHAKE_S)).message)
    stream.secure(side.keys)
    return side.keys


async def admit(stream: Stream, token: bytes) -> Keys:
    """The server's handshake. The peer is told why it is refused, and nothing else.

    Raises:
        WrongToken, VersionMismatch, PeerGone, FrameError.
    """
    side = ServerSide(token)
    try:
        await stream.send(side.challenge((await stream.receive(HANDSHAKE_S)).message))
        welcome = side.welcome((await stream.receive(HANDSHAKE_S)).message)
    except RemotePoolError as error:
        with contextlib.suppress(DsecError):
            await stream.send(refusal(error))
        raise
    except FrameError as error:
        raise FrameError(f"{stream.peer}: {error}") from None
    await stream.send(welcome)
    stream.secure(side.keys)
    return side.keys
