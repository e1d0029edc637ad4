"""Agents that came from another host: what of them is in a run directory, and where they begin.

Owns moved.json and the folder of the atoms that they begin from, both written by keeper.py before
the run is resumed there the first time. The run is the source's own, with its id, its names, ranks
and seeds; agents that did not come with it are nobody's business here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from dsec.engine.plan import Beginning
from dsec.errors import MachineError
from dsec.ipc.frames import Origin

FILE: Final = "moved.json"
FOLDER: Final = "arrived"


class Arrived(msgspec.Struct, frozen=True):
    """One agent.

    Attributes:
        file: its atom, in FOLDER.
        seq, episode: of the atom.
        mark: of its hash chain there, packed, in hexadecimal digits; empty where none is kept.
    """

    file: str
    seq: int
    episode: int
    mark: str = ""

    def beginning(self, run_dir: Path) -> Beginning:
        """Where it begins."""
        path = run_dir / FOLDER / self.file
        origin = Origin(str(path), self.seq)
        return Beginning(origin, first=self.seq, chain=bytes.fromhex(self.mark))


class Arrival(msgspec.Struct, frozen=True):
    """All of them.

    Attributes:
        run: the run's id.
        epoch: counts the hosts that it had.
        source: why they came.
    """

    run: str
    epoch: int
    source: str
    agents: dict[str, Arrived]


def read(run_dir: Path) -> Arrival | None:
    """What arrived; None where the run began here.

    Raises:
        MachineError: moved.json can't be read.
    """
    try:
        return msgspec.json.decode((run_dir / FILE).read_bytes(), type=Arrival)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise MachineError(
            f"{run_dir / FILE} doesn't say which agents came from another host: {error}",
            "Put a copy of it back",
        ) from None
