"""The doctor's judgements by table: what is found, how it comes out, and which command mends it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.doctor import Limit, Line, Link, Readings, Verdict, Wants, judge
from dsec.sml.verbs.fabric import Device, Gid, Port

GIB = 1 << 30
GOOD = Readings()
PLAIN = Wants()
CLUSTER = Wants(pool_bytes=32 * GIB, cluster=True)
GID = Gid(3, "::ffff:10.0.0.1", "RoCE v2", "eth0")
NIC = Device("mlx5_0", (Port(1, gids=(GID,)),), node="/dev/infiniband/uverbs0", reachable=True)
ECN = {"roce_np": True, "roce_rp": True}
ETH = Link("eth0", 9000, default=True, counters={"rx_packets": 10**6}, ecn=ECN)
RDMA = Readings(devices=(NIC,), pyverbs=True, links=(ETH,))
PASS, WARN, FAIL = Verdict


def port(**changes: object) -> Readings:
    changed = replace(NIC.ports[0], **changes)  # type: ignore[arg-type]
    return replace(RDMA, devices=(replace(NIC, ports=(changed,)),))


def nic(**changes: object) -> Readings:
    return replace(RDMA, devices=(replace(NIC, **changes),))  # type: ignore[arg-type]


def eth(**changes: object) -> Readings:
    return replace(RDMA, links=(replace(ETH, **changes),))  # type: ignore[arg-type]


def line(readings: Readings, wants: Wants, name: str) -> Line:
    (found,) = [each for each in judge(readings, wants).lines if each.name == name]
    return found


TABLE: list[tuple[str, Readings, Wants, Verdict, str, str]] = [
    ("cores", GOOD, PLAIN, PASS, "8 that", ""),
    ("cores", replace(GOOD, cores=1), PLAIN, WARN, "1 that", "taskset"),
    ("cores", replace(GOOD, cores_quota=1.5), PLAIN, WARN, "the time of 1.5", "cpu.max"),
    ("cores", replace(GOOD, cores_quota=8.0), PLAIN, PASS, "8 that", ""),
    ("memory", GOOD, PLAIN, PASS, "64.0 GiB are available", ""),
    ("memory", replace(GOOD, cgroup_limit_bytes=GIB), PLAIN, PASS, "within the 1.0 GiB", ""),
    ("memory", replace(GOOD, available_bytes=100 << 20), PLAIN, WARN, "100 MiB", "memory.max"),
    ("memory", replace(GOOD, available_bytes=None), PLAIN, WARN, "does not say", "mount -t proc"),
    ("/dev/shm", GOOD, CLUSTER, PASS, "64.0 GiB of 64.0 GiB are free", ""),
    ("/dev/shm", replace(GOOD, shm_bytes=None), PLAIN, FAIL, "none", "mount -t tmpfs"),
    (
        "/dev/shm",
        replace(GOOD, shm_bytes=64 << 20, shm_free_bytes=60 << 20),
        PLAIN,
        WARN,
        "60 MiB of 64 MiB are free; the pool takes 256 MiB",
        "remount,size=260m",
    ),
    (
        "/dev/shm",
        replace(GOOD, shm_bytes=GIB, shm_free_bytes=GIB),
        Wants(pool_bytes=2 * GIB),
        FAIL,
        "takes 2.0 GiB",
        "remount,size=2048m",
    ),
    ("pool", GOOD, PLAIN, PASS, "up to 64.0 GiB", ""),
    ("pool", GOOD, CLUSTER, PASS, "32.0 GiB", ""),
    ("pool", GOOD, replace(CLUSTER, pool_bytes=GIB), WARN, "1.0 GiB", "pool.size_mb to 32768"),
    ("pool", GOOD, replace(PLAIN, pool_bytes=GIB), PASS, "1.0 GiB", ""),
    (
        "pool",
        replace(GOOD, available_bytes=8 * GIB),
        Wants(cluster=True),
        WARN,
        "at most 8.0 GiB would fit",
        "32768",
    ),
    (
        "pool",
        replace(GOOD, available_bytes=8 * GIB),
        CLUSTER,
        FAIL,
        "32.0 GiB are asked for; 8.0 GiB would fit",
        "pool.size_mb to 8192 or less",
    ),
    ("huge pages", GOOD, PLAIN, PASS, "huge=never", ""),
    ("huge pages", GOOD, CLUSTER, WARN, "pages of 4 KiB", "remount,huge=within_size"),
    ("huge pages", replace(GOOD, shm_huge="always"), CLUSTER, PASS, "huge=always", ""),
    ("descriptors", GOOD, Wants(agents=1000), PASS, "16,064 are for 1,000 agents", ""),
    (
        "descriptors",
        replace(GOOD, open_files=Limit(256, 1024)),
        Wants(agents=100),
        FAIL,
        "up to 1,024 may be open, 1,664 are for 100 agents",
        "ulimit -n 1664",
    ),
    (
        "descriptors",
        replace(GOOD, open_files=Limit(256, None)),
        Wants(agents=100),
        PASS,
        "any number may be open",
        "",
    ),
    ("processes", GOOD, PLAIN, PASS, "11 are for 1 agent", ""),
    ("processes", replace(GOOD, pids_max=100), Wants(agents=100), FAIL, "to 100", "pids-limit"),
    (
        "processes",
        replace(GOOD, processes=Limit(50, 100)),
        Wants(agents=100),
        FAIL,
        "up to 100",
        "ulimit -u 308",
    ),
    (
        "processes",
        replace(GOOD, processes=Limit(50, 100), root=True),
        Wants(agents=100),
        PASS,
        "308",
        "",
    ),
    ("mappings", GOOD, PLAIN, PASS, "65,530 in a process, 2,012 are for 1 agent", ""),
    ("mappings", GOOD, Wants(agents=10_000), FAIL, "122,000", "vm.max_map_count=244000"),
    ("mappings", replace(GOOD, maps_max=None), Wants(agents=10_000), PASS, "any number", ""),
    ("control groups", GOOD, PLAIN, PASS, "version 2", ""),
    ("control groups", replace(GOOD, cgroup_version=0), PLAIN, WARN, "none", "mount -t cgroup2"),
    ("control groups", replace(GOOD, cgroup_writable=False), PLAIN, WARN, "none can", "Delegate"),
    ("namespaces", GOOD, PLAIN, PASS, "can be made", ""),
    ("namespaces", replace(GOOD, user_namespaces=False), PLAIN, WARN, "no user", "sysctl -w user"),
    ("namespaces", replace(GOOD, user_namespaces=None), PLAIN, WARN, "nobody", "util-linux"),
    ("landlock", GOOD, PLAIN, PASS, "version 3", ""),
    ("landlock", replace(GOOD, landlock_abi=0), PLAIN, WARN, "has none", "lsm="),
    ("seccomp", GOOD, PLAIN, PASS, "those that ask a supervisor too", ""),
    ("seccomp", replace(GOOD, seccomp=("errno",)), PLAIN, PASS, "can be set", ""),
    ("seccomp", replace(GOOD, seccomp=()), PLAIN, WARN, "no filters", "CONFIG_SECCOMP_FILTER"),
    ("device", GOOD, PLAIN, PASS, "one host needs none", ""),
    ("device", GOOD, CLUSTER, WARN, "atoms go over TCP", "modprobe rdma_rxe"),
    ("device", GOOD, Wants(device="x"), FAIL, "no RDMA device x (", "modprobe"),
    ("device", RDMA, Wants(device="x"), FAIL, "there is mlx5_0", "rdma.device"),
    ("device", RDMA, PLAIN, PASS, "mlx5_0, port 1 (Ethernet), GID 3 (10.0.0.1)", ""),
    ("device", nic(software=True), PLAIN, WARN, "emulated", "rdma link delete mlx5_0"),
    ("device", RDMA, Wants(port=2), FAIL, "no port 2; it has 1", "rdma.port"),
    ("device", port(state="DOWN"), CLUSTER, WARN, "is DOWN", "ip link set eth0 up"),
    ("device", port(state="DOWN"), Wants(port=1), FAIL, "is DOWN", "ip link set eth0 up"),
    ("device", port(gids=()), Wants(device="mlx5_0"), FAIL, "it has none", "ip addr add"),
    ("device", RDMA, Wants(gid=1), FAIL, "no GID 1; it has 3 (10.0.0.1 RoCE v2)", "rdma.gid"),
    ("access", RDMA, PLAIN, PASS, "uverbs0", ""),
    ("access", nic(reachable=False), PLAIN, FAIL, "can't be opened", "chmod 666 /dev/infin"),
    ("access", nic(reachable=False, node=""), PLAIN, FAIL, "belongs", "modprobe ib_uverbs"),
    ("packets", RDMA, PLAIN, PASS, "9,000 bytes", ""),
    ("packets", eth(mtu=4200), PLAIN, PASS, "4,200 bytes", ""),
    ("packets", eth(mtu=1500), PLAIN, WARN, "uses 1,024", "ip link set eth0 mtu 4200"),
    ("packets", eth(mtu=68), PLAIN, WARN, "uses 0", "ip link"),
    ("packets", port(layer="InfiniBand"), PLAIN, PASS, "all hosts", ""),
    ("congestion", RDMA, PLAIN, PASS, "ECN is on", ""),
    ("congestion", eth(ecn={}), PLAIN, WARN, "does not say", "mlnx_qos -i eth0"),
    ("congestion", eth(ecn={**ECN, "roce_np": False}), PLAIN, WARN, "roce_np", "echo 1 >"),
    ("congestion", nic(software=True), PLAIN, PASS, "has none", ""),
    ("congestion", port(layer="InfiniBand"), PLAIN, PASS, "loses nothing", ""),
    ("loss", RDMA, PLAIN, PASS, "nothing was lost", ""),
    (
        "loss",
        port(counters={"port_rcv_packets": 10**6, "out_of_sequence": 11}),
        PLAIN,
        WARN,
        "mlx5_0: 11 of 1,000,000 packets lost or late: out_of_sequence 11",
        "rdma statistic show link mlx5_0/1",
    ),
    (
        "loss",
        port(counters={"port_rcv_packets": 10**6, "out_of_sequence": 9}),
        PLAIN,
        PASS,
        "9 of",
        "",
    ),
    ("pyverbs", RDMA, PLAIN, PASS, "installed", ""),
    ("pyverbs", GOOD, PLAIN, PASS, "without a device none is needed", ""),
    ("pyverbs", replace(RDMA, pyverbs=False), PLAIN, WARN, "over TCP", "python3-pyverbs"),
    ("pyverbs", replace(RDMA, pyverbs=False), Wants(device="mlx5_0"), FAIL, "can't", "docs/RDMA"),
    ("memlock", RDMA, CLUSTER, PASS, "any amount may be locked", ""),
    (
        "memlock",
        replace(RDMA, memlock=Limit(64 << 10, 64 << 10)),
        PLAIN,
        FAIL,
        "64 KiB may be locked, a pool of 256 MiB has to be",
        "ulimit -l 262144",
    ),
    (
        "memlock",
        replace(RDMA, memlock=Limit(64 << 10, 32 * GIB)),
        CLUSTER,
        PASS,
        "32.0 GiB may be locked",
        "",
    ),
    (
        "memlock",
        replace(RDMA, memlock=Limit(64 << 10, 64 << 10), ipc_lock=True),
        CLUSTER,
        PASS,
        "CAP_IPC_LOCK",
        "",
    ),
    ("memlock", replace(GOOD, memlock=Limit(8192, 8192)), PLAIN, PASS, "which matters", ""),
    ("tcp", GOOD, PLAIN, PASS, "cubic, tcp_ecn is 2", ""),
    ("tcp", replace(GOOD, tcp_ecn=0), PLAIN, WARN, "ignored", "tcp_ecn=2"),
    ("loss on eth0", RDMA, PLAIN, PASS, "nothing was lost of 1,000,000", ""),
    (
        "loss on eth0",
        eth(counters={"rx_packets": 600, "tx_packets": 400, "rx_dropped": 3, "tx_dropped": 0}),
        PLAIN,
        WARN,
        "3 of 1,000 packets lost or late: rx_dropped 3",
        "ethtool -S eth0",
    ),
]


@pytest.mark.parametrize(("name", "readings", "wants", "verdict", "found", "remedy"), TABLE)
def test_each_line(
    name: str, readings: Readings, wants: Wants, verdict: Verdict, found: str, remedy: str
) -> None:
    judged = line(readings, wants, name)
    assert judged.verdict is verdict, judged
    assert found in judged.found
    assert remedy in judged.remedy
    assert bool(remedy) == bool(judged.remedy), judged.remedy


def test_every_line_passes_somewhere_and_every_verdict_but_one_has_a_case() -> None:
    names = {each.name for each in judge(RDMA, PLAIN).lines}
    assert {row[0] for row in TABLE} == names
    assert {row[0] for row in TABLE if row[3] is PASS} == names


def test_the_worst_line_is_the_verdict() -> None:
    assert judge(RDMA, PLAIN).verdict is PASS
    assert judge(eth(mtu=1500), PLAIN).verdict is WARN
    report = judge(replace(RDMA, pyverbs=False), Wants(device="mlx5_0"))
    assert report.verdict is FAIL
    assert report.counts[FAIL] == 1
    assert sum(report.counts.values()) == len(report.lines)


def test_only_links_that_lead_to_other_hosts_are_judged() -> None:
    lossy = Link("eth1", counters={"rx_packets": 10, "rx_dropped": 5})
    report = judge(replace(RDMA, links=(ETH, lossy)), PLAIN)
    assert [each.name for each in report.lines if each.group == "network"] == [
        "tcp",
        "loss on eth0",
    ]
    report = judge(replace(GOOD, links=(replace(lossy, up=False), replace(lossy, name="x"))), PLAIN)
    assert report.lines[-1].name == "loss on x"


numbers = st.none() | st.integers(0, 1 << 45)
limits = st.builds(Limit, numbers, numbers)
counters = st.dictionaries(
    st.sampled_from(["rx_packets", "rx_dropped", "out_of_sequence", "rcvd_pkts"]),
    st.integers(0, 1 << 60),
)
gids = st.builds(
    Gid,
    st.integers(0, 255),
    st.ip_addresses(v=6).map(str),
    st.sampled_from(["", "RoCE v2", "IB/RoCE v1"]),
    st.sampled_from(["", "eth0", "eth1"]),
)
ports = st.builds(
    Port,
    st.integers(1, 4),
    st.sampled_from(["ACTIVE", "DOWN", "INIT", ""]),
    st.sampled_from(["Ethernet", "InfiniBand", ""]),
    st.lists(gids, max_size=3).map(tuple),
    counters,
)
devices = st.builds(
    Device,
    st.sampled_from(["a", "b"]),
    st.lists(ports, max_size=2).map(tuple),
    st.booleans(),
    st.sampled_from(["", "/dev/infiniband/uverbs0"]),
    st.booleans(),
)
links = st.builds(
    Link,
    st.sampled_from(["eth0", "eth1"]),
    st.integers(0, 9000),
    st.booleans(),
    st.booleans(),
    counters,
    st.dictionaries(st.sampled_from(["roce_np", "roce_rp"]), st.booleans()),
)
machines = st.builds(
    Readings,
    cores=st.integers(1, 512),
    cores_quota=st.none() | st.floats(0.01, 512),
    available_bytes=numbers,
    cgroup_limit_bytes=numbers,
    cgroup_version=st.integers(0, 2),
    shm_bytes=numbers,
    shm_free_bytes=st.integers(0, 1 << 45),
    memlock=limits,
    open_files=limits,
    processes=limits,
    pids_max=numbers,
    maps_max=numbers,
    user_namespaces=st.sampled_from([True, False, None]),
    landlock_abi=st.integers(0, 9),
    devices=st.lists(devices, max_size=2).map(tuple),
    links=st.lists(links, max_size=2, unique_by=lambda link: link.name).map(tuple),
)
wishes = st.builds(
    Wants,
    st.integers(1, 100_000),
    st.none() | st.integers(1, 1 << 44),
    st.booleans(),
    st.sampled_from([None, "a", "c"]),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(0, 255),
)


@given(machines, wishes)
def test_any_machine_is_judged_and_what_does_not_pass_has_a_remedy(
    readings: Readings, wants: Wants
) -> None:
    report = judge(readings, wants)
    names = [each.name for each in report.lines]
    assert len(set(names)) == len(names)
    for each in report.lines:
        assert each.found
        assert bool(each.remedy) == (each.verdict is not PASS)
