"""A sandbox's state as an Agent State Atom, taken and put back where the script wants it.

Owns what an atom of a sandbox is made of: the environment's state and the reward's, which their
processes give (runners/states.py), what the script has registered, and the latest rewards. The
script is between two steps when it asks, and nobody else moves, so all parts are of one moment.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from dsec.errors import AtomForeign, EnvironmentLost, LocalError, SnapshotError
from dsec.failover import keep
from dsec.failover.codecs import ambient, object_codec_named
from dsec.ipc.frames import Enrol, Role
from dsec.ipc.layout import FLAG_INFRA
from dsec.reward.objectives import changed, objectives
from dsec.runners.cuts import NO_CODEC
from dsec.runners.heir_actor import STATELESS
from dsec.runners.lookup import resolve
from dsec.runners.sections import Cut, make_atom
from dsec.sandbox.lanes import Lanes
from dsec.sandbox.trees import copy_fixed
from dsec.sml import ids
from dsec.sml.atom import Atom, Faith, RandomState, Snapshot

_NOTHING = ambient.encoded(RandomState())  # the process's own is in the codec's bytes
_OWN_CODEC = "state"
_NO_OBJECTIVES = (
    "this sandbox has no reward of several objectives: make it with reward={'objectives': {...}}"
)


@dataclass(frozen=True, slots=True)
class Pair:
    """What gives and takes a part of the script's own state."""

    get_state: Callable[[], Any]
    set_state: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Parent:
    """The atom that a sandbox was forked from."""

    atom: int | None = None
    index: int = 0


class States:
    """Takes and puts back the state of one sandbox. Its lanes are entered by whoever calls.

    Args:
        window: the latest rewards.
        reward: it has a reward of its own.
        parent: where it comes from.
    """

    def __init__(
        self, lanes: Lanes, window: deque[float], *, reward: bool, parent: Parent | None = None
    ) -> None:
        self._lanes, self._window, self._reward = lanes, window, reward
        self._parent = parent or Parent()
        self._space = uuid.uuid4().int >> 64, 0
        self._own: dict[str, Pair] = {}

    def register(self, pair: Pair, name: str) -> None:
        """Have a part of the script's state in every atom; without a name it is the policy's.

        Raises:
            TypeError: they can't be called.
            ValueError: that name is taken.
        """
        for what, call in (("get", pair.get_state), ("set", pair.set_state)):
            if not callable(call):
                raise TypeError(f"register_state({what}=...) is a function, not {call!r}")
        if name in self._own:
            known = f"a state called {name!r}" if name else "a state without a name"
            raise ValueError(f"{known} is registered already; give this one a name of its own")
        self._own[name] = pair

    def take(self) -> Atom:
        """An atom of now.

        Raises:
            SnapshotError: some part of the state can't be taken; says which and why.
            EnvironmentLost: it died of it, and could not be brought back.
        """
        lanes = self._lanes
        told = self._ask({"do": "snapshot"})["answer"][0][1]
        seq = lanes.seq(0)
        env = _kept(
            seq, told["codec"], [*told["parts"], _NOTHING], [self._observation()], told["episode"]
        )
        cut: dict[int, keep.Snapshot] = {Role.ENV: env, Role.REWARD: self._reward_at(seq)}
        registered = []
        for name, pair in self._own.items():
            data = object_codec_named(_OWN_CODEC, pair).capture()
            if not name:
                cut[Role.POLICY] = _kept(seq, _OWN_CODEC, [data, _NOTHING], [])
            else:
                part = Snapshot(_OWN_CODEC, data, Faith.BY_CONTRACT, "by its own word")
                registered.append((name, part))
        atom_id = ids.deterministic(seq, 1, 0)
        who = Enrol(
            lanes.lanes[0].name, 0, 1, (Role.ENV, Role.REWARD), 1, self._window.maxlen or 0,
            self._parent.atom, self._parent.index,
        )  # fmt: skip
        atom = make_atom(who, Cut(seq, cut), atom_id, ids.to_uuid(self._space, atom_id))
        return msgspec.structs.replace(atom, registered=tuple(registered))

    def put(self, atom: Atom, *, anew: str = "") -> None:
        """Let everything be as it was when an atom was taken.

        Args:
            anew: a seed: for a fork, whose random streams are others. What the script has
                registered is left alone then.

        Raises:
            AtomForeign: it is none of such a sandbox; nothing was changed.
            SnapshotError: the environment doesn't take it: it is of another kind, say.
            EnvironmentLost: it died of it, and could not be brought back.
        """
        if not isinstance(atom, Atom):
            raise TypeError(f"restore() takes an Atom, as snapshot() returns one, not {atom!r}")
        given = None
        if self._reward:
            given = self._reward_of(atom)
        if len(atom.env) != 1:
            raise AtomForeign(f"the atom holds {len(atom.env)} environments; a sandbox has one")
        own = {} if anew else self._own_of(atom)
        [env] = atom.env
        self._ask(
            {
                "do": "restore",
                "anew": anew,
                "random": ambient.encoded(atom.random),
                "env": {
                    "codec": _plain(env.codec),
                    "parts": [env.data],
                    "observation": atom.observation,
                    "episode": atom.manifest.episode,
                },
                "reward": given,
            }
        )
        for pair, data in own.values():
            object_codec_named(_OWN_CODEC, pair).restore(data)
        self._window.clear()
        if atom.rewards is not None:
            self._window.extend(np.frombuffer(atom.rewards.rewards, np.float64).tolist())

    def update_objectives(self, changes: Mapping[str, Any]) -> None:
        """See AgentSandbox.update_objectives."""
        if not self._reward:
            raise LocalError(_NO_OBJECTIVES)
        self._ask({"do": "objectives", "changes": None})
        kept, state = self._reward_at(self._lanes.seq(0)), list[Any]()
        if kept.codec == _OWN_CODEC:
            reader = Pair(lambda: None, state.append)
            object_codec_named(_OWN_CODEC, reader).restore(kept.parts[0])
        told = state[0].get("objectives") if state and isinstance(state[0], dict) else None
        if told is None:
            raise LocalError(_NO_OBJECTIVES)
        known = objectives(told)
        for name, each in changed(known, changes).items():
            if each.entry and each != known.get(name):
                resolve(each.entry, where=f"objective {name!r}")
        self._ask({"do": "objectives", "changes": {**changes}})

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        lanes = self._lanes
        _, (info,) = lanes.request(asked)[0]
        told = info.get("dsec", {})
        if lanes.flags[0] & FLAG_INFRA:
            cause = told["infra_failure"]["cause"]
            raise EnvironmentLost(f"the environment was lost in {asked['do']}: {cause}; reset it")
        found: dict[str, Any] = told
        return found

    def _observation(self) -> bytes:
        """The current one as a record of the environment's ring holds it."""
        record, obs = self._lanes.record, self._lanes.obs
        fixed = bytearray(record.fixed_bytes)
        copy_fixed(record.views(fixed).obs, obs)
        return bytes(fixed) + record.layout.pack(obs)

    def _reward_at(self, seq: int) -> keep.Snapshot:
        window = np.array(self._window).tobytes()
        if not self._reward:
            return _kept(seq, STATELESS, [_NOTHING], [window])
        found = self._lanes.section(0, Role.REWARD, seq)
        around = bytes(found.parts[-1 - found.beside])
        if found.codec == STATELESS:
            return _kept(seq, STATELESS, [around], [window])
        if found.codec == NO_CODEC:
            raise SnapshotError(
                "no codec holds the state of the reward; see get_state in the guide"
            )
        return _kept(seq, found.codec, [bytes(found.parts[0]), around], [window])

    def _reward_of(self, atom: Atom) -> dict[str, Any] | None:
        if atom.rewards is None:
            raise AtomForeign("the atom holds nothing of a reward, and this sandbox has one")
        state = atom.rewards.state
        if state is None:
            return None
        return {"codec": _plain(state.codec), "data": state.data}

    def _own_of(self, atom: Atom) -> dict[str, tuple[Pair, bytes]]:
        held = dict(atom.registered)
        if atom.policy is not None:
            held[""] = atom.policy
        if held.keys() != self._own.keys():
            there, here = (
                ", ".join(map(repr, sorted(each))) or "none" for each in (held, self._own)
            )
            raise AtomForeign(
                f"the atom holds what was registered as {there}; registered here is {here}: see"
                " register_state"
            )
        return {name: (pair, held[name].data) for name, pair in self._own.items()}


def _kept(
    seq: int, codec: str, states: list[bytes], beside: list[bytes], counted: int = 0
) -> keep.Snapshot:
    """A section as a runner keeps it: states, the process's own, what is beside them."""
    faith = int(Faith.BY_CONTRACT if codec == _OWN_CODEC else Faith.PROVEN)
    parts, count = [*states, *beside], len(beside)
    return keep.Snapshot(seq, 0, 0, 0, counted, 0, codec, parts, True, faith, count)


def _plain(codec: str) -> str:
    """A codec's name; a version behind it is the bytes' own affair."""
    return codec.partition("/")[0]
