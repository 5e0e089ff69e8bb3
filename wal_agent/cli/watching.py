"""`status --watch` and `log --follow`: the same as without, again and again, for one listing and what is new."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import NoReturn

from wal_agent.cli.entries import Entry, as_json, as_line, entries
from wal_agent.cli.options import Place
from wal_agent.cli.screen import lines
from wal_agent.cli.view import View, looked
from wal_agent.errors import Unavailable, UsageError
from wal_agent.wal.blob_check import CheckedBlobs
from wal_agent.wal.reader import Replay

SHORTEST, LONGEST = 0.2, 86_400.0  # seconds between two looks
Look = Callable[[Replay], tuple[View | None, Replay, str]]
FOLLOW = 1.0  # seconds between two looks for new records


def watching(at: Place, every: float, env: Mapping[str, str], options: str = "", json: bool = False) -> NoReturn:
    """Show the job anew every `every` seconds, until Ctrl-C: in place on a terminal, else a table (or an object) for
    each look. A bucket that is away for a while is told and waited for. Damaged, Denied; UsageError."""
    check_every(every)
    known = CheckedBlobs()

    def look(before: Replay) -> tuple[View | None, Replay, str]:
        """The job, or why the bucket could not be asked now."""
        try:
            view, found = looked(at.bucket, at.keys, env, at.key_id, before, known, options)
        except Unavailable as error:
            return None, before, str(error)
        return view, found, ""

    if json or not sys.stderr.isatty():
        _in_turn(look, every, json)
    else:
        _in_place(look, every)


def check_every(every: float) -> None:
    """UsageError."""
    if not SHORTEST <= every <= LONGEST:  # nor is nan
        raise UsageError(f"--every {every:g} is not possible.", f"Allowed: seconds from {SHORTEST:g} to {LONGEST:g}.")


def _in_turn(look: Look, every: float, json: bool) -> NoReturn:
    from json import dumps

    import msgspec

    from wal_agent.cli.status import none, table

    before, waits = Replay(), False
    while True:
        view, before, trouble = look(before)
        if view is None:
            lines([f"wal-agent: waiting: {trouble}"])
        elif json:
            sys.stdout.write(dumps(msgspec.to_builtins(view)) + "\n")
            sys.stdout.flush()
        elif view.state != "none":
            lines([*table(view), ""])
        elif not waits:
            lines([f"wal-agent: {none(view)}"])
        waits = view.state == "none" if view is not None else waits
        time.sleep(every)


def _in_place(look: Look, every: float) -> NoReturn:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from wal_agent.cli.status import none, table

    before, shown = Replay(), ""
    with Live(console=Console(stderr=True), auto_refresh=False, transient=False) as live:
        while True:
            view, before, trouble = look(before)
            if view is not None:
                shown = "\n".join([none(view)] if view.state == "none" else table(view))
            rows = f"{shown}\n\nwaiting: {trouble}" if trouble else shown
            live.update(Text(f"{rows}\n\nevery {every:g} s; Ctrl-C ends it"), refresh=True)
            time.sleep(every)


def following(at: Place, seen: int, kinds: Collection[str] | None, json: bool = False) -> None:
    """Show each record behind segment `seen` as it comes, until Ctrl-C. Damaged; Denied."""
    waiting = False
    while True:
        try:
            new, waiting = list(entries(at.bucket, at.keys, start=seen + 1)), False
        except Unavailable as error:
            new = []  # the bucket is asked again; nothing is passed over
            if not waiting:
                lines([f"wal-agent: waiting: {error}"])
            waiting = True
        for entry in new:
            seen = entry.seq
            if kinds is None or entry.kind in kinds:
                _show(entry, json)
        time.sleep(FOLLOW)


def _show(entry: Entry, json: bool) -> None:
    if json:
        sys.stdout.write(as_json(entry) + "\n")
        sys.stdout.flush()
    else:
        lines([as_line(entry)])
