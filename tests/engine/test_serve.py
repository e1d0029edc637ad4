"""`dsec-kernel serve`: programs of every kind, good ones and hostile ones, over pipe and socket."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.engine import methods, rpc
from tests import watchdog
from tests.engine.talker import COMMAND, PATIENCE_S, connected, initialized, stdio

# ---------------------------------------------------------------- the protocol


def test_a_program_of_json_and_a_pipe(tmp_path: Path) -> None:
    argv = [sys.executable, "examples/engine_stdio.py", *COMMAND[:-1]]
    done = watchdog.run(argv, tmp_path, timeout_s=PATIENCE_S)
    lines = done.stdout.splitlines()
    assert lines[0] == "protocol 1" and lines[-1] == "exit code 0", done.stderr
    assert {"pole-000 running", "pole-001 running"} <= {*lines}
    assert any(line.startswith("event event.agent") for line in lines)


def test_what_comes_first_and_what_last() -> None:
    with stdio() as served:
        talker = served.talker
        assert talker.refused("agents.list")[0] == rpc.Code.NOT_INITIALIZED
        code, data = talker.refused("initialize", protocol=0)
        assert code == rpc.Code.VERSION and "older" in data["what"] and data["remedy"]
        assert talker.refused("initialize", protocol=1, process_id=2**22 + 1)[1]["where"] == (
            "process_id"
        )
        found = served.hello()
        assert found["protocol"] == 1 and set(found["capabilities"]["events"]) == {*methods.EVENTS}
        assert stat.S_IMODE(Path(found["handover"]).stat().st_mode) == 0o600
        assert talker.refused("initialize", protocol=1)[0] == rpc.Code.STATE
        assert talker.call("shutdown") == {}
        assert talker.refused("agents.list")[0] == rpc.Code.STATE
        talker.send(b'{"jsonrpc":"2.0","method":"exit"}\n')
        assert served.process.wait(PATIENCE_S) == 0
        assert not Path(found["folder"]).exists()


def test_an_exit_without_shutdown_is_no_success() -> None:
    with stdio() as served:
        served.talker.send(b'{"jsonrpc":"2.0","method":"exit"}\n')
        assert served.process.wait(PATIENCE_S) == 1


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_what_was_asked_before_the_end_is_answered(kind: str, tmp_path: Path) -> None:
    """`printf ... | dsec-kernel serve --stdio`: an end of input is no end of output."""
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocol": 1}}
    second = {"jsonrpc": "2.0", "id": "two", "method": "agents.list"}
    text = json.dumps(first) + "\n" + json.dumps(second) + "\n{"
    argv = [*COMMAND, "--stdio"]
    if kind == "file":
        (tmp_path / "in").write_text(text)
        with (tmp_path / "in").open() as source, (tmp_path / "out").open("wb") as sink:
            assert subprocess.run(argv, stdin=source, stdout=sink, timeout=60).returncode == 0
        out = (tmp_path / "out").read_text()
    else:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        out = done.stdout
    one, two, rest = map(json.loads, out.splitlines())
    assert one["result"]["protocol"] == 1 and two == {
        "jsonrpc": "2.0",
        "id": "two",
        "result": {"agents": []},
    }
    assert rest["error"]["code"] == rpc.Code.PARSE


def test_parameters_by_name_and_by_place(listening: Path) -> None:
    with initialized(listening) as talker:
        talker.send(b'{"jsonrpc":"2.0","id":"a","method":"agents.list","params":["nobody"]}\n')
        assert talker.reply("a")["error"]["data"]["what"] == "there is no run 'nobody'"
        code, data = talker.refused("agents.list", rum="x")
        assert code == rpc.Code.INVALID_PARAMS
        assert "rum" in data["what"] and data["remedy"] == "Known are run, sandbox"
        assert talker.refused("run.start", set=5)[1]["where"] == "set"
        talker.send(b'{"jsonrpc":"2.0","id":"b","method":"agents.list","params":[1,2,3]}\n')
        assert talker.reply("b")["error"]["code"] == rpc.Code.INVALID_PARAMS
        code, data = talker.refused("runs.start")
        assert code == rpc.Code.NO_METHOD and "run.start" in data["remedy"]
        assert talker.refused("events.subscribe", events=["event.x"])[1]["where"] == "events"
        assert talker.call("events.subscribe", events=["event.log"]) == {"events": ["event.log"]}


def test_the_fields_of_an_order_are_those_of_a_sandbox() -> None:
    from dsec.engine import talk

    order = {*talk.Order.__struct_fields__} - {"version"}
    assert order == {*methods.SandboxOpen.__struct_fields__} - {"sandbox"}


def test_the_reference_has_all_that_there_is() -> None:
    text = (watchdog.ROOT / "docs/ENGINE.md").read_text()
    for name, (params, result) in methods.METHODS.items():
        section = text.split(f"### `{name}`", 1)
        assert len(section) == 2, f"docs/ENGINE.md has no {name}"
        part = section[1].split("\n### ", 1)[0]
        fields = (*params.__struct_fields__, *result.__struct_fields__)
        for field in fields:
            assert f"`{field}`" in part, f"{name}: {field}"
    for event in methods.EVENTS:
        assert f"| `{event}` |" in text, event
    for code in rpc.Code:
        assert f"| {code.value} |" in text, code


# ---------------------------------------------------------------- the socket


def test_a_socket_is_for_its_user_only(listening: Path) -> None:
    assert stat.S_IMODE(listening.stat().st_mode) == 0o600
    assert [each.name for each in listening.parent.iterdir()] == ["k.sock"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be another user")
def test_another_user_is_told_so_even_if_he_can_connect(listening: Path) -> None:
    script = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.settimeout(60)\n"
        "os.chdir(os.path.dirname(sys.argv[1])); os.setgid(65534); os.setuid(65534)\n"
        "s.connect('k.sock')\n"
        "while data := s.recv(65536): sys.stdout.buffer.write(data)\n"
    )
    listening.chmod(0o666)
    listening.parent.chmod(0o755)
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, listening], capture_output=True, timeout=60
        )
    finally:
        listening.chmod(0o600)
    (line,) = done.stdout.splitlines()
    error = json.loads(line)["error"]
    assert error["code"] == rpc.Code.PEER and "user 65534" in error["data"]["what"]
    with initialized(listening) as talker:
        assert talker.call("agents.list") == {"agents": []}


def test_an_old_socket_is_replaced_and_a_living_one_is_not(listening: Path) -> None:
    done = subprocess.run([*COMMAND, "--socket", listening], capture_output=True, timeout=60)
    assert done.returncode == 3 and b"somebody listens" in done.stderr
    path = listening.parent / "old.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    process = subprocess.Popen([*COMMAND, "--socket", path])
    try:

        def there() -> bool:
            with contextlib.suppress(OSError), connected(path):
                return True
            return False

        watchdog.until(there, PATIENCE_S, "a kernel at the old socket")
        with initialized(path) as talker:
            talker.call("shutdown")
            talker.send(b'{"jsonrpc":"2.0","method":"exit"}\n')
            assert process.wait(PATIENCE_S) == 0
        assert not path.exists()
    finally:
        process.kill()
        process.wait()


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    done = subprocess.run([*COMMAND, "--socket", path], capture_output=True, timeout=60)
    assert done.returncode == 3 and b"no socket" in done.stderr
    assert path.read_text() == "mine"
    long = tmp_path / ("x" * 120)
    done = subprocess.run([*COMMAND, "--socket", long], capture_output=True, timeout=60)
    assert done.returncode == 3 and b"108 bytes" in done.stderr
    for wrong in (["--stdio", "--socket", path], []):
        done = subprocess.run([*COMMAND, *wrong], capture_output=True, timeout=60)
        assert done.returncode == 2 and b"Name one of" in done.stderr


# ---------------------------------------------------------------- hostile programs


def test_garbage_ends_nothing(listening: Path) -> None:
    dice = random.Random(1)
    with connected(listening) as bad, initialized(listening) as good:
        for _ in range(50):
            bad.send(dice.randbytes(1000).replace(b"\n", b"") + b"\n")
        while len(bad.nameless) < 50:  # each line has an answer of its own
            bad.read()
        assert good.call("agents.list") == {"agents": []}
        served = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocol": 1}}
        bad.send(json.dumps(served).encode() + b"\n")
        assert bad.reply(1)["result"]["protocol"] == 1


def test_a_line_without_an_end_takes_no_memory(listening: Path) -> None:
    """Nor does a length that somebody claims: there is none to believe."""
    with initialized(listening) as bad, initialized(listening) as good:
        chunk = b"Content-Length: 1073741824 " * 40_000
        for _ in range(64):
            bad.send(chunk)
        while not bad.nameless:
            bad.read()
        assert bad.nameless.pop()["error"]["code"] == rpc.Code.INVALID_REQUEST
        bad.send(b"\n")
        assert bad.call("agents.list") == {"agents": []}
        assert good.call("agents.list") == {"agents": []}


def test_a_program_that_does_not_read_holds_up_nobody(listening: Path) -> None:
    """It is not read from any more, and when it reads it has lost no answer."""
    with initialized(listening) as slow, initialized(listening) as good:
        os.set_blocking(slow.sink, False)
        line = b"[" + b"1," * 999 + b"1]\n"  # whose answer is much longer
        sent = stuck = 0
        rest = line
        while stuck < 20:
            try:
                rest = rest[os.write(slow.sink, rest) :]
                stuck = 0
                if not rest:
                    rest, sent = line, sent + 1
                    assert sent < 10_000, "it is read without an end"
            except BlockingIOError:
                # Answered after another look at all connections.
                assert good.call("agents.list") == {"agents": []}
                stuck += 1
        assert sent > 64
        found = 0
        while found < sent:
            assert select.select([slow.source], [], [], PATIENCE_S)[0]
            found += os.read(slow.source, 1 << 16).count(b"\n")


def test_batches_and_many_at_once(listening: Path) -> None:
    with initialized(listening) as talker:
        one = {"jsonrpc": "2.0", "method": "agents.list"}
        batch = [{**one, "id": i} for i in range(500)]
        lines = [json.dumps({**one, "id": f"s{i}"}) for i in range(3000)]
        talker.send((json.dumps(batch) + "\n" + "\n".join(lines) + "\n").encode())
        found: list[Any] = []
        rest = b""
        while len(found) < 3001:
            rest += os.read(talker.source, 1 << 16)
            *whole, rest = rest.split(b"\n")
            found += map(json.loads, whole)
        (together,) = (each for each in found if isinstance(each, list))
        assert sorted(each["id"] for each in together) == list(range(500))
        assert {each["id"] for each in found if isinstance(each, dict)} == {
            f"s{i}" for i in range(3000)
        }


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


def parameters(method: str) -> st.SearchStrategy[Any]:
    """Of a method: its own fields with any values, or anything."""
    fields = methods.METHODS[method][0].__struct_fields__
    return st.dictionaries(st.sampled_from(fields or ("x",)), values) | st.lists(values, max_size=3)


HARMLESS = sorted({*methods.METHODS} - {"exit", "shutdown", "run.start"})


@given(
    st.lists(
        st.sampled_from(HARMLESS).flatmap(lambda m: st.tuples(st.just(m), parameters(m))),
        max_size=8,
    )
)
def test_no_parameters_are_a_mistake_of_the_kernel_s(
    listening: Path, asked: list[tuple[str, Any]]
) -> None:
    with initialized(listening) as talker:
        for i, (method, params) in enumerate(asked):
            request = {"jsonrpc": "2.0", "id": i, "method": method, "params": params}
            talker.send(json.dumps(request).encode() + b"\n")
        for i in range(len(asked)):
            # What can't be decoded (half of a surrogate, a number without a place) has no id.
            while i not in talker.replies and not talker.nameless:
                talker.read()
            said = talker.replies[i] if i in talker.replies else talker.nameless.pop()
            error = said.get("error")
            assert error is None or error["code"] != rpc.Code.INTERNAL, (asked[i], error)
