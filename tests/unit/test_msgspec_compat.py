"""msgspec_compat.py: threads that decode into a class for the first time, all at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import wal_agent

STORM = """
import sys, threading
from typing import Optional
import msgspec
from wal_agent import msgspec_compat

sys.setswitchinterval(1e-6)
RAW = b'{"a":[{"a":1,"b":{"x":[1]}}],"b":{"k":{"a":2}},"c":[{"a":3}],"d":{"a":["x","y"]}}'
for _ in range(40):
    class Inner(msgspec.Struct):
        a: int = 0
        b: dict[str, list[int]] = {}
    class Outer(msgspec.Struct):
        a: list[Inner] = []
        b: dict[str, Inner] = {}
        c: tuple[Inner, ...] = ()
        d: "dict[str, tuple[str, str]]" = {}
    together = threading.Barrier(8)
    def decoded():
        together.wait()
        DECODE
    threads = [threading.Thread(target=decoded) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print("done")
"""


def test_threads_that_are_first_at_once_crash_nothing() -> None:
    storm = STORM.replace(
        "DECODE", "msgspec_compat.of_json(Outer).decode(RAW); msgspec_compat.of_values(Outer)(msgspec.json.decode(RAW))"
    )
    done = subprocess.run([sys.executable, "-c", storm], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_nobody_else_decodes_into_a_type_that_may_not_be_known_yet() -> None:
    """I5: the supervisor would die by SIGSEGV, when two hooks ask at the same moment."""
    by_itself = re.compile(r"msgspec\.convert\(|\bDecoder(\[.*\])?\(|\btype=(?!\"|')")
    folder = Path(wal_agent.__file__).parent
    calls = [
        f"{path.relative_to(folder)}: {line.strip()}"
        for path in folder.rglob("*.py")
        if path.name != "msgspec_compat.py"
        for line in path.read_text().splitlines()
        if "msgspec" in line and by_itself.search(line)
    ]
    assert calls == []
