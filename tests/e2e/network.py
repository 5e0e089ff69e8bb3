"""Hosts of their own on one machine: network namespaces, each with one cable to the store and one to the model.

A cable that is cut loses packets without a word, as a partition does; a closed port would answer at once.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass


def allowed() -> bool:
    """Whether this machine lets us make namespaces: as root, with iproute2."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        return False
    for _ in range(3):  # all of the tests' processes ask at the same moment, and must find the same
        name = f"wa-{secrets.token_hex(3)}"
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
        if made.returncode == 0:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            return True
        time.sleep(0.2)
    return False


@dataclass(frozen=True, slots=True)
class Cable:
    """A link from this host to a namespace. `near` is our address, which processes in there connect to."""

    name: str
    near: str

    def cut(self) -> None:
        _ip("link", "set", self.name, "down")

    def mend(self) -> None:
        _ip("link", "set", self.name, "up")


@dataclass(frozen=True, slots=True)
class Namespace:
    """`enter` is the command that a process is started through to live in it."""

    name: str
    enter: tuple[str, ...]


@contextmanager
def namespace() -> Iterator[Namespace]:
    name = f"wa-{secrets.token_hex(4)}"
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        yield Namespace(name, ("ip", "netns", "exec", name))
    finally:
        _ip("netns", "del", name)


@contextmanager
def cable(to: Namespace) -> Iterator[Cable]:
    """A cable with addresses of its own: by chance, since a killed test leaves its cables and their addresses."""
    end = secrets.token_hex(3)
    near, far = f"wa{end}a", f"wa{end}b"
    net = f"10.{128 + secrets.randbelow(128)}.{secrets.randbelow(256)}"
    with ExitStack() as made:
        _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", to.name)
        made.callback(_ip, "link", "del", near)
        _ip("addr", "add", f"{net}.1/30", "dev", near)
        _ip("-n", to.name, "addr", "add", f"{net}.2/30", "dev", far)
        _ip("link", "set", near, "up")
        _ip("-n", to.name, "link", "set", far, "up")
        yield Cable(near, f"{net}.1")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
