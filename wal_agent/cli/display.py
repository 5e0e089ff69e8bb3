"""Answers of commands: on a terminal with colours, and tables that fit its width, by rich; elsewhere plain text.

Plain text has the same rows at their own width. Only an answer to a terminal imports rich, which takes some 50 ms.
NO_COLOR switches colours off, TERM=dumb tables too. A line that may hold a command is never broken: the terminal wraps
it, and it can be pasted.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from wal_agent.redact import redact
from wal_agent.text import answer, columns, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Styles = Mapping[str, str]
"""By a regular expression: the style (of rich) of what it matches in a line; a later one counts more."""
GAP = 2  # blanks between two columns
REDRAWN = 4  # times a second
STATE: Final[Styles] = {  # of what a job's state begins with
    r"^(running|closed|completed|done|ok)\b": "green",
    r"^(due|released|paused|unlocked)\b": "yellow",
    r"^(crashed|damaged|newer|failed|(released|closed), (a person is needed|the agent failed))\b": "red",
}
STATUS: Final[Styles] = {  # of the rows of `wal-agent status`
    r"(?m)^\w[\w ]{10}(?= )": "cyan",
    r"(?m)^((open|cut|runs on) .* (wal-agent ack .*|the agent was asked to check)|(unlogged|spool) .*)$": "yellow",
    **{rf"(?m)(?<=^state {{7}}){words.removeprefix('^')}": style for words, style in STATE.items()},
}
LOG: Final[Styles] = {  # of the lines of `wal-agent log`
    r"^ *\d+  (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d \S+": "dim",
    r"(?<=  )(start|recovery|agent ended|handoff)(?= )": "bold",
    r"(?<=  )(mutation|unknown)(?=  +\S)": "magenta",
    r"\b(done|verified|resolved by a person)( \d+ ms)?$": "green",
    r"\b(open|not completed.*|refused.*|cut|runs on)$": "yellow",
    r"\bfailed( \d+ ms)?$": "red",
    r"^ +-  cut off .*": "red",
}
DIFF: Final[Styles] = {
    r"^\+.*|^added .*": "green",
    r"^-.*|^deleted .*": "red",
    r"^@@ .*": "cyan",
    r"^(diff --git |index |--- |\+\+\+ ).*": "bold",
}
HEADED: Final[Styles] = {
    r"^(\S.*)": "bold",
    r"^ +(undo|look with \(the log says\)|look|found|resolve|note|not held)(?=[: ])": "cyan",
}
"""Of answers whose indented lines belong to the line before."""
NARROWEST = 10  # characters of a column that is broken into several lines


def is_rich() -> bool:
    """Whether answers go to a terminal that can show more than text."""
    return columns() > 0 and os.environ.get("TERM", "") not in ("", "dumb")


def can_ask() -> bool:
    """Whether a person can be asked, and sees the question."""
    return sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()


def answer_lines(rows: Sequence[str], styles: Styles) -> None:
    """Write lines as they are; on a terminal in `styles`."""
    if not is_rich():
        answer(list(rows))
        return
    console = _console()
    for row in rows:
        console.print(styled(_clean(row), styles), soft_wrap=True)


def draw_in_place(frame: Callable[[], tuple[list[str], list[str]]], styles: Styles, every: float) -> NoReturn:
    """Draw rows on the terminal's second screen every `every` seconds until Ctrl-C, so that they fit after each resize.
    `frame` returns the rows of the screen, and those that are left on the first screen at the end."""
    from rich.console import Console
    from rich.live import Live

    left = list[str]()
    try:
        with Live(console=Console(), screen=True, vertical_overflow="crop", refresh_per_second=REDRAWN) as live:
            while True:
                rows, left = frame()
                text = styled(redact("\n".join(map(printable, rows))), styles)
                text.no_wrap, text.overflow = True, "ellipsis"
                live.update(text)
                time.sleep(every)
    finally:
        answer_lines(left, styles)


def answer_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), folds: Sequence[str] = ()
) -> None:
    """Write a table; nothing for no rows. `right`: headings of numbers, `folds`: of those that a narrow terminal breaks
    into several lines, as it does the last one. Where even so a column had no room, each row is a block of lines."""
    if is_rich() and rows and least_width(header, rows, folds) > columns():
        answer_lines(stack_rows(header, rows), {f"(?m)^{header[0].lower()} .*{words}": s for words, s in STATE.items()})
        return
    if not is_rich():
        answer(plain_table(header, rows, right=right))
        return
    from rich.table import Table

    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for name in header:
        breaks = name in folds or name == header[-1]
        justify: Any = "right" if name in right else "left"
        table.add_column(name, justify=justify, no_wrap=not breaks, overflow="fold")
    for row in rows:
        table.add_row(*(styled(_clean(cell), STATE if header[n] == "STATE" else {}) for n, cell in enumerate(row)))
    if rows:
        _console().print(table)


def least_width(header: Sequence[str], rows: Sequence[Sequence[str]], folds: Sequence[str]) -> int:
    """Return the width that the table needs to be read: that of its columns, of those that fold NARROWEST. Pure."""
    wide = [max(len(row[n]) for row in (header, *rows)) for n in range(len(header))]
    broken = [name in folds or name == header[-1] for name in header]
    return sum(min(w, NARROWEST) if breaks else w for w, breaks in zip(wide, broken, strict=True)) + GAP * (
        len(header) - 1
    )


def stack_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a block of lines for each row, a line for each cell that says something. Pure."""
    width = max(map(len, header))
    blocks = [
        [f"{name.lower():<{width}}  {cell}" for name, cell in zip(header, row, strict=True) if cell] for row in rows
    ]
    return [line for block in blocks for line in (*block, "")][:-1]


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> list[str]:
    """Return the lines of a table, each column as wide as its widest cell; none for no rows."""
    if not rows:
        return []
    every = [header, *rows]
    wide = [max(len(row[n]) for row in every) for n in range(len(header) - 1)]
    lines = []
    for row in every:
        cells = [row[n].rjust(w) if header[n] in right else row[n].ljust(w) for n, w in enumerate(wide)]
        lines.append((" " * GAP).join([*cells, row[-1]]).rstrip())
    return lines


def styled(text: str, styles: Styles) -> Text:
    """Return `text` for rich; nothing in it is taken for markup."""
    from rich.text import Text

    made = Text(text)
    for pattern, style in styles.items():
        made.highlight_regex(pattern, style)
    return made


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, width=columns(), highlight=False, markup=False, emoji=False)


def _clean(text: str) -> str:
    return printable(redact(text))
