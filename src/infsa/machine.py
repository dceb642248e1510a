"""How much memory the machine could still give."""

import os
import re
from pathlib import Path


def show_bytes(count: float) -> str:
    """A number of bytes for people."""
    mebibytes = round(count / 2**20)
    return f"{count / 2**30:.2f} GiB" if mebibytes >= 1024 else f"{mebibytes} MiB"


def available() -> int:
    """Bytes of memory that the machine could still give."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    try:
        match = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
        machine = int(match[1]) * 1024 if match else machine
    except OSError:
        pass
    room = container_room()
    return machine if room is None else min(machine, room)


def container_room(group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that a container may still take before the system ends its processes; None without a limit."""
    try:
        limit, used, facts = (
            (group / f"memory.{name}").read_text(encoding="ascii").split() for name in ("max", "current", "stat")
        )
        cached = facts[facts.index("inactive_file") + 1]
        return max(0, int(limit[0]) - int(used[0]) + int(cached))  # cached files give way
    except (OSError, ValueError):  # no such file, or "max"
        return None
