"""JSON-RPC 2.0 without a socket: bytes in, requests and bytes out. Pure.

One message is one line: JSON in UTF-8 without a line feed, and a line feed behind it. So what is no
message ends at the next line feed, however long it is, and what follows is understood again; and
nobody has to believe a length. Nothing that comes in raises: each line is a request, or is answered
with an error. `Server` is the side that answers, `Client` the side that asks; what the methods are
is the affair of methods.py.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
BATCH_MAX = 1000


class Code(enum.IntEnum):
    """The numbers of errors: those of JSON-RPC, and ours from -32000 downwards."""

    PARSE = -32700
    INVALID_REQUEST = -32600
    NO_METHOD = -32601
    INVALID_PARAMS = -32602
    INTERNAL = -32603
    FAILED = -32000
    CONFIG = -32001
    NOT_INITIALIZED = -32002
    MACHINE = -32003
    UNKNOWN = -32004
    STATE = -32005
    VERSION = -32006
    ENDED = -32007
    PEER = -32008


class Data(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an error has beside its number: what is wrong, where, and what to do about it.

    `report` is the whole of it, where that is longer; `details` what a program can use.
    """

    what: str
    where: str = ""
    remedy: str = ""
    report: str = ""
    details: dict[str, Any] = {}


class Problem(Exception):
    """Why a request is not carried out."""

    def __init__(self, code: Code, what: str, where: str = "", remedy: str = "", **more: Any):
        super().__init__(what)
        self.code, self.data = code, Data(what, where, remedy, **more)


@dataclass(eq=False, slots=True)
class Request:
    """One request that came in. `params` are as they came: JSON, or None; `id` is None for a
    notification, which gets no answer."""

    method: str
    params: Raw | None
    id: Raw | None
    batch: _Batch | None = None
    answered: bool = False


@dataclass(eq=False, slots=True)
class _Batch:
    """Requests that came together and are answered together."""

    left: int
    replies: list[bytes]


class _Splitter:
    """Cuts what arrives into lines, none longer than `limit` bytes without its line feed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._skipping = False

    def cut(self, data: bytes) -> Iterator[bytes | None]:
        """The lines that are whole; None in the place of one that is too long."""
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            yield from self._take(data[begin:end])
            if not self._skipping:
                yield bytes(self._rest)
            self._rest.clear()
            self._skipping = False
            begin = end + 1
        yield from self._take(data[begin:])

    def _take(self, piece: bytes) -> Iterator[None]:
        if self._skipping:
            return
        if len(self._rest) + len(piece) > self._limit:
            self._skipping = True
            self._rest.clear()
            yield None
        else:
            self._rest += piece

    def rest(self) -> bytes:
        """What came without a line feed."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


_members = msgspec.json.Decoder(list[Raw])
_fields = msgspec.json.Decoder(dict[str, Raw])
_id = msgspec.json.Decoder(str | int | float | None)
_text = msgspec.json.Decoder(str)
_NULL = Raw(b"null")
encode = msgspec.json.encode


class _Error(msgspec.Struct, frozen=True):
    code: int
    message: str
    data: Data


_TITLES = {
    Code.PARSE: "parse error",
    Code.INVALID_REQUEST: "invalid request",
    Code.NO_METHOD: "method not found",
    Code.INVALID_PARAMS: "invalid params",
    Code.INTERNAL: "internal error",
    Code.FAILED: "failed",
    Code.CONFIG: "the configuration is wrong",
    Code.NOT_INITIALIZED: "not initialized",
    Code.MACHINE: "this machine can't",
    Code.UNKNOWN: "unknown name",
    Code.STATE: "not now",
    Code.VERSION: "no common version",
    Code.ENDED: "ended meanwhile",
    Code.PEER: "not for you",
}


class Server:
    """The side that is asked.

    Args:
        limit: bytes of the longest line that is read.
    """

    def __init__(self, limit: int = MESSAGE_BYTES_MAX) -> None:
        self._limit = limit
        self._splitter = _Splitter(limit)
        self._out: list[bytes] = []

    def receive(self, data: bytes) -> list[Request]:
        """What is to be done after these bytes; what is no request has been answered."""
        found: list[Request] = []
        for line in self._splitter.cut(data):
            if line is None:
                self._complain(self._too_long())
            elif line.strip():
                found += self._read(line)
        return found

    def end(self) -> None:
        """Nothing more comes: what is left without a line feed is no message."""
        if self._splitter.rest().strip():
            self._complain(
                Problem(Code.PARSE, "the last line has no end", remedy="End each with a line feed")
            )

    def answer(self, request: Request, result: Any) -> None:
        """Answer a request. A notification, and one that is answered, gets nothing."""
        self._reply(request, b'"result":' + encode(result))

    def refuse(self, request: Request, problem: Problem) -> None:
        """Answer with an error."""
        self._reply(request, _error(problem))

    def notify(self, method: str, params: Any) -> None:
        """Tell something that nobody asked for."""
        text = encode(params)
        self._out.append(b'{"jsonrpc":"2.0","method":"%s","params":%s}\n' % (method.encode(), text))

    def complain(self, problem: Problem) -> None:
        """Say what is wrong with a peer rather than with a request of it."""
        self._complain(problem)

    def outgoing(self) -> list[bytes]:
        """The lines that are to be sent, each once."""
        out, self._out = self._out, []
        return out

    # ------------------------------------------------------------ inside

    def _read(self, line: bytes) -> list[Request]:
        try:
            if not line.lstrip().startswith(b"["):
                request, reply = self._request(line, None)
                if reply:
                    self._out.append(reply + b"\n")
                return [request] if request is not None else []
            members = _members.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            self._complain(_unreadable(error))
            return []
        if not 1 <= len(members) <= BATCH_MAX:
            what = f"a batch of {len(members)} requests; from 1 to {BATCH_MAX} are one"
            self._complain(Problem(Code.INVALID_REQUEST, what))
            return []
        batch = _Batch(len(members), [])
        found: list[Request] = []
        for member in members:
            try:
                request, reply = self._request(bytes(member), batch)
            except (msgspec.DecodeError, RecursionError) as error:
                request, reply = None, _line(_NULL, _error(_unreadable(error)))
            if request is not None and request.id is not None:
                found.append(request)
                continue
            found += [request] if request is not None else []
            self._member(batch, reply)
        return found

    def _request(self, text: bytes, batch: _Batch | None) -> tuple[Request | None, bytes]:
        """The request of a JSON text, or the line that says why it is none.

        Raises:
            msgspec.DecodeError, RecursionError: it is no JSON.
        """
        try:
            fields = _fields.decode(text)
        except msgspec.ValidationError:
            msgspec.json.decode(text)  # is it JSON at all?
            problem = Problem(Code.INVALID_REQUEST, "a request is an object")
            return None, _line(_NULL, _error(problem))
        raw = fields.get("id")
        try:
            if raw is not None:
                _id.decode(raw)
        except msgspec.DecodeError:
            what = "an id is a text, a number or null"
            return None, _line(_NULL, _error(Problem(Code.INVALID_REQUEST, what, "id")))
        problem_ = _fault(fields)
        if problem_ is not None:
            return None, _line(raw if raw is not None else _NULL, _error(problem_))
        # A copy: what is Raw is a view of the whole line, and keeps it.
        params = Raw(bytes(fields["params"])) if "params" in fields else None
        return Request(
            _text.decode(fields["method"]),
            params,
            Raw(bytes(raw)) if raw is not None else None,
            batch,
        ), b""

    def _reply(self, request: Request, body: bytes) -> None:
        if request.answered or request.id is None:
            return
        request.answered = True
        line = _line(request.id, body)
        if request.batch is None:
            self._out.append(line + b"\n")
        else:
            self._member(request.batch, line)

    def _member(self, batch: _Batch, line: bytes) -> None:
        """One of a batch has its answer, or needs none."""
        batch.left -= 1
        if line:
            batch.replies.append(line)
        if not batch.left and batch.replies:
            self._out.append(b"[" + b",".join(batch.replies) + b"]\n")

    def _complain(self, problem: Problem) -> None:
        self._out.append(_line(_NULL, _error(problem)) + b"\n")

    def _too_long(self) -> Problem:
        return Problem(
            Code.INVALID_REQUEST,
            f"a line of more than {self._limit:,} bytes",
            remedy="Send less at once; what comes after the next line feed is read again",
        )


def _line(request_id: Raw, body: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%s,%s}' % (bytes(request_id), body)


def _error(problem: Problem) -> bytes:
    title = f"{_TITLES[problem.code]}: {problem.data.what}"
    return b'"error":' + encode(_Error(problem.code, title, problem.data))


def _unreadable(error: Exception) -> Problem:
    if isinstance(error, RecursionError):
        return Problem(Code.PARSE, "it is nested too deep")
    return Problem(Code.PARSE, str(error), remedy="One line is one JSON text in UTF-8")


def _fault(fields: dict[str, Raw]) -> Problem | None:
    """What an object lacks to be a request."""
    if bytes(fields.get("jsonrpc", b"")) != b'"2.0"':
        return Problem(Code.INVALID_REQUEST, 'it is "2.0" in every request', "jsonrpc")
    try:
        _text.decode(fields.get("method", b"null"))
    except msgspec.DecodeError:
        return Problem(Code.INVALID_REQUEST, "it is the name of a method", "method")
    params = bytes(fields.get("params", b"[]"))
    try:
        msgspec.json.decode(params)
    except (msgspec.DecodeError, RecursionError) as error:
        return Problem(Code.INVALID_REQUEST, str(error), "params")
    if params[:1] not in (b"[", b"{"):
        return Problem(Code.INVALID_REQUEST, "they are an object or an array", "params")
    return None


# ---------------------------------------------------------------- the side that asks


class _Refusal(msgspec.Struct, frozen=True):
    code: int
    message: str
    data: Data | None = None


class _Incoming(msgspec.Struct, frozen=True):
    id: int | None = None
    method: str | None = None
    params: Raw = _NULL
    result: Raw = _NULL
    error: _Refusal | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to request `id`: a result, or an error."""

    id: int
    result: Raw
    error: _Refusal | None


@dataclass(frozen=True, slots=True)
class Notice:
    """What was told without being asked for."""

    method: str
    params: Raw


class Client:
    """The side that asks."""

    def __init__(self) -> None:
        self._splitter = _Splitter(4 * MESSAGE_BYTES_MAX)
        self._decoder = msgspec.json.Decoder(_Incoming)
        self._last = 0

    def request(self, method: str, params: Any) -> tuple[int, bytes]:
        """The id of a new request, and its line."""
        self._last += 1
        given = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        return self._last, encode(given) + b"\n"

    def notification(self, method: str) -> bytes:
        """The line of a notification."""
        return encode({"jsonrpc": "2.0", "method": method}) + b"\n"

    def receive(self, data: bytes) -> list[Reply | Notice]:
        """What these bytes say.

        Raises:
            msgspec.DecodeError: what came is not of this protocol.
        """
        found: list[Reply | Notice] = []
        for line in self._splitter.cut(data):
            if line is None:
                raise msgspec.DecodeError("a line without an end")
            said = self._decoder.decode(line)
            if said.method is not None:
                found.append(Notice(said.method, Raw(bytes(said.params))))
            elif said.id is not None:
                found.append(Reply(said.id, Raw(bytes(said.result)), said.error))
        return found
