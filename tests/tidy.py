"""The rules of docs/STYLE.md as functions: text in, problems out.

Owns every check that needs no running program. Each takes what it judges as arguments and returns
one sentence for each problem, so that test_tidy.py can both apply it to this repository and prove
on small bad snippets that it can fail. Must not read the repository by itself, `project_files`
excepted. What ruff, mypy and import-linter can check is left to them.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOMS = ("dsec", "kernel", "runners", "ipc", "failover", "sml", "cli")
LINES_MAX = 450  # the aim is 400; this is where a file must be split
FUNCTION_LINES_MAX = 70
KERNEL_LINES_MAX = 1500  # of code and docstrings
LINE_LENGTH_MAX = 100
FILE_BYTES_MAX = 300_000

Sources = Mapping[str, str]  # path relative to the root, with slashes -> text


def project_files(root: Path) -> list[Path]:
    """Files that belong to the project: tracked, or new and not ignored. Links are left out."""
    if (root / ".git").exists():
        listing = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"],
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        paths = [root / name for name in listing.split("\0") if name]
    else:
        paths = [path for path in root.rglob("*") if path.parts[len(root.parts)][0] != "."]
    return sorted(path for path in set(paths) if path.is_file() and not path.is_symlink())


def in_rooms(sources: Sources) -> Iterator[tuple[str, str]]:
    """The Python files of the package itself, __init__ included."""
    for path, text in sources.items():
        if path.endswith(".py") and path.split("/")[0] in ROOMS:
            yield path, text


def too_long(path: str, text: str, lines_max: int = LINES_MAX) -> list[str]:
    lines = text.count("\n")
    return [f"{path}: {lines} lines, at most {lines_max}: split it"] if lines > lines_max else []


def code_lines(text: str) -> int:
    """Lines that somebody has to read: all but blank ones and comments. Docstrings count."""
    quiet = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*quiet, tokenize.ENDMARKER):
            lines |= set(range(token.start[0], token.end[0] + 1))
    return sum(bool(text.splitlines()[number - 1].strip()) for number in lines)


def long_functions(path: str, text: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            lines = (node.end_lineno or first) - first + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(
                    f"{path}:{first}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"
                )
    return found


def long_c_functions(path: str, text: str) -> list[str]:
    """C functions by the house layout: the closing brace alone in column 0 ends one."""
    found, start = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if line == "{" or (line.endswith("{") and re.match(r"[a-z_].*\)\s*\{$", line)):
            start = number
        elif line == "}" and start is not None:
            if number - start + 1 > FUNCTION_LINES_MAX:
                found.append(f"{path}:{start}: a function of {number - start + 1} lines")
            start = None
    return found


def long_lines(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number}: {len(line)} characters, at most {LINE_LENGTH_MAX}"
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > LINE_LENGTH_MAX
    ]


def headless(path: str, text: str) -> list[str]:
    """A file opens with what it owns, what it must not know, and why it is here."""
    if path.endswith(".py"):
        head = ast.get_docstring(ast.parse(text)) or ""
    else:
        match = re.match(r"\s*/\*(.*?)\*/", text, re.DOTALL)
        head = match.group(1) if match else ""
    return [] if len(head.split()) >= 4 else [f"{path}: opens without saying what it owns"]


def undocumented(path: str, text: str) -> list[str]:
    """Public classes and functions of a module carry a docstring."""
    return [
        f"{path}:{node.lineno}: {node.name} has no docstring"
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]


def dotted(node: ast.expr) -> str:
    """`a.b.c` for the expression a.b.c; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (head := dotted(node.value)):
        return f"{head}.{node.attr}"
    return ""


def banned_calls(path: str, text: str, banned: Iterable[str]) -> list[str]:
    """Calls of these dotted names, under whatever alias a plain import gave them."""
    tree = ast.parse(text)
    alias = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            alias |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        if isinstance(node, ast.Import):
            alias |= {each.asname: each.name for each in node.names if each.asname}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := dotted(node.func)):
            head, _, tail = name.partition(".")
            full = alias.get(head, head) + (f".{tail}" if tail else "")
            if full in set(banned):
                found.append(f"{path}:{node.lineno}: {full} has no place here")
    return found


def swallowed(path: str, text: str) -> list[str]:
    """Handlers that make every exception vanish."""
    wide = {"", "Exception", "BaseException"}
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            kind = dotted(node.type) if node.type else ""
            empty = all(
                isinstance(each, ast.Pass)
                or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
                for each in node.body
            )
            if empty and (node.type is None or (kind and kind in wide)):
                found.append(f"{path}:{node.lineno}: swallows every exception without a word")
        elif (
            isinstance(node, ast.Call)
            and dotted(node.func).split(".")[-1] == "suppress"
            and any(dotted(each) in wide - {""} for each in node.args)
        ):
            found.append(f"{path}:{node.lineno}: suppresses every exception without a word")
    return found


def leftovers(path: str, text: str) -> list[str]:
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")
    pattern = re.compile(rf"\b({'|'.join(words)})\b")
    return [
        f"{path}:{number}: a leftover: {line.strip()[:60]}"
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def machine_paths(path: str, text: str) -> list[str]:
    """Paths that only one machine has."""
    pattern = re.compile(r"(?<![\w.$}])/(work|root|home|Users)/\w")
    return [
        f"{path}:{number}: a path of somebody's machine: {line.strip()[:60]}"
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def sync_points(sources: Sources) -> list[str]:
    """Each acquire or release names its pair: `/* SYNC POINT name: pairs with …` exactly twice.

    Further places of the same side say `as in` instead, and need the pair to be there.
    """
    pairs: Counter[str] = Counter()
    found = []
    for path, text in sources.items():
        for number, line in enumerate(text.splitlines(), 1):
            if "/* SYNC POINT" not in line:
                continue
            match = re.search(r"SYNC POINT ([a-z][\w-]*): (pairs with|as in) ", line)
            if match is None:
                found.append(f"{path}:{number}: write `SYNC POINT name: pairs with …`")
            else:
                pairs[match.group(1)] += match.group(2) == "pairs with"
    return found + [
        f"SYNC POINT {name} has {count} sides: an ordering needs exactly two"
        for name, count in sorted(pairs.items())
        if count != 2
    ]


def module_name(path: str) -> str:
    """`dsec.kernel.machine` for kernel/machine.py and `dsec.errors` for dsec/errors.py."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(parts if parts[0] == "dsec" else ["dsec", *parts])


def mentions(path: str, text: str) -> set[str]:
    """Modules that a file imports or names in a string that is no docstring (as for `-m`)."""
    if not path.endswith(".py"):
        return set(re.findall(r"dsec(?:\.\w+)+", text))
    tree = ast.parse(text)
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{each.name}" for each in node.names}
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documentation
        ):
            found |= set(re.findall(r"dsec(?:\.\w+)+", node.value))
    return found


def dead_modules(sources: Sources, alive: Mapping[str, str]) -> list[str]:
    """Modules of the package that only tests name; `alive` lists exceptions with reasons."""
    modules = {module_name(path): path for path, _ in in_rooms(sources)}
    named: set[str] = set()
    for path, text in sources.items():
        if path.startswith(("tests/", "docs/")) or path.endswith(".md"):
            continue
        itself = module_name(path) if path in modules.values() else ""
        named |= {name for name in mentions(path, text) if name != itself}
    dead = [
        f"{path}: nothing imports it: delete it or say in test_tidy.py why it stays"
        for name, path in sorted(modules.items())
        if name not in named and name not in alive and not path.endswith("__init__.py")
    ]
    stale = [f"{name}: listed as an exception, but needs none" for name in alive if name in named]
    return dead + stale


def dead_privates(path: str, text: str) -> list[str]:
    """Module-level `_names` that are defined and never used in their own file."""
    tree = ast.parse(text)
    used = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    used += Counter(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return [
        f"{path}:{node.lineno}: {node.name} is never used"
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name.startswith("_")
        and not node.name.startswith("__")
        and not used[node.name]
        and not any("ffi" in ast.unparse(each) for each in node.decorator_list)
    ]


def guarantees(text: str) -> dict[str, str]:
    """`{"G1": "proven", ...}` from the headings and status lines of GUARANTEES.md."""
    found = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        name = part.split()[0]
        status = re.search(r"^\*\*Status: (\w+)", part, re.MULTILINE)
        found[name] = status.group(1) if status else ""
    return found


def proofs(sources: Sources) -> dict[str, list[str]]:
    """Which test files carry a `guarantee` marker, by the guarantee named."""
    found: dict[str, list[str]] = {}
    for path, text in sources.items():
        if not (path.startswith("tests/") and path.endswith(".py")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and dotted(node.func).endswith("mark.guarantee"):
                for each in node.args:
                    name = each.value if isinstance(each, ast.Constant) else "?"
                    found.setdefault(str(name), []).append(path)
    return found


def unproven(stated: Mapping[str, str], proved: Mapping[str, object]) -> list[str]:
    """Promises without a test, and tests without a promise."""
    found = [
        f"{name}: status {status or 'missing'!r}: write proven, partly or later"
        for name, status in stated.items()
        if status not in ("proven", "partly", "later")
    ]
    found += [
        f"{name} is called {status}, but no test carries it"
        for name, status in stated.items()
        if status in ("proven", "partly") and name not in proved
    ]
    found += [
        f"a test carries {name!r}, which is no guarantee" for name in proved if name not in stated
    ]
    return found + [
        f"{name} is called later, but a test carries it"
        for name, status in stated.items()
        if status == "later" and name in proved
    ]


def anchors(text: str) -> set[str]:
    """The anchors that a Markdown renderer makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}


def broken_links(sources: Sources, exists: Iterable[str]) -> list[str]:
    """Relative links of Markdown files that lead nowhere; `exists` are all files and folders."""
    known = set(exists)
    found = []
    for path, text in sources.items():
        if not path.endswith(".md"):
            continue
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", prose):
            link = target[0] or target[1]
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            where = path
            if name:
                where = str(Path("/", path).parent.joinpath(name).resolve().relative_to("/"))
            if where not in known:
                found.append(f"{path}: {link} leads nowhere")
            elif anchor and where in sources and anchor not in anchors(sources[where]):
                found.append(f"{path}: {link}: no such heading")
    return found
