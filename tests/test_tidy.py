"""The style guide as a test: each rule of docs/STYLE.md applied to this repository.

Owns the exceptions (each with its reason) and the proof, on small bad snippets, that every check
can fail. The checks themselves are in tidy.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tidy

ROOT = Path(__file__).resolve().parent.parent
TEXT_SUFFIXES = {
    ".py",
    ".pyi",
    ".c",
    ".h",
    ".proto",
    ".md",
    ".toml",
    ".yaml",
    ".txt",
    ".svg",
    ".in",
    "",
}

BANNED_CALLS = ("print", "time.sleep", "breakpoint", "os.system", "pickle.loads", "pickle.load")
# (file, call) -> why it has a place there after all
CALLS_ALLOWED: dict[tuple[str, str], str] = {
    (
        "failover/codecs/pickled.py",
        "pickle.loads",
    ): "what the same role of the same agent wrote, and"
    " only where the self-check has proven it faithful",
}
# module -> why it lives although no code names it
ALIVE: dict[str, str] = {
    "dsec.ipc.async_reader": "for a program that embeds the kernel and reads rings in its event"
    " loop; the wake-up protocol has to be whole for it",
}
# file -> why an exception may vanish there
SWALLOW_ALLOWED = {
    "runners/bootstrap.py": "a runner on its way out by _exit must not be held up by its streams",
}


def load() -> dict[str, str]:
    sources = {}
    for path in tidy.project_files(ROOT):
        if path.suffix in TEXT_SUFFIXES and path.name != "LICENSE":
            sources[path.relative_to(ROOT).as_posix()] = path.read_text()
    return sources


SOURCES = load()
PYTHON = {path: text for path, text in SOURCES.items() if path.endswith(".py")}
C = {path: text for path, text in SOURCES.items() if path.endswith((".c", ".h"))}
ROOMS = dict(tidy.in_rooms(SOURCES))


def judge(check: Callable[[str, str], list[str]], sources: dict[str, str]) -> None:
    problems = [problem for path, text in sources.items() for problem in check(path, text)]
    assert not problems, "\n" + "\n".join(problems)


def test_files_are_short() -> None:
    judge(tidy.too_long, PYTHON | C)


def test_functions_are_short() -> None:
    judge(tidy.long_functions, PYTHON)
    judge(tidy.long_c_functions, C)


def test_lines_of_c_are_short() -> None:
    judge(tidy.long_lines, C)


def test_the_kernel_is_small() -> None:
    own = {path: text for path, text in ROOMS.items() if path.startswith("kernel/")}
    lines = sum(tidy.code_lines(text) for text in own.values())
    assert lines <= tidy.KERNEL_LINES_MAX, f"kernel/ has {lines} lines: a microkernel stays small"


def test_every_file_says_what_it_owns() -> None:
    judge(tidy.headless, PYTHON | C)


def test_public_names_are_documented() -> None:
    judge(tidy.undocumented, ROOMS)


def test_nothing_prints_or_sleeps_in_the_rooms() -> None:
    problems = []
    for path, text in ROOMS.items():
        banned = [call for call in BANNED_CALLS if (path, call) not in CALLS_ALLOWED]
        problems += tidy.banned_calls(path, text, banned)
    for path, call in CALLS_ALLOWED:
        if not tidy.banned_calls(path, ROOMS.get(path, ""), [call]):
            problems.append(f"{path}: {call} is allowed, but not there: drop the exception")
    assert not problems, "\n" + "\n".join(problems)


def test_no_test_waits_by_sleeping() -> None:
    tests = {path: text for path, text in PYTHON.items() if path.startswith("tests/")}
    judge(lambda path, text: tidy.banned_calls(path, text, ["time.sleep"]), tests)


def test_no_exception_is_swallowed() -> None:
    judge(tidy.swallowed, {p: t for p, t in PYTHON.items() if p not in SWALLOW_ALLOWED})
    for path, reason in SWALLOW_ALLOWED.items():
        assert tidy.swallowed(path, PYTHON[path]), f"{path}: drop the exception: {reason}"


def test_no_leftovers() -> None:
    judge(tidy.leftovers, SOURCES)


def test_no_paths_of_one_machine() -> None:
    judge(tidy.machine_paths, {p: t for p, t in SOURCES.items() if p != "tests/test_tidy.py"})


def test_sync_points_come_in_pairs() -> None:
    problems = tidy.sync_points({p: t for p, t in C.items() if p.startswith(("ipc/", "sml/"))})
    assert not problems, "\n" + "\n".join(problems)


def test_no_dead_modules() -> None:
    problems = tidy.dead_modules(SOURCES, ALIVE)
    assert not problems, "\n" + "\n".join(problems)


def test_no_dead_private_functions() -> None:
    judge(tidy.dead_privates, PYTHON)


def test_every_guarantee_has_its_test_and_every_marker_its_guarantee() -> None:
    stated = tidy.guarantees(SOURCES["docs/GUARANTEES.md"])
    assert list(stated) == [f"G{number}" for number in range(1, 14)]
    problems = tidy.unproven(stated, tidy.proofs(SOURCES))
    assert not problems, "\n" + "\n".join(problems)


def test_links_of_the_documents_lead_somewhere() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in tidy.project_files(ROOT)}
    folders = {str(Path(name).parent) for name in files}
    problems = tidy.broken_links(SOURCES, files | folders)
    assert not problems, "\n" + "\n".join(problems)


def test_no_large_or_binary_files() -> None:
    for path in tidy.project_files(ROOT):
        assert path.suffix in TEXT_SUFFIXES | {".typed"}, f"{path}: what is this?"
        assert path.stat().st_size <= tidy.FILE_BYTES_MAX, f"{path} is too large to review"


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["dsec.kernel", "dsec.engine", "dsec.cli", "dsec.config"])
def test_the_supervisor_never_imports_the_heavy_ones(entry: str) -> None:
    """Its memory and its start-up stay small; user code is named as text, loaded in children."""
    names = [tidy.module_name(path) for path in ROOMS]
    wanted = [name for name in names if name == entry or name.startswith(entry + ".")]
    assert wanted, f"there is no {entry}"
    code = (
        f"import importlib, sys\nfor name in {wanted!r}: importlib.import_module(name)\n"
        "heavy = {'numpy', 'gymnasium', 'torch', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(f'imported: {sorted(heavy)}' if heavy else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr


def test_a_room_can_not_be_imported_twice() -> None:
    for room in tidy.ROOMS[1:]:
        code = f"import {room}"
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 1
        assert f"import dsec.{room}, not {room}" in result.stderr


# ------------------------------------------------------------------ each check can fail

LONG = "def f():\n" + "    pass\n" * 70
C_LONG = "/* What this file owns. */\nstatic int f(void)\n{\n" + "  ;\n" * 70 + "}\n"
WAIT = "import time as t\nfrom time import sleep as s\n"
PAIR = "/* SYNC POINT a: pairs with b(), because. */\n"
BAD = {
    "file length": lambda: tidy.too_long("a.py", "x = 1\n" * 451),
    "function length": lambda: tidy.long_functions("a.py", LONG),
    "method length": lambda: tidy.long_functions(
        "a.py", "class A:\n  async def f(s):\n" + "    1\n" * 70
    ),
    "C function length": lambda: tidy.long_c_functions("a.c", C_LONG),
    "line length": lambda: tidy.long_lines("a.c", "x" * 101),
    "no docstring": lambda: tidy.headless("a.py", "x = 1\n"),
    "empty docstring": lambda: tidy.headless("a.py", '"""Utils."""\n'),
    "no C head": lambda: tidy.headless("a.c", "#include <x.h>\n/* What this file owns. */"),
    "undocumented": lambda: tidy.undocumented("a.py", "def f(): pass\n"),
    "print": lambda: tidy.banned_calls("a.py", "print(1)", ["print"]),
    "sleep": lambda: tidy.banned_calls("a.py", "import time\ntime.sleep(1)", ["time.sleep"]),
    "sleep by alias": lambda: tidy.banned_calls("a.py", WAIT + "t.sleep(1)", ["time.sleep"]),
    "sleep by name": lambda: tidy.banned_calls("a.py", WAIT + "s(1)", ["time.sleep"]),
    "bare except": lambda: tidy.swallowed("a.py", "try: x()\nexcept: pass\n"),
    "wide except": lambda: tidy.swallowed("a.py", "try: x()\nexcept Exception: ...\n"),
    "wide suppress": lambda: tidy.swallowed("a.py", "with suppress(Exception): x()\n"),
    "leftover": lambda: tidy.leftovers("a.py", "# TO" + "DO: later"),
    "machine path": lambda: tidy.machine_paths("a.md", "see /home/" + "me/x"),
    "lone sync point": lambda: tidy.sync_points({"r.c": PAIR}),
    "triple sync point": lambda: tidy.sync_points({"r.c": PAIR * 3}),
    "sync point like none": lambda: tidy.sync_points({"r.c": PAIR.replace("pairs with", "as in")}),
    "nameless sync point": lambda: tidy.sync_points({"r.c": "/* SYNC POINT */"}),
    "dead module": lambda: tidy.dead_modules({"ipc/a.py": '"""x"""'}, {}),
    "self-kept module": lambda: tidy.dead_modules({"ipc/a.py": "import dsec.ipc.a"}, {}),
    "test-kept module": lambda: tidy.dead_modules(
        {"ipc/a.py": "", "tests/t.py": "import dsec.ipc.a"}, {}
    ),
    "docstring-kept module": lambda: tidy.dead_modules(
        {"ipc/a.py": "", "cli/b.py": '"""See dsec.ipc.a."""', "pyproject.toml": "dsec.cli.b"}, {}
    ),
    "stale exception": lambda: tidy.dead_modules(
        {"ipc/a.py": "", "cli/__init__.py": "import dsec.ipc.a"}, {"dsec.ipc.a": "why"}
    ),
    "dead private": lambda: tidy.dead_privates("a.py", "def _f(): pass\n"),
    "unproven guarantee": lambda: tidy.unproven({"G1": "proven"}, {}),
    "unstated guarantee": lambda: tidy.unproven({}, {"G1": []}),
    "overdue guarantee": lambda: tidy.unproven({"G1": "later"}, {"G1": []}),
    "vague guarantee": lambda: tidy.unproven({"G1": "soon"}, {"G1": []}),
    "dead link": lambda: tidy.broken_links({"docs/a.md": "[x](b.md)"}, ["b.md"]),
    "dead anchor": lambda: tidy.broken_links({"a.md": "# One\n[x](#two)"}, ["a.md"]),
    "dead picture": lambda: tidy.broken_links({"a.md": '<img src="b.svg">'}, ["a.md"]),
}


@pytest.mark.parametrize("name", BAD)
def test_each_check_can_fail(name: str) -> None:
    assert len(BAD[name]()) == 1


def test_the_checks_pass_what_is_good() -> None:
    good = '"""Owns what is good here."""\nimport time\n\n\ndef wait(clock):\n    """Wait."""\n'
    good += "    try:\n        clock.sleep(1)\n    except Exception as error:\n        log(error)\n"
    for check in (tidy.too_long, tidy.long_functions, tidy.headless, tidy.undocumented):
        assert check("ipc/a.py", good) == []
    assert tidy.banned_calls("ipc/a.py", good, BANNED_CALLS) == []
    assert tidy.swallowed("ipc/a.py", good) == []
    assert tidy.code_lines(good) == 8
    assert tidy.code_lines('x = """a\n\nb"""  # c\n\n# d\n') == 2
    assert tidy.sync_points({"r.c": PAIR * 2 + PAIR.replace("pairs with", "as in")}) == []
    marked = {"tests/t.py": '@pytest.mark.guarantee("G1", "G2")\ndef test_x(): ...'}
    assert tidy.proofs(marked) == {"G1": ["tests/t.py"], "G2": ["tests/t.py"]}
    assert tidy.guarantees("## G1 x\n\ntext\n\n**Status: partly.** y\n") == {"G1": "partly"}
    assert tidy.broken_links({"a.md": "# A b\n[x](#a-b) [y](http://x)"}, ["a.md"]) == []
