"""Answers on a terminal: coloured, tables as wide as the terminal; without colour and anywhere else the same words."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.shelf import SECRET, full
from tests.unit.cli.test_watch_screen import resize
from wal_agent.cli.display import GAP, least_width, plain_table, stack_rows

COLOUR = re.compile(r"\x1b\[[\d;]*m")


def shown(folder: Path, *words: str, columns: int = 100, **env: str) -> str:
    """What `wal-agent WORDS` writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    resize(theirs, 50, columns)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WAL_AGENT_", "XDG_", "COLUMNS", "NO_COLOR"))}
    command = subprocess.Popen(
        [sys.executable, "-m", "wal_agent", *words],
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, cwd=folder,
        env={**kept, "HOME": str(folder), "TERM": "xterm-256color", **env},
    )  # fmt: skip
    os.close(theirs)
    got = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # EIO: nobody has its other end any more
            break
        if not piece:
            break
        got += piece
    os.close(ours)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 0, err
    return got.decode().replace("\r\n", "\n")


def piped(folder: Path, *words: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WAL_AGENT_", "XDG_", "COLUMNS"))}
    done = subprocess.run(
        [sys.executable, "-m", "wal_agent", *words],
        capture_output=True, cwd=folder, env={**env, "HOME": str(folder)}, text=True, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def at(tmp_path: Path) -> tuple[str, ...]:
    return ("--bucket", full(tmp_path / "b").url, "--job", "shop")


@pytest.mark.parametrize("command", ["status", "log"])
def test_lines_have_colours_on_a_terminal_and_the_same_words_elsewhere(
    tmp_path: Path, at: tuple[str, ...], command: str
) -> None:
    coloured = shown(tmp_path, command, *at, columns=160)
    assert COLOUR.search(coloured) and SECRET not in coloured
    plain = piped(tmp_path, command, *at)
    assert "\x1b" not in plain
    for text in (COLOUR.sub("", coloured), shown(tmp_path, command, *at, columns=160, TERM="dumb")):
        ages = re.compile(r"\d+ (s|min)\b")
        assert ages.sub("", text) == ages.sub("", plain)
    no_color = shown(tmp_path, command, *at, NO_COLOR="1")
    assert not re.search(r"\x1b\[(3[0-7]|38|9\d)[;m]", no_color)


@pytest.mark.parametrize("command", [("list",), ("fleet", "ls")])
def test_a_table_fits_the_terminal_and_its_names_are_whole(
    tmp_path: Path, at: tuple[str, ...], command: tuple[str, ...]
) -> None:
    text = COLOUR.sub("", shown(tmp_path, *command, *at[:2], columns=100, NO_COLOR="1"))
    table = text.partition("1 job in")[0]
    header = table.splitlines()[0].split()
    assert header == ["STATE", "JOB", "AGENT", "HOST", "OPEN", "CALLS", "TASK", "FOLDER", "WHAT"]
    assert max(map(len, table.splitlines())) <= 100
    assert table.splitlines()[1].split()[1] == "shop"
    assert piped(tmp_path, *command, *at[:2]).splitlines()[0].split() == header


def test_a_log_on_80_columns_has_a_line_for_each_record(tmp_path: Path, at: tuple[str, ...]) -> None:
    lines = COLOUR.sub("", shown(tmp_path, "log", *at, columns=80)).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == len(piped(tmp_path, "log", *at).splitlines())


def test_text_of_a_job_is_not_taken_for_markup(tmp_path: Path) -> None:
    from wal_agent.cli.display import LOG, styled

    assert styled("    1  14:02:13 UTC  shell  #1 echo [red]no[/red] :smile:  done", LOG).plain.endswith(
        "echo [red]no[/red] :smile:  done"
    )


def test_a_plain_table_has_columns_as_wide_as_their_widest_cell() -> None:
    assert plain_table(("N", "NAME"), [], right="N") == []
    assert plain_table(("N", "NAME"), [("1", "a"), ("10", "b c")], right="N") == [" N  NAME", " 1  a", "10  b c"]


def test_a_table_without_room_is_a_block_for_each_row() -> None:
    header, rows = ("STATE", "JOB", "WHAT"), [("running", "gemini-shop-k3f9", ""), ("closed", "x", "2 h ago")]
    assert least_width(header, rows, ()) == 7 + 16 + 7 + 2 * GAP
    assert least_width(header, [("a", "b", "c" * 50)], ("JOB",)) == 5 + 3 + 10 + 2 * GAP
    assert stack_rows(header, rows) == [
        "state  running",
        "job    gemini-shop-k3f9",
        "",
        "state  closed",
        "job    x",
        "what   2 h ago",
    ]


def test_a_list_on_60_columns_breaks_no_word(tmp_path: Path, at: tuple[str, ...]) -> None:
    lines = COLOUR.sub("", shown(tmp_path, "list", *at[:2], columns=60)).splitlines()
    cells = dict(line.split(None, 1) for line in lines if len(line.split(None, 1)) == 2)
    assert cells["job"] == "shop" and cells["open"].startswith("calls  "), lines
