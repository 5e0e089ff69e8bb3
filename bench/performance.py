"""Write docs/PERFORMANCE.md: an older tree against this one, in one run. `python -m bench.performance REVISION`.

Both trees take turns, so that the machine's drift hits both alike. A start's cost is CPU time (user and system, of the
process and its children); that of `run` is the supervisor's own, as the agent begins.

The goals whose benches take long are in `bench/points.json`, by hand, each with its command and its day;
`python -m bench.performance points` writes them into the page alone.
"""

# ruff: noqa: E501 - rows of Markdown

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.counts import TREE, counts
from bench.measure import scaled
from bench.story import story

ROUNDS = scaled(9, 1)
COMMANDS = ("--version", "--help", "status --help", "status", "log", "list")
PAGE = TREE / "docs" / "PERFORMANCE.md"
Pair = tuple[list[float], list[float]]

POINTS = Path(__file__).with_name("points.json")


class Row(msgspec.Struct, frozen=True):
    """One goal of the work on performance. `now`: as `command` said on the day `date`; `why`: what stands between it and
    the goal."""

    point: int
    what: str
    goal: str
    before: str
    now: str
    date: str
    command: str
    why: str


def points() -> str:
    """The goals, each with its newest measurement: what takes long, or another program, is kept in POINTS."""
    rows = msgspec.json.decode(POINTS.read_bytes(), type=list[Row])
    table = "".join(f"| {row.what} | {row.goal} | {row.now} | {commands(row.command)} |\n" for row in rows)
    return f"""## The goals

Measured from {min(filter(None, (row.date for row in rows)))} to {max(row.date for row in rows)}. Ratios and counts carry
over to other machines, seconds do not. `bench/points.json` has the figures of before, and why a goal is missed.

| what | goal | now | command |
|---|---|---|---|
{table}
"""


def commands(words: str) -> str:
    return ", ".join(f"`{each}`" for each in words.split("; ") if each)


def unpack(revision: str, folder: Path) -> Path:
    """Put the tree of `revision` into `folder`."""
    packed = subprocess.run(["git", "archive", revision], cwd=TREE, capture_output=True, check=True).stdout
    subprocess.run(["tar", "x", "-C", str(folder)], input=packed, check=True)
    return folder


def cpu_of(tree: Path, words: str, home: Path) -> float:
    """Milliseconds of CPU of one command."""
    kept = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(tree)}
    with (Path(os.devnull)).open("w") as nowhere:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "wal_agent", *words.split()],
            env=kept,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=nowhere,
            stderr=nowhere,
        )
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
    return (used.ru_utime + used.ru_stime) * 1000


def paired(one: Callable[[], float], other: Callable[[], float]) -> Pair:
    found: Pair = ([], [])
    for n in range(ROUNDS + 2):
        values = one(), other()
        if n >= 2:  # the first fill caches
            found[0].append(values[0])
            found[1].append(values[1])
    return found


def row(name: str, found: Pair, unit: str = "ms") -> str:
    """A row of the table: medians, the median of the ratios of pairs, and the middle half of these."""
    ratios = sorted(after / before for before, after in zip(*found, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    before, after = map(statistics.median, found)
    ratio = statistics.median(ratios)
    return f"| {name} | {before:.0f} {unit} | {after:.0f} {unit} | {ratio:.2f} | {low:.2f} - {high:.2f} |\n"


def starts(before: Path) -> str:
    rows = []
    with story() as at:
        for words in COMMANDS:
            found = paired(lambda: cpu_of(before, words, at.home), lambda: cpu_of(TREE, words, at.home))  # noqa: B023
            rows.append(row(f"`{words}`, CPU", found))
        argv = [sys.executable, "-P", "-m", "wal_agent", "run", "gemini", "--job=gemini-work", "--", "-p", "x"]

        noted = at.root / "cpu"
        stub = at.stub.read_text().replace("date +", f"cut -d' ' -f14,15 /proc/$PPID/stat > {noted}; date +", 1)
        at.stub.write_text(stub)  # its parent is the supervisor

        def run(tree: Path) -> float:
            at.until_agent(argv, WAL_AGENT_GEMINI=str(at.stub), PYTHONPATH=str(tree))
            return sum(map(int, noted.read_text().split())) * 1000 / os.sysconf("SC_CLK_TCK")

        rows.append(
            row(
                "`run gemini` up to the agent's first instruction, CPU",
                paired(lambda: run(before), lambda: run(TREE)),
            )
        )
    return "".join(rows)


def counted(before: Path) -> str:
    was, now = counts(before), counts()
    return "".join(f"| {name} | {was[name]:,} | {now[name]:,} | {now[name] / was[name]:.2f} |\n" for name in now)


def write_points() -> None:
    """Write the goals into the page as it is."""
    page = PAGE.read_text()
    before, _, rest = page.partition("## The goals")
    _, _, after = rest.partition("## Starts")
    PAGE.write_text(f"{before}{points()}## Starts{after}")


def main() -> None:
    if sys.argv[1:] == ["points"]:
        write_points()
        return
    revision = sys.argv[1] if len(sys.argv) > 1 else "HEAD~1"
    with tempfile.TemporaryDirectory(prefix="wa-bench-") as folder:
        before = unpack(revision, Path(folder))
        short = subprocess.run(
            ["git", "rev-parse", "--short", revision], cwd=TREE, capture_output=True, text=True, check=True
        ).stdout.strip()
        page = f"""# Performance, before and after

<!-- Generated by: python -m bench.performance {short} -->

Commit {short} against this tree, {time.strftime("%Y-%m-%d", time.gmtime())}, on {os.cpu_count()} cores that other
programs shared ({platform.machine()}, {platform.system()}, Python {platform.python_version()}). Both trees took turns,
{ROUNDS} rounds after two that do not count; the ratio is the median of the ratios of the rounds, the spread is the middle
half of them. The milliseconds are of this machine; read the ratios. `bench/README.md` has what is measured against other
tools.

{points()}## Starts

| what | before | after | ratio | spread |
|---|---|---|---|---|
{starts(before)}
## Counts

No noise reaches these; `bench/baseline.json` holds them, and a unit test fails where one goes up. By themselves:
`python -m bench.counts`.

| what | before | after | ratio |
|---|---|---|---|
{counted(before)}"""
    PAGE.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
