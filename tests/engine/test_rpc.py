"""The protocol without a socket: what is answered, in which words, whatever comes in."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.engine import rpc

ECHO = "echo"


def served(chunks: list[bytes], limit: int = 2000) -> list[Any]:
    """What a server says that knows one method, which answers with its parameters."""
    server = rpc.Server(limit)
    for chunk in chunks:
        for request in server.receive(chunk):
            if request.method == ECHO:
                server.answer(request, request.params)
            else:
                server.refuse(request, rpc.Problem(rpc.Code.NO_METHOD, request.method))
    server.end()
    lines = server.outgoing()
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    return [json.loads(line) for line in lines]


def codes(replies: list[Any]) -> list[int]:
    return [each["error"]["code"] for each in replies]


def ask(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": ECHO, **fields}).encode() + b"\n"


@pytest.mark.parametrize(
    "request_id", [0, -7, 2**70, 1.5, "", 'a\u00e9\n"', "\U0001f600", None], ids=repr
)
def test_an_id_comes_back_as_it_was(request_id: Any) -> None:
    assert served([ask(id=request_id, params=[1])]) == [
        {"jsonrpc": "2.0", "id": request_id, "result": [1]}
    ]


@pytest.mark.parametrize("request_id", [True, [], {}, [1]], ids=repr)
def test_what_is_no_id_is_refused(request_id: Any) -> None:
    (reply,) = served([ask(id=request_id)])
    assert reply["id"] is None and reply["error"]["code"] == -32600
    assert reply["error"]["data"] == {
        "what": "an id is a text, a number or null",
        "where": "id",
    }


def test_a_notification_has_no_answer() -> None:
    assert served([ask(params={"a": 1}), ask(method="none")]) == []


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"nonsense", -32700),
        (b"\xff\xfe", -32700),
        (b'{"id":"\xff","jsonrpc":"2.0","method":"echo"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"echo"} {}', -32700),
        (b"[" * 100_000, -32700),
        (b'{"a":' * 100_000, -32700),
        (b"5", -32600),
        (b"null", -32600),
        (b'"echo"', -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"echo"}', -32600),
        (b'{"id":1,"method":"echo"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"echo","params":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"echo","params":["\xff"]}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"none"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"result":5}', -32600),
        (b"[]", -32600),
        (b"[" + b"1," * 1000 + b"1]", -32600),
    ],
    ids=lambda value: str(value[:40]) if isinstance(value, bytes) else str(value),
)
def test_what_is_no_request_has_one_answer(line: bytes, code: int) -> None:
    replies = served([line + b"\n", ask(id=2, params=[])], limit=1_000_000)
    assert codes(replies[:-1]) == [code] and replies[0]["error"]["data"]["what"]
    assert replies[-1]["result"] == [], "and what follows is understood"


def test_a_batch_is_answered_together() -> None:
    server = rpc.Server()
    batch = [
        {"jsonrpc": "2.0", "id": 1, "method": ECHO, "params": [1]},
        {"jsonrpc": "2.0", "method": ECHO},
        7,
        {"jsonrpc": "2.0", "id": "b", "method": ECHO, "params": [2]},
    ]
    first, note, second = server.receive(json.dumps(batch).encode() + b"\n")
    assert note.id is None
    server.answer(note, 5)
    server.answer(second, "late")
    assert server.outgoing() == []
    server.refuse(first, rpc.Problem(rpc.Code.FAILED, "no"))
    server.answer(first, "twice")
    (line,) = server.outgoing()
    wrong, late, refused = json.loads(line)
    assert wrong["error"]["code"] == -32600 and wrong["id"] is None
    assert late == {"jsonrpc": "2.0", "id": "b", "result": "late"}
    assert refused["id"] == 1 and refused["error"]["data"]["what"] == "no"
    assert server.receive(json.dumps([batch[1]] * 3).encode() + b"\n") and not server.outgoing()


def test_a_long_line_is_refused_once_and_never_kept() -> None:
    replies = served([b"x" * 700] * 50 + [b"\n", ask(id=1, params=[])])
    assert codes(replies[:-1]) == [-32600] and replies[-1]["result"] == []
    server = rpc.Server(1000)
    for _ in range(1000):
        server.receive(b"[" * 100_000)
    assert len(server.outgoing()) == 1
    assert len(server._splitter._rest) == 0
    exact = ask(id=1, params=["y" * 900]).strip()
    assert "result" in served([exact + b"\n"], limit=len(exact))[0]
    assert codes(served([exact + b"\n"], limit=len(exact) - 1)) == [-32600]


def test_a_last_line_without_an_end_is_no_message() -> None:
    assert codes(served([ask(id=1).strip()])) == [-32700]
    assert served([b"\n  \r\n\t"]) == []


member = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
requests = st.builds(
    lambda fields, drop: {
        key: value
        for key, value in {"jsonrpc": "2.0", "method": ECHO, **fields}.items()
        if key not in drop
    },
    st.fixed_dictionaries({}, optional={"id": member, "params": member, "method": member}),
    st.sets(st.sampled_from(["jsonrpc", "method", "id"]), max_size=1),
)
lines = st.one_of(
    st.binary(max_size=200),
    requests.map(lambda each: json.dumps(each).encode()),
    st.lists(requests | member, max_size=5).map(lambda each: json.dumps(each).encode()),
)


@given(st.lists(lines, max_size=8), st.randoms(use_true_random=False))
def test_however_bytes_are_cut_the_answers_are_the_same(
    parts: list[bytes], dice: random.Random
) -> None:
    """In which order they come may depend on it: what can't be read is answered first."""
    data = b"\n".join(parts) + b"\n"
    cuts = sorted(dice.randrange(len(data) + 1) for _ in range(dice.randrange(30)))
    places = [0, *cuts, len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    whole = served([data], limit=150)
    for chunks in (pieces, [data[i : i + 1] for i in range(len(data))]):
        assert Counter(map(json.dumps, served(chunks, limit=150))) == Counter(
            map(json.dumps, whole)
        )
    for reply in whole:
        for each in reply if isinstance(reply, list) else [reply]:
            assert each["jsonrpc"] == "2.0" and "id" in each
            assert ("result" in each) != ("error" in each)


@given(st.lists(requests, max_size=5))
def test_each_request_with_an_id_has_one_answer(asked: list[dict[str, Any]]) -> None:
    data = b"".join(json.dumps(each).encode() + b"\n" for each in asked)
    silent = sum("id" not in each and is_sound(each) for each in asked)
    assert len(served([data], limit=100_000)) == len(asked) - silent


def is_sound(asked: dict[str, Any]) -> bool:
    return (
        "jsonrpc" in asked
        and isinstance(asked.get("method"), str)
        and isinstance(asked.get("params", []), list | dict)
    )


@given(st.binary(max_size=300), st.integers(1, 20))
def test_a_client_takes_any_bytes_for_what_they_are(data: bytes, size: int) -> None:
    """It raises one kind of error, whatever comes; never another."""
    client = rpc.Client()
    try:
        for i in range(0, len(data), size):
            client.receive(data[i : i + size])
    except rpc.msgspec.DecodeError:
        return
    assert b"\n" not in data


def test_a_client_knows_its_answers() -> None:
    client, server = rpc.Client(), rpc.Server()
    number, line = client.request(ECHO, {"a": [1]})
    (request,) = server.receive(line + client.notification("exit"))[:1]
    server.notify("event.note", {"b": 2})
    server.refuse(request, rpc.Problem(rpc.Code.CONFIG, "no", "x", "do", report="long"))
    notice, reply = client.receive(b"".join(server.outgoing()))
    assert isinstance(notice, rpc.Notice) and isinstance(reply, rpc.Reply)
    assert (notice.method, bytes(notice.params)) == ("event.note", b'{"b":2}')
    assert reply.id == number and reply.error is not None
    assert reply.error.data == rpc.Data("no", "x", "do", "long")
