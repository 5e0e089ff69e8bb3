"""How often the kernel's OOM killer struck where this process lives: in its cgroup (v2 or v1), else on the machine.

The agent is in the same cgroup as we are, so that a count that grew while it ran, and an agent that ended by SIGKILL,
say together what it died of. Either alone says nothing: it may have been a tool of its, or a person.
"""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")
MOUNT = Path("/sys/fs/cgroup")


def oom_counter(proc: Path = PROC, mount: Path = MOUNT) -> Path | None:
    """The file whose line `oom_kill N` counts for us; None where there is none (not Linux)."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    for place in _places(lines, mount):
        if oom_kills(place) is not None:
            return place
    machine = proc / "vmstat"  # the root cgroup counts nothing by itself
    return machine if oom_kills(machine) is not None else None


def _places(lines: list[str], mount: Path) -> list[Path]:
    """Candidates, best first. In a container without a cgroup namespace of its own our cgroup is the top of the mount,
    whatever /proc says."""
    found: list[Path] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, inside = rest.partition(":")
        below = inside.lstrip("/")
        if "memory" in controllers.split(","):  # v1
            top = mount / "memory"
            found[:0] = [top / below / "memory.oom_control", top / "memory.oom_control"]
        elif not controllers:  # v2
            found += [mount / below / "memory.events", mount / "memory.events"]
    return found


def oom_kills(file: Path | None) -> int | None:
    """The number in its line `oom_kill N`; None where it cannot be read, or has no such line."""
    if file is None:
        return None
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError):
        return None
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.strip().isdigit():
            return int(number)
    return None


def oom_kills_since(before: int | None, file: Path | None) -> int:
    """How many more there are than `before`."""
    now = oom_kills(file)
    return max(0, now - before) if now is not None and before is not None else 0
