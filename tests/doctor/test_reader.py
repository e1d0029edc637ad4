"""The doctor's reader: over a made tree, and over this machine, whatever it is."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from dsec.doctor import Limit, Wants, examine
from dsec.doctor.reader import read
from tests.sml.devices import rxe, write

ROUTE = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    "eth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
)


def test_a_tree_is_read_as_it_is(tmp_path: Path) -> None:
    rxe(tmp_path)
    write(
        tmp_path,
        {
            "proc/mounts": "tmpfs /dev/shm tmpfs rw,nosuid,huge=within_size 0 0\n",
            "proc/net/route": ROUTE,
            "proc/self/status": "Name:\tx\nCapEff:\t0000000000004000\n",
            "proc/sys/vm/max_map_count": "65530\n",
            "proc/sys/kernel/pid_max": "4194304\n",
            "proc/sys/kernel/threads-max": "1000\n",
            "proc/sys/kernel/seccomp/actions_avail": "kill_process errno allow\n",
            "proc/sys/net/ipv4/tcp_ecn": "1\n",
            "proc/sys/net/ipv4/tcp_congestion_control": "bbr\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            "sys/class/net/lo/mtu": "65536\n",
            "sys/class/net/eth0/mtu": "9000\n",
            "sys/class/net/eth0/operstate": "up\n",
            "sys/class/net/eth0/statistics/rx_packets": "123\n",
            "sys/class/net/eth0/ecn/roce_np/enable/3": "1\n",
            "sys/class/net/eth0/ecn/roce_rp/enable/3": "0\n",
            "sys/class/net/eth1/mtu": "1500\n",
            "sys/class/net/eth1/operstate": "down\n",
            "dev/shm/x": "",
        },
    )
    found = read(tmp_path)
    assert found.shm_huge == "within_size"
    assert found.shm_bytes == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert found.ipc_lock
    assert found.maps_max == 65530
    assert found.pids_max is not None
    assert found.pids_max <= 1000
    assert found.seccomp == ("kill_process", "errno", "allow")
    assert (found.tcp_ecn, found.tcp_congestion) == (1, "bbr")
    assert found.cgroup_version == 2
    assert [device.name for device in found.devices] == ["rxe0"]
    eth0, eth1 = found.links
    assert (eth0.name, eth0.mtu, eth0.up, eth0.default) == ("eth0", 9000, True, True)
    assert eth0.counters == {"rx_packets": 123}
    assert eth0.ecn == {"roce_np": True, "roce_rp": False}
    assert (eth1.name, eth1.up, eth1.default, eth1.ecn) == ("eth1", False, False, {})


def test_an_empty_tree_is_a_poor_machine(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert (found.shm_bytes, found.shm_free_bytes, found.shm_huge) == (None, 0, "never")
    assert (found.devices, found.links, found.cgroup_version) == ((), (), 0)
    assert not found.ipc_lock


def test_this_machine_is_read_and_judged() -> None:
    found = read()
    assert found.cores == len(os.sched_getaffinity(0))
    assert found.open_files.hard in (None, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    assert found.root is (os.geteuid() == 0)
    assert found.shm_bytes
    assert examine(Wants(agents=2)).lines


def test_limits_are_those_of_this_process() -> None:
    code = (
        "import resource as r\n"
        "r.setrlimit(r.RLIMIT_MEMLOCK, (4096, 65536)); r.setrlimit(r.RLIMIT_NOFILE, (64, 128))\n"
        "from dsec.doctor.reader import read\n"
        "found = read(); print(repr((found.memlock, found.open_files)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == repr((Limit(4096, 65536), Limit(64, 128)))
