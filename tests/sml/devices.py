"""Trees of files that look like the /sys of a machine with an RDMA device."""

from __future__ import annotations

from pathlib import Path

MAPPED = "0000:0000:0000:0000:0000:ffff:0a4d:0001"
LOCAL = "fe80:0000:0000:0000:5054:00ff:fe77:0001"
UNSET = "0000:0000:0000:0000:0000:0000:0000:0000"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def rxe(root: Path, name: str = "rxe0", state: str = "4: ACTIVE") -> None:
    port = f"sys/class/infiniband/{name}/ports/1"
    write(
        root,
        {
            f"sys/class/infiniband/{name}/parent": "eth0\n",
            f"{port}/state": f"{state}\n",
            f"{port}/link_layer": "Ethernet\n",
            f"{port}/gids/0": f"{LOCAL}\n",
            f"{port}/gids/1": f"{MAPPED}\n",
            f"{port}/gids/2": f"{UNSET}\n",
            f"{port}/gid_attrs/types/0": "RoCE v2\n",
            f"{port}/gid_attrs/types/1": "RoCE v2\n",
            f"{port}/gid_attrs/ndevs/1": "eth0\n",
            f"{port}/hw_counters/rcvd_pkts": "17\n",
            f"{port}/counters/port_rcv_packets": "N/A (no PMA)\n",
            "sys/class/infiniband_verbs/uverbs0/ibdev": f"{name}\n",
            "sys/class/infiniband_verbs/abi_version": "6\n",
            "dev/infiniband/uverbs0": "",
        },
    )
