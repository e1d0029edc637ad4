"""It installs: the sdist and the wheel hold what they must, and a build that can't work says why.

Owns the checks on what setuptools makes of a copy of this checkout. Nothing is installed into the
environment that runs the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests import tidy, watchdog

ROOT = Path(__file__).resolve().parent.parent


def copy_checkout(target: Path) -> Path:
    """What `git clone` would give of the tree as it is now, links included."""
    for path in tidy.project_files(ROOT):
        copy = target / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    for room in tidy.ROOMS[1:]:
        (target / "dsec" / room).symlink_to(f"../{room}")
    return target


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist, and a wheel that was built from that sdist."""
    base = tmp_path_factory.mktemp("packages")
    checkout, out = copy_checkout(base / "checkout"), base / "dist"
    code = "import setuptools.build_meta as b, sys; print(b.build_{}(sys.argv[1]))"
    for kind in ("sdist", "wheel"):
        where = checkout
        if kind == "wheel":
            (base / "unpacked").mkdir()
            packed = next(out.glob("*.tar.gz"))
            subprocess.run(["tar", "-xzf", packed, "-C", base / "unpacked"], check=True)
            (where,) = (base / "unpacked").iterdir()
        argv = [sys.executable, "-c", code.format(kind), str(out)]
        out.mkdir(exist_ok=True)
        result = watchdog.run(argv, base / kind, timeout_s=100, cwd=where)
        assert result.returncode == 0, result.stdout + result.stderr
    return out


@pytest.mark.slow
def test_the_sdist_holds_real_files_and_all_sources(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        assert not [each.name for each in archive if each.issym()], "links don't survive everywhere"
        names = {each.name.split("/", 1)[-1] for each in archive}
    wanted = {
        "dsec/sml/asa.proto",
        "dsec/sml/pool.h",
        "dsec/ipc/ring.c",
        "dsec/ipc/ring.h",
        "dsec/kernel/machine.py",
        "tests/conftest.py",
    }
    assert wanted <= names
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc"))]


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(dist: Path) -> None:
    wheel = next(dist.glob("*.whl"))
    assert "-cp311-abi3-" in wheel.name, "one wheel serves 3.11 and later"
    names = zipfile.ZipFile(wheel).namelist()
    assert "dsec/ipc/_ring.abi3.so" in names
    assert "dsec/sml/_pool.abi3.so" in names
    assert "dsec/py.typed" in names
    for path, _ in tidy.in_rooms({str(p.relative_to(ROOT)): "" for p in tidy.project_files(ROOT)}):
        inside = path if path.startswith("dsec/") else f"dsec/{path}"
        assert inside in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dsec"}


@pytest.mark.slow
def test_an_installed_wheel_works_outside_of_the_checkout(dist: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(next(dist.glob("*.whl"))).extractall(tmp_path / "site")
    code = (
        "import dsec.ipc.ring, dsec.cli.kernel; print(dsec.__file__);"
        " dsec.cli.kernel.main(['--version'])"
    )
    result = watchdog.run(
        [sys.executable, "-c", code],
        tmp_path / "out",
        timeout_s=60,
        env={"PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert str(tmp_path / "site") in result.stdout
    assert dsec_version() in result.stdout


def dsec_version() -> str:
    import dsec

    return dsec.__version__


def refuse(folder: Path, env: dict[str, str]) -> str:
    result = watchdog.run(
        [sys.executable, "setup.py", "--version"], folder / "out", timeout_s=60, cwd=folder, env=env
    )
    assert result.returncode != 0
    return result.stderr


@pytest.mark.slow
def test_without_the_links_the_build_says_so(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "dsec").mkdir()
    (tmp_path / "dsec" / "kernel").write_text("../kernel")  # what a zip archive leaves of a link
    assert "symlinks are missing" in refuse(tmp_path, {})


@pytest.mark.slow
def test_without_a_compiler_the_build_says_so_and_what_to_install(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "checkout")
    empty = tmp_path / "bin"
    empty.mkdir()
    told = refuse(checkout, {"PATH": str(empty)})
    assert "no C compiler" in told
    assert "apt-get install gcc python3-dev" in told
    assert "Traceback" not in told


def test_the_command_and_the_extras_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {
        "dsec-kernel": "dsec.cli.start:main",
        "dsec-rdma-gc": "dsec.cli.rdma_gc:main",
    }
    core = {each.split(">")[0] for each in project["dependencies"]}
    assert "torch" not in core
    assert {"torch", "record", "verbs", "bench", "dev", "all"} <= set(
        project["optional-dependencies"]
    )


def test_the_pinned_torch_is_the_cpu_build() -> None:
    """A range would let pip resolve to a build of several gigabytes."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("torch==")]


def test_ci_runs_the_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "exec make test" in script.read_text()
