"""Whether a bucket's folder and a workspace are one inside the other, by whatever name the bucket is reached.

A log inside the workspace is the project's, and the agent's, to write; a workspace inside the bucket captures the log.
Names prove nothing (links, /proc/self/cwd, /dev/fd), so the folders themselves are compared: device and inode of each
folder above, as the kernel walks up, and the place in the file system, which a bind mount does not change.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

MOUNTS = Path("/proc/self/mountinfo")
MAX_DEPTH = 4096  # folders; a path has fewer
_OCTAL = re.compile(r"\\([0-7]{3})")

Overlap = Literal["bucket in workspace", "workspace in bucket"]


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of mountinfo: which part (`root`) of which file system (`device`) is seen at `point`."""

    device: str
    root: str
    point: str


def find_overlap(bucket: Path, workspace: Path) -> Overlap | None:
    """`bucket` need not exist yet; what exists of its path counts. OSError: the workspace cannot be read."""
    mounts = _mounts()
    named = [bucket, Path(os.path.realpath(bucket))]
    for path in named:
        if _within(_existing(path), workspace, mounts):
            return "bucket in workspace"
    if any(path.exists() and _within(workspace, path, mounts) for path in named):
        return "workspace in bucket"
    return None


def _existing(path: Path) -> Path:
    """The folder nearest to `path` that is there."""
    return next(at for at in (path, *path.parents) if at.is_dir())


def _within(inner: Path, outer: Path, mounts: dict[int, Mount]) -> bool:
    wanted = _identity(outer)
    if any(found == wanted for found in _upward(inner)):
        return True
    there, here = _in_file_system(inner, mounts), _in_file_system(outer, mounts)
    if there is None or here is None:
        return there is None and inner.parts[:2] in (("/", "proc"), ("/", "dev"))  # by another process's mounts
    return there[0] == here[0] and there[1].is_relative_to(here[1])


def _upward(path: Path) -> Iterator[tuple[int, int]]:
    """Each folder from `path` to the root, by the kernel's own `..`, which no link misleads."""
    at, last = path, None
    for _ in range(MAX_DEPTH):
        try:
            here = _identity(at)
        except OSError:  # no permission to search it
            return
        if here == last:
            return
        yield here
        at, last = at / "..", here


def _identity(path: Path) -> tuple[int, int]:
    info = path.stat()
    return info.st_dev, info.st_ino


def _in_file_system(path: Path, mounts: dict[int, Mount]) -> tuple[str, PurePosixPath] | None:
    """Device and path inside of it; None where the kernel does not list it (no Linux, or no mount of this process)."""
    if not mounts:
        return None
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        said = Path(f"/proc/self/fdinfo/{fd}").read_text()
        real = str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return None
    finally:
        os.close(fd)
    number = re.search(r"^mnt_id:\s*([0-9]+)$", said, re.MULTILINE)
    mount = mounts.get(int(number[1])) if number else None
    if mount is None or not PurePosixPath(real).is_relative_to(mount.point):
        return None
    return mount.device, PurePosixPath(mount.root) / PurePosixPath(real).relative_to(mount.point)


def _mounts() -> dict[int, Mount]:
    try:
        return parse_mounts(MOUNTS.read_text("utf-8", "surrogateescape"))
    except OSError:
        return {}


def parse_mounts(mountinfo: str) -> dict[int, Mount]:
    """The mounts by their ids (proc_pid_mountinfo(5))."""
    found = {}
    for line in mountinfo.splitlines():
        words = line.split(" ")
        if len(words) > 4 and words[0].isdecimal():
            found[int(words[0])] = Mount(words[2], _plain(words[3]), _plain(words[4]))
    return found


def _plain(text: str) -> str:
    """Blanks and backslashes are written in octal there."""
    return _OCTAL.sub(lambda m: chr(int(m[1], 8)), text)
