"""RDMA devices as /sys shows them, and the choice among them, over trees made for the purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.errors import DeviceAbsent, GidAbsent, PortAbsent, PortDown, RdmaError
from dsec.sml.verbs.fabric import Device, Gid, Port, choose, read
from tests.sml.devices import rxe

IPV4 = Gid(1, "::ffff:10.77.0.1", "RoCE v2", "eth0")
LINK = Gid(0, "fe80::1", "RoCE v2", "eth0")
UP = Port(1, gids=(LINK, IPV4))


def test_a_device_is_read_as_the_kernel_shows_it(tmp_path: Path) -> None:
    rxe(tmp_path)
    (device,) = read(tmp_path)
    assert (device.name, device.software, device.node) == ("rxe0", True, "/dev/infiniband/uverbs0")
    assert device.reachable
    (port,) = device.ports
    assert (port.number, port.state, port.layer) == (1, "ACTIVE", "Ethernet")
    assert port.counters == {"rcvd_pkts": 17}
    assert [(gid.index, gid.ipv4, gid.netdev) for gid in port.gids] == [
        (0, None, ""),
        (1, "10.77.0.1", "eth0"),
    ]
    assert choose((device,)).gid.index == 1


def test_a_machine_without_rdma_has_no_device(tmp_path: Path) -> None:
    assert read(tmp_path) == ()


def test_a_device_whose_file_is_missing_is_not_reachable(tmp_path: Path) -> None:
    rxe(tmp_path)
    (tmp_path / "dev/infiniband/uverbs0").unlink()
    assert not read(tmp_path)[0].reachable


def test_hardware_comes_before_emulation_and_what_works_before_what_does_not() -> None:
    soft, hard = Device("a", (UP,), software=True), Device("b", (UP,))
    assert choose((soft, hard)).device is hard
    dead = Device("c", (Port(1, "DOWN"),))
    assert choose((dead, soft)).device is soft
    assert choose((soft, hard), name="a").device is soft
    two = Device("d", (Port(1, "DOWN"), Port(2, gids=(LINK, IPV4))))
    assert choose((two,)).port.number == 2


def test_an_address_can_be_asked_for_by_its_index() -> None:
    assert choose((Device("a", (UP,)),), gid=0).gid is LINK
    infiniband = Port(1, layer="InfiniBand", gids=(Gid(0, "fe80::2"),))
    assert choose((Device("a", (infiniband,)),)).gid.index == 0


OLD = Gid(0, "::ffff:10.0.0.1", "IB/RoCE v1", "eth0")


@pytest.mark.parametrize(
    ("devices", "asked", "kind", "said", "remedy"),
    [
        ((), {}, DeviceAbsent, r"no RDMA device \(/sys", "modprobe rdma_rxe"),
        ((), {"name": "x"}, DeviceAbsent, r"no RDMA device x \(", "modprobe"),
        ((Device("a", (UP,)),), {"name": "x"}, DeviceAbsent, "there is a", "rdma.device"),
        ((Device("a", (UP,)),), {"port": 2}, PortAbsent, "no port 2; it has 1", "rdma.port"),
        ((Device("a"),), {}, PortAbsent, "it has none", "rdma.port"),
        ((Device("a", (Port(1, "DOWN"),)),), {}, PortDown, "is DOWN, not ACTIVE", "ip link set"),
        (
            (Device("a", (Port(1, "INIT", "InfiniBand"),)),),
            {},
            PortDown,
            "is INIT",
            "subnet manager",
        ),
        ((Device("a", (UP,)),), {"gid": 7}, GidAbsent, "no GID 7; it has 0", "rdma.gid"),
        ((Device("a", (Port(1, gids=(LINK,)),)),), {}, GidAbsent, "IPv4", "ip addr add"),
        ((Device("a", (Port(1, gids=(OLD,)),)),), {}, GidAbsent, "RoCE v2; it has 0", "ip addr"),
        ((Device("a", (Port(1),)),), {}, GidAbsent, "it has none", "ip addr add"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(
    devices: tuple[Device, ...], asked: dict[str, object], kind: type, said: str, remedy: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        choose(devices, **asked)  # type: ignore[arg-type]
    assert isinstance(caught.value, RdmaError)
    assert remedy in caught.value.remedy
