"""What the way to other hosts allows: RDMA devices, registered memory, and the network.

Pure: Readings and Wants in, Lines out. Without an RDMA device atoms go over TCP, so that it lacks
one is no failure, unless one was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsec.doctor.machine import CLUSTER_POOL_BYTES, many, size
from dsec.doctor.readings import Link, Readings
from dsec.doctor.report import Line, Verdict, Wants
from dsec.errors import RdmaError
from dsec.sml.verbs.fabric import ETHERNET, Choice, choose

RDMA = "rdma"
NETWORK = "network"
ROCE_HEADERS = 104  # at most, of a packet of RoCE v2 (InfiniBand specification, volume 1, A17)
ROCE_MTU = 4096 + ROCE_HEADERS
LOSS_SHARE_MAX = 1e-5  # of packets; RDMA sends everything since the lost one again
_LOST = ("rx_crc_errors", "rx_fifo_errors", "rx_missed_errors", "rx_dropped", "tx_dropped")
_LOST_MORE = ("rx_frame_errors", "tx_carrier_errors", "tx_fifo_errors")
_RESENT = (
    "packet_seq_err",
    "out_of_sequence",
    "local_ack_timeout_err",
    "rcvd_seq_err",
    "out_of_seq_request",
    "completer_retry_err",
    "port_rcv_errors",
    "port_xmit_discards",
)
_PACKETS = ("port_rcv_packets", "rcvd_pkts")


def checks(readings: Readings, wants: Wants) -> Iterator[Line]:
    """All lines about RDMA and about the network."""
    choice: Choice | None = None
    try:
        choice = choose(readings.devices, wants.device, wants.port, wants.gid)
    except RdmaError as error:
        yield _no_device(error, wants)
    else:
        yield device(choice)
        yield access(choice)
        yield roce_mtu(choice, readings)
        yield roce_congestion(choice, readings)
        yield resent(choice)
    yield library(readings, wants, choice)
    yield memlock(readings, wants, choice)
    yield congestion(readings)
    yield from loss(readings, choice)


def _no_device(error: RdmaError, wants: Wants) -> Line:
    if wants.rdma:
        return Line(RDMA, "device", Verdict.FAIL, error.problem, error.remedy)
    if wants.cluster:
        found = f"{error.problem}; atoms go over TCP"
        return Line(RDMA, "device", Verdict.WARN, found, error.remedy)
    return Line(RDMA, "device", Verdict.PASS, f"{error.problem}; one host needs none")


def device(choice: Choice) -> Line:
    """The device, port and address that a pool would be reached by."""
    one, port, gid = choice.device, choice.port, choice.gid
    where = f"GID {gid.index} ({gid.ipv4 or gid.address})"
    found = f"{one.name}, port {port.number} ({port.layer}), {where}"
    if one.software:
        return Line(
            RDMA,
            "device",
            Verdict.WARN,
            f"{found}: emulated by the kernel, right but slow",
            "An adapter with RoCE or InfiniBand; to use TCP instead: `rdma link delete "
            f"{one.name}`",
        )
    return Line(RDMA, "device", Verdict.PASS, found)


def access(choice: Choice) -> Line:
    """Whether this process may open the device."""
    one = choice.device
    if one.reachable:
        return Line(RDMA, "access", Verdict.PASS, f"{one.node} can be opened")
    if one.node:
        found, remedy = f"{one.node} can't be opened", f"chmod 666 {one.node}, or `--device` of "
        return Line(RDMA, "access", Verdict.FAIL, found, f"{remedy}docker")
    found = f"no /dev/infiniband/uverbs* belongs to {one.name}"
    return Line(RDMA, "access", Verdict.FAIL, found, "modprobe ib_uverbs")


def roce_mtu(choice: Choice, readings: Readings) -> Line:
    """Packets of RoCE are as large as a power of two that the interface's own have room for."""
    link = _link(readings, choice.gid.netdev)
    if choice.port.layer != ETHERNET or link is None:
        found = f"that of {choice.port.layer}; all hosts have to have the same"
        return Line(RDMA, "packets", Verdict.PASS, found)
    found = f"{link.name} carries {link.mtu:,} bytes in a packet"
    if link.mtu >= ROCE_MTU:
        return Line(RDMA, "packets", Verdict.PASS, found)
    room = max(
        data for data in (0, 256, 512, 1024, 2048) if data <= max(0, link.mtu - ROCE_HEADERS)
    )
    return Line(
        RDMA,
        "packets",
        Verdict.WARN,
        f"{found}, of which RoCE uses {room:,}; it could be 4,096",
        f"ip link set {link.name} mtu {ROCE_MTU}, on all hosts and their switches",
    )


def roce_congestion(choice: Choice, readings: Readings) -> Line:
    """Congestion control of RoCE: without it, a full switch loses packets by the thousand."""
    name = "congestion"
    if choice.port.layer != ETHERNET:
        return Line(RDMA, name, Verdict.PASS, f"{choice.port.layer} loses nothing by itself")
    if choice.device.software:
        return Line(RDMA, name, Verdict.PASS, "an emulated device has none")
    link = _link(readings, choice.gid.netdev)
    netdev = choice.gid.netdev or "IFACE"
    if link is None or not link.ecn:
        return Line(
            RDMA,
            name,
            Verdict.WARN,
            f"the driver of {choice.device.name} does not say whether ECN is on",
            f"`mlnx_qos -i {netdev}` shows it; the switches have to mark packets, too",
        )
    off = sorted(part for part, on in link.ecn.items() if not on)
    if off:
        command = "; ".join(
            f"echo 1 > /sys/class/net/{link.name}/ecn/{part}/enable/3" for part in off
        )
        return Line(RDMA, name, Verdict.WARN, f"ECN is off: {', '.join(off)}", command)
    return Line(RDMA, name, Verdict.PASS, "ECN is on, for sending and for receiving")


def resent(choice: Choice) -> Line:
    """What the device itself counts as lost, out of order or sent again."""
    counters = choice.port.counters
    lost = {name: counters[name] for name in _RESENT if counters.get(name)}
    packets = max((counters.get(name, 0) for name in _PACKETS), default=0)
    found = _counted(lost, packets)
    if sum(lost.values()) > LOSS_SHARE_MAX * packets:
        return Line(
            RDMA,
            "loss",
            Verdict.WARN,
            f"{choice.device.name}: {found}",
            "See to flow control or ECN on the switches; `rdma statistic show link "
            f"{choice.device.name}/{choice.port.number}` shows whether it grows",
        )
    return Line(RDMA, "loss", Verdict.PASS, f"{choice.device.name}: {found}")


def library(readings: Readings, wants: Wants, choice: Choice | None) -> Line:
    """Pyverbs, by which Python reaches a device."""
    if readings.pyverbs:
        return Line(RDMA, "pyverbs", Verdict.PASS, "installed")
    if choice is None and not wants.rdma:
        return Line(RDMA, "pyverbs", Verdict.PASS, "not installed; without a device none is needed")
    return Line(
        RDMA,
        "pyverbs",
        Verdict.FAIL if wants.rdma else Verdict.WARN,
        "not installed: the device can't be used, atoms go over TCP",
        "apt-get install python3-pyverbs and a virtual environment with --system-site-packages, "
        "or pip install 'dsec-kernel[verbs]' (docs/RDMA.md)",
    )


def memlock(readings: Readings, wants: Wants, choice: Choice | None) -> Line:
    """Memory that may be locked: a pool that an adapter writes to can't be moved by the kernel."""
    limit = readings.memlock
    needed = wants.pool_bytes or (CLUSTER_POOL_BYTES if wants.cluster else 256 << 20)
    allowed = "any amount" if limit.hard is None else size(limit.hard)
    if readings.ipc_lock:
        found = "any amount may be locked (CAP_IPC_LOCK)"
        return Line(RDMA, "memlock", Verdict.PASS, found)
    found = f"{allowed} may be locked, a pool of {size(needed)} has to be"
    if limit.allows(needed):
        return Line(RDMA, "memlock", Verdict.PASS, found)
    remedy = (
        f"`ulimit -l {-(-needed // 1024)}` as root, LimitMEMLOCK=infinity of the systemd unit, "
        "`--ulimit memlock=-1` of docker, or `* - memlock unlimited` in /etc/security/limits.conf"
    )
    if choice is None and not wants.rdma:
        found = f"{allowed} may be locked, which matters to a pool that RDMA reaches"
        return Line(RDMA, "memlock", Verdict.PASS, found)
    return Line(RDMA, "memlock", Verdict.FAIL, found, remedy)


def congestion(readings: Readings) -> Line:
    """ECN of TCP, over which hosts talk in any case."""
    found = f"{readings.tcp_congestion}, tcp_ecn is {readings.tcp_ecn}"
    if readings.tcp_ecn == 0:
        remedy = "sysctl -w net.ipv4.tcp_ecn=2"
        return Line(NETWORK, "tcp", Verdict.WARN, f"{found}: marks are ignored", remedy)
    return Line(NETWORK, "tcp", Verdict.PASS, found)


def loss(readings: Readings, choice: Choice | None) -> Iterator[Line]:
    """Packets that an interface lost, of those that lead to other hosts."""
    wanted = {choice.gid.netdev} if choice is not None else set()
    links = [link for link in readings.links if link.name in wanted or link.default]
    for link in links or [link for link in readings.links if link.up][:1]:
        name = f"loss on {link.name}"
        counters = link.counters
        lost = {what: counters[what] for what in (*_LOST, *_LOST_MORE) if counters.get(what)}
        packets = counters.get("rx_packets", 0) + counters.get("tx_packets", 0)
        found = _counted(lost, packets)
        if sum(lost.values()) > LOSS_SHARE_MAX * packets:
            remedy = (
                f"`ethtool -S {link.name}` tells where; larger rings of the adapter "
                f"(`ethtool -G {link.name} rx 4096`), flow control, another cable"
            )
            yield Line(NETWORK, name, Verdict.WARN, found, remedy)
        else:
            yield Line(NETWORK, name, Verdict.PASS, found)


def _counted(lost: Mapping[str, int], packets: int) -> str:
    if not lost:
        return f"nothing was lost of {packets:,} packets"
    told = ", ".join(f"{name} {count:,}" for name, count in sorted(lost.items()))
    return f"{sum(lost.values()):,} of {many(packets)} packets lost or late: {told}"


def _link(readings: Readings, name: str) -> Link | None:
    return next((link for link in readings.links if link.name == name), None)
