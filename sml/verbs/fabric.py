"""The RDMA devices of this machine as the kernel shows them in /sys, and the choice among them.

Owns the reading of /sys/class/infiniband and the rule by which device, port and address (GID) are
chosen. No library is needed for it, so that a machine can be judged before anything is installed.
Must not open a device: that is the work of whoever uses the choice.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dsec.errors import DeviceAbsent, GidAbsent, PortAbsent, PortDown

ACTIVE = "ACTIVE"
ETHERNET = "Ethernet"
ROCE_V2 = "RoCE v2"
_ZERO = "::"


@dataclass(frozen=True, slots=True)
class Gid:
    """An address of a port.

    Attributes:
        index: its place in the port's table, by which it is chosen.
        address: as an IPv6 address.
        kind: `RoCE v2`, `IB/RoCE v1`; empty where the driver does not say.
        netdev: the network interface that it came from, on Ethernet.
    """

    index: int
    address: str
    kind: str = ""
    netdev: str = ""

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address that it stands for; None if it stands for none."""
        mapped = ipaddress.IPv6Address(self.address).ipv4_mapped
        return None if mapped is None else str(mapped)


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a device.

    Attributes:
        number: from 1.
        state: `ACTIVE`, `DOWN`, `INIT`, `ARMED`.
        layer: `Ethernet` (RoCE) or `InfiniBand`.
        gids: all that are set, by index.
        counters: what the hardware has counted, by the driver's names.
    """

    number: int
    state: str = ACTIVE
    layer: str = ETHERNET
    gids: tuple[Gid, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Device:
    """An RDMA device.

    Attributes:
        name: as `ibv_devices` and `rdma link` show it.
        ports: by number.
        software: emulated by the kernel (rdma_rxe, siw): right, and slower than TCP.
        node: the file by which programs reach it, `/dev/infiniband/uverbs0`; empty if none.
        reachable: this process may open that file.
    """

    name: str
    ports: tuple[Port, ...] = ()
    software: bool = False
    node: str = ""
    reachable: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """What a pool is to be reached by."""

    device: Device
    port: Port
    gid: Gid


def read(root: Path = Path("/")) -> tuple[Device, ...]:
    """All RDMA devices below `root`, by name."""
    folder = root / "sys/class/infiniband"
    nodes = {
        _text(each / "ibdev"): f"dev/infiniband/{each.name}"
        for each in _inside(root / "sys/class/infiniband_verbs")
        if each.name.startswith("uverbs")
    }
    return tuple(_device(root, each, nodes.get(each.name, "")) for each in _inside(folder))


def choose(
    devices: tuple[Device, ...],
    name: str | None = None,
    port: int | None = None,
    gid: int | None = None,
) -> Choice:
    """The device, port and address to use; what is None is chosen.

    The first device whose port is active and has an IPv4-mapped RoCE v2 address is preferred, one
    of hardware before one of software; on InfiniBand the first address is taken.

    Raises:
        DeviceAbsent, PortAbsent, PortDown, GidAbsent: what was asked for is not there, or nothing
            is that could be chosen; the message says what there is and what to run.
    """
    found = [device for device in devices if name in (None, device.name)]
    if not found:
        raise _no_device(devices, name)
    problem: DeviceAbsent | PortAbsent | PortDown | GidAbsent | None = None
    for device in sorted(found, key=lambda each: each.software):
        try:
            return _choose_port(device, port, gid)
        except (DeviceAbsent, PortAbsent, PortDown, GidAbsent) as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _choose_port(device: Device, number: int | None, gid: int | None) -> Choice:
    ports = [port for port in device.ports if number in (None, port.number)]
    if not ports:
        there = ", ".join(str(port.number) for port in device.ports) or "none"
        raise PortAbsent(
            f"RDMA device {device.name} has no port {number or 1}; it has {there}",
            "Set rdma.port, or leave it out: the first active one is taken",
        )
    active = [port for port in ports if port.state == ACTIVE]
    if not active:
        raise _port_down(device, ports[0])
    problem: GidAbsent | None = None
    for port in active:
        try:
            return Choice(device, port, _choose_gid(device, port, gid))
        except GidAbsent as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _choose_gid(device: Device, port: Port, index: int | None) -> Gid:
    if index is not None:
        for gid in port.gids:
            if gid.index == index:
                return gid
        raise _no_gid(device, port, f"no GID {index}")
    if port.layer != ETHERNET and port.gids:
        return port.gids[0]
    for gid in port.gids:
        if gid.ipv4 is not None and gid.kind in ("", ROCE_V2):
            return gid
    raise _no_gid(device, port, "no GID of an IPv4 address by RoCE v2")


def _no_device(devices: tuple[Device, ...], name: str | None) -> DeviceAbsent:
    if devices:
        there = ", ".join(device.name for device in devices)
        return DeviceAbsent(
            f"there is no RDMA device {name}; there is {there}",
            "Set rdma.device to one of these, or leave it out",
        )
    return DeviceAbsent(
        f"there is no RDMA device {name or ''}".rstrip() + " (/sys/class/infiniband is empty)",
        "Load the driver of the adapter (`lspci | grep -iE 'mellanox|ethernet|infiniband'`, "
        "`modprobe mlx5_ib`); to try without one: `modprobe rdma_rxe && rdma link add rxe0 type "
        "rxe netdev IFACE`",
    )


def _port_down(device: Device, port: Port) -> PortDown:
    netdev = next((gid.netdev for gid in port.gids if gid.netdev), "IFACE")
    up = f"`ip link set {netdev} up`" if port.layer == ETHERNET else "a subnet manager (`opensm`)"
    return PortDown(
        f"port {port.number} of RDMA device {device.name} is {port.state}, not {ACTIVE}",
        f"Plug the cable in and see to {up}; `rdma link show {device.name}/{port.number}` tells",
    )


def _no_gid(device: Device, port: Port, what: str) -> GidAbsent:
    there = ", ".join(f"{gid.index} ({gid.ipv4 or gid.address} {gid.kind})" for gid in port.gids)
    netdev = next((gid.netdev for gid in port.gids if gid.netdev), "IFACE")
    return GidAbsent(
        f"port {port.number} of RDMA device {device.name} has {what}; it has {there or 'none'}",
        f"Give the interface an IPv4 address (`ip addr add ADDRESS/24 dev {netdev}`), or set "
        "rdma.gid to one of these",
    )


def _device(root: Path, folder: Path, node: str) -> Device:
    ports = [_port(each) for each in _inside(folder / "ports") if each.name.isdigit()]
    return Device(
        folder.name,
        tuple(sorted(ports, key=lambda port: port.number)),
        software=(folder / "parent").exists(),
        node=f"/{node}" if node else "",
        reachable=bool(node) and os.access(root / node, os.R_OK | os.W_OK),
    )


def _port(folder: Path) -> Port:
    gids = []
    indexes = (int(each.name) for each in _inside(folder / "gids") if each.name.isdigit())
    for index in sorted(indexes):
        address = _text(folder / f"gids/{index}")
        try:
            address = str(ipaddress.IPv6Address(address))
        except ValueError:
            continue
        if address != _ZERO:
            kind = _text(folder / f"gid_attrs/types/{index}")
            netdev = _text(folder / f"gid_attrs/ndevs/{index}")
            gids.append(Gid(index, address, kind, netdev))
    counters = {}
    for each in (*_inside(folder / "counters"), *_inside(folder / "hw_counters")):
        text = _text(each)
        if text.isdigit():
            counters[each.name] = int(text)
    state = _text(folder / "state").rpartition(": ")[2]
    return Port(int(folder.name), state, _text(folder / "link_layer"), tuple(gids), counters)


def _inside(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _text(path: Path) -> str:
    """The content of a file; empty where it can't be read, as that of a GID that is not set."""
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
