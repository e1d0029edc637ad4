"""How two hosts find out that both have the token, without either of them sending it.

Pure. The client proves itself first: who can't gets nothing but the server's version and a random
number. Then the server does, so that nobody can play the server either. All further keys follow
from the token and both numbers, and are of this session only.
"""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from dsec.errors import FrameError, MachineError, VersionMismatch, WrongToken
from dsec.sml.remote.wire import (
    VERSION,
    AnyMessage,
    Challenge,
    Hello,
    Proof,
    Refused,
    raised,
    session_secret,
)

Kind = TypeVar("Kind")

NONCE_BYTES: Final = 32
TOKEN_BYTES_MIN: Final = 16
_REMEDY: Final = "python -c 'import secrets; print(secrets.token_hex(32))' > FILE; chmod 600 FILE"


class Keys(NamedTuple):
    """What a session has from its handshake.

    Attributes:
        control: of the digests of its frames.
        data: what `Transport.prepare` gets.
    """

    control: bytes
    data: bytes


def read_token(path: Path) -> bytes:
    """The token in a file, without what is blank around it.

    Raises:
        MachineError: the file can't be read, others may read it, or the token is too short.
    """
    try:
        mode = path.stat().st_mode
        token = path.read_bytes().strip()
    except OSError as error:
        raise MachineError(f"can't read the token in {path}: {error.strerror}", _REMEDY) from None
    if mode & 0o077:
        raise MachineError(f"others may read the token in {path}", f"chmod 600 {path}")
    if len(token) < TOKEN_BYTES_MIN:
        raise MachineError(
            f"the token in {path} has {len(token)} bytes; at least {TOKEN_BYTES_MIN} are needed",
            _REMEDY,
        )
    return token


class _Side:
    def __init__(self, token: bytes) -> None:
        self._token = token
        self._own = secrets.token_bytes(NONCE_BYTES)
        self._client = self._server = b""

    def _secret(self, purpose: bytes) -> bytes:
        return session_secret(self._token, purpose, self._client, self._server)

    @property
    def keys(self) -> Keys:
        """What the session has, once both have proven themselves."""
        return Keys(self._secret(b"control"), self._secret(b"data"))

    def _check(self, proof: Proof, purpose: bytes, who: str) -> None:
        if not hmac.compare_digest(proof.digest, self._secret(purpose)):
            raise WrongToken(f"{who} has another token (pool.token_file) than this host")


class ClientSide(_Side):
    """Who connects. Call `hello`, `answer`, `finish` in this order."""

    def hello(self) -> Hello:
        """The first message."""
        self._client = self._own
        return Hello(VERSION, self._own)

    def answer(self, message: AnyMessage) -> Proof:
        """The second. Raises VersionMismatch, or what else the server refuses for."""
        challenge = _expected(message, Challenge)
        _same_version(challenge.version)
        _check_nonce(challenge.nonce)
        self._server = challenge.nonce
        return Proof(self._secret(b"client"))

    def finish(self, message: AnyMessage) -> None:
        """The server's proof. Raises WrongToken."""
        self._check(_expected(message, Proof), b"server", "the peer")


class ServerSide(_Side):
    """Who is connected to. Call `challenge`, `welcome` in this order."""

    def challenge(self, message: AnyMessage) -> Challenge:
        """The answer to the first message. Raises VersionMismatch, FrameError."""
        hello = _expected(message, Hello)
        _same_version(hello.version)
        _check_nonce(hello.nonce)
        self._client, self._server = hello.nonce, self._own
        return Challenge(VERSION, self._own)

    def welcome(self, message: AnyMessage) -> Proof:
        """The answer to the second. Raises WrongToken."""
        self._check(_expected(message, Proof), b"client", "a peer")
        return Proof(self._secret(b"server"))


def _expected(message: AnyMessage, kind: type[Kind]) -> Kind:
    if isinstance(message, kind):
        return message
    if isinstance(message, Refused):
        if message.version != VERSION:
            _same_version(message.version)
        raise raised(message)
    raise FrameError(f"{type(message).__name__} where {kind.__name__} is due")


def _same_version(version: int) -> None:
    if version != VERSION:
        raise VersionMismatch(
            f"the peer speaks version {version} of the pool's protocol, this host {VERSION}: "
            "install the same dsec-kernel on both"
        )


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise FrameError(f"a number of {len(nonce)} bytes where {NONCE_BYTES} are due")
