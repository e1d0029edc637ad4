"""What an agent's processes may take, and what they may do: `limits` and `isolation`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dsec.config.base import Model
from dsec.config.kinds import AbsolutePath, Cores, Files, Mebibytes, Processes, VariableName


class Limits(Model):
    """Limits of each of the agent's processes."""

    memory_mb: Mebibytes | None = Field(
        default=None,
        description="Data memory (RLIMIT_DATA) in MiB; more is refused to the runner. "
        "Left out: no limit.",
    )
    open_files: Files | None = Field(
        default=None,
        description="Open file descriptors. Left out: what the shell that started the run had.",
    )
    cpus: Cores | None = Field(
        default=None,
        description="Numbers of the processor cores that they may run on. Left out: all that the "
        "run may use.",
        examples=[[0, 1]],
    )
    network: bool | None = Field(
        default=None,
        description="false: no network, and no socket of this machine's either. true: it may use "
        "the internet, under the profile strict as well. Left out: as isolation.profile says.",
    )


class Isolation(Model):
    """What the system denies the agent's processes, before they load user code: ISOLATION.md."""

    profile: Literal["none", "default", "strict"] = Field(
        default="default",
        description="none: nothing beyond what is always so: a runner has no descriptors but its "
        "own. default: programs that it starts gain no rights (no_new_privs). strict, for code "
        "that may be hostile: no network, other processes' memory, descriptors and signals, no "
        "file outside its temporary folder to be changed, and few to be read; no namespaces, "
        "mounts or capabilities, and an environment without what only others need. What this "
        "machine can't enforce of it is said at the start, and in summary.json.",
    )
    roles: list[Literal["env", "policy", "reward"]] = Field(
        default=["env", "policy", "reward"],
        min_length=1,
        description="Whose processes; the others have the profile default.",
    )
    uid: Literal["own", "keep"] = Field(
        default="own",
        description="strict: own: each process becomes a user of its own, where whoever starts "
        "the run may do that (root). keep: it stays the user that it is.",
    )
    read: list[AbsolutePath] = Field(
        default=[],
        description="strict: folders and files that may be read beside the system's libraries, "
        "Python's, the import path and the working directory.",
        examples=[["/data/levels"]],
    )
    write: list[AbsolutePath] = Field(
        default=[],
        description="strict: folders and files that may be changed beside its temporary folder.",
    )
    environment: list[VariableName] = Field(
        default=[],
        description="strict: environment variables to be kept beside those that Python and its "
        "libraries need.",
        examples=[["HF_TOKEN"]],
    )
    processes: Processes = Field(
        default=64,
        description="strict: processes and threads that one runner may have, itself and its "
        "sleeping copies included. Enforced where they are counted for themselves: with a user, "
        "or a user namespace, of its own.",
    )
    scratch_mb: Mebibytes = Field(
        default=256,
        description="strict: room for temporary files of one runner, in MiB of memory.",
    )
    require: bool = Field(
        default=False,
        description="strict: end the run at its start, if this machine can't enforce all of it.",
    )
