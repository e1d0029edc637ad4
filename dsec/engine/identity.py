"""Which run a run directory is of: what its kernel.json says, and whether that is still true.

Owns the run's id, by which its atoms and its pool are told from those of other runs, the seal of
kernel.json, and the digest of config.yaml. A directory that an earlier version wrote has none of
these; then there is nothing to compare.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dsec.errors import RunDamaged

FILE: Final = "kernel.json"
CONFIG: Final = "config.yaml"
_BYTES = 16


@dataclass(frozen=True, slots=True)
class Known:
    """What kernel.json says."""

    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The run's, the same in all of its lives; empty where it has none."""
        return str(self.facts.get("id", ""))

    @property
    def space(self) -> tuple[int, int] | None:
        """The name space of its atoms; None where it has no id."""
        return space_of(self.id) if self.id else None


def fresh() -> str:
    """The id of a new run."""
    return secrets.token_hex(_BYTES)


def space_of(run_id: str) -> tuple[int, int]:
    """The name space of the atoms of a run (sml/ids.py)."""
    number = int(run_id, 16)
    return number >> 64, number & (1 << 64) - 1


def sealed(facts: dict[str, Any], config: str) -> dict[str, Any]:
    """What kernel.json says of a run with this configuration."""
    told = {**facts, "config": _digest(config.encode())}
    return {**told, "seal": _seal(told)}


def read(run_dir: Path) -> Known:
    """What kernel.json says; nothing where there is none, as a run leaves that was killed before it
    began.

    Raises:
        RunDamaged: it isn't what was written.
    """
    path = run_dir / FILE
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return Known()
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(found, dict):
        raise _damaged(path, "it is no object")
    seal = found.pop("seal", None)
    if "id" in found and (seal is None or seal != _seal(found)):
        raise _damaged(path, "its seal doesn't fit")
    return Known(found)


def check_config(run_dir: Path, known: Known) -> None:
    """See that config.yaml is what a life of the run has written: the latest, or, where that one
    was killed in between, the one before.

    Raises:
        RunDamaged: it isn't.
    """
    lives = [known.facts, *known.facts.get("earlier", ())]
    written = {life["config"] for life in lives if "config" in life}
    path = run_dir / CONFIG
    if written and _digest(path.read_bytes()) not in written:
        raise _damaged(path, "it was changed since; what is to be different is given by --set")


def _seal(facts: dict[str, Any]) -> str:
    return _digest(json.dumps(facts, sort_keys=True).encode())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_BYTES).hexdigest()


def _damaged(path: Path, why: str) -> RunDamaged:
    return RunDamaged(
        f"{path} is not what the run has written: {why}",
        "Put a copy of it back; what was recorded can be read as it is with Recording.open",
    )
