"""Builds hooks/client.c, the hook client, into the package; part of every build, also of the editable install.

A wheel with it is one for this platform, any Python; without a C compiler, or when it fails, the wheel is for all of
them and hooks/client.py does the work. A static client needs no libc, so its wheel is true under each manylinux and
musllinux tag, whatever machine built it; a dynamic one gets the plain tag of this machine, which PyPI does not take.
An editable install has it in the checkout, at the same place in the package.
"""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

PLACE = "wal_agent/_shipped/hooks/client"
WAYS = (("-static",), ())  # static starts in two thirds of the time; not every system has a static libc
ANY_LINUX = ("x86_64", "aarch64", "ppc64le", "s390x")  # the 64 bit ones of manylinux2014 and musllinux_1_1
PT_INTERP = 3
USAGE = 2  # how the client ends when it is given nothing


def compile_client(source: Path, target: Path) -> str | None:
    """None when `target` is a client that runs on this machine, else why there is none; a former one is gone then."""
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    flags = ["-std=c99", "-Wall", "-Wextra", "-O2", "-s"]
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f"{target.name}.{os.getpid()}")
    why = ""
    try:
        for way in WAYS:
            try:
                _run([*compiler, *flags, *way, "-o", str(made), str(source)], 0)
                _run([str(made)], USAGE)
            except (OSError, subprocess.SubprocessError) as error:
                why = str(error)
                continue
            made.replace(target)  # one that runs now is not touched
            return None
    finally:
        made.unlink(missing_ok=True)
    target.unlink(missing_ok=True)
    return why


def _run(argv: list[str], code: int) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != code:
        raise subprocess.SubprocessError(f"{shlex.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """What hatchling calls."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        self._made = tempfile.TemporaryDirectory(prefix="wal-agent-")
        target = root / PLACE if version == "editable" else Path(self._made.name) / "client"
        if why := compile_client(root / "hooks" / "client.c", target):
            self.app.display_warning(f"wal-agent: no native hook client, each hook takes some 10 ms more ({why})")
        elif version != "editable":
            build_data["force_include"][str(target)] = PLACE
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform(is_static(target))}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._made.cleanup()


def is_static(program: Path) -> bool:
    """Return whether `program` is an ELF file without interpreter (PT_INTERP): the kernel alone can start it."""
    data = program.read_bytes()
    if data[:5] != b"\x7fELF\x02":  # 64 bit
        return False
    order = "<" if data[5] == 1 else ">"
    (offset,) = struct.unpack_from(f"{order}Q", data, 32)
    size, count = struct.unpack_from(f"{order}HH", data, 54)
    return all(struct.unpack_from(f"{order}I", data, offset + n * size)[0] != PT_INTERP for n in range(count))


def _platform(static: bool) -> str:
    """The platform tag for a client that was made on this machine."""
    platforms = (tag.platform for tag in sys_tags())
    plain = next(name for name in platforms if "manylinux" not in name and "musllinux" not in name)
    arch = plain.removeprefix("linux_")
    if not static or arch not in ANY_LINUX:
        return plain
    old = ".manylinux2014_" + arch
    return f"manylinux_2_17_{arch}{old}.musllinux_1_1_{arch}"
