"""Make text for people: one safe line of foreign text, counts, sizes, durations, times, and lines of output.

Text from a bucket or its store becomes one line of bounded length with nothing that a terminal obeys. Times of
day are local, with their zone; agents read UTC. A command's answer goes to stdout, messages about it to stderr; under
`run` stdout is the agent's.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from contextvars import ContextVar
from typing import Final

from wal_agent.redact import redact, redact_head

HEARD = 10_000  # characters of a stranger's words that are looked at
JOB_VERBS: Final = (  # commands that mean the job of the folder in which they are typed, unless it is named
    "ack|checkpoint|compact|diff|effects|gc|inbox|log|mark|pause|recall|recover|report|restore|resume|rewind|send|state"
    "|status|stop|trace|unlock"
)
_UNNAMED = re.compile(
    rf"wal-agent ((?:{JOB_VERBS})\b(?: (?:list|show|diff|get|put|delete))?)(?![^`;]*? --job)(?=[ `.,;)]|$)"
)
MEANT: Final = ContextVar("MEANT", default="")  # Settings.job_options of the job that this command is about
MAX_MESSAGE = 2000  # characters of one message
MAX_REDACTED = 1_000_000  # characters of one that are looked at
ABOVE: Final = "(message above)"  # wal-agent's word that the agent itself has said why

_YIELDED = re.compile(r"(preempted|drained) \([A-Za-z-]{1,20}\)")


def printable(text: str) -> str:
    """On one line, and without what a terminal would obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def is_utf8(text: str) -> bool:
    """Whether text from the command line or the file system has no bytes that are not UTF-8; the log can hold none."""
    return not any("\udc80" <= c <= "\udcff" for c in text)


def shorten(text: str, most: int = 200) -> str:
    """`printable`, and at most about `most` characters: both ends of it, since what to do next often stands last."""
    if len(text) > most:
        text = f"{text[: most * 2 // 3]}…{text[len(text) - most // 3 :]}"
    return printable(text)


def quote(text: str, most: int = 200) -> str:
    """The beginning of what a server or a library said, for a sentence of ours: without secrets, on one line of single
    spaces, `most` characters of it."""
    line = " ".join("".join(c if c.isprintable() else " " for c in redact_head(text, HEARD)).split())
    return line if len(line) <= most else f"{line[:most]}..."


def quote_word(word: str) -> str:
    """For a shell, in characters that a terminal only shows."""
    if word.isprintable():
        return shlex.quote(word)
    shown = (c if c.isprintable() and c not in "\\'" else _escaped(c) for c in word)
    return f"$'{''.join(shown)}'"


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def bucket_words(url: str) -> list[str]:
    """Return the words of a shown command that name the bucket; none for a URL that holds a secret."""
    return ["--bucket", url] if redact(url) == url else []


def command(verb: str, named: str = "", *more: str) -> str:
    """Return a command that a person is told, to be pasted in any folder: "wal-agent status --job J --bucket URL".
    The only maker of one. `verb`: with its arguments, as typed; `named`: what names its job (Settings.job_options) or
    its bucket, as typed; `more`: further words, to be quoted."""
    return " ".join(filter(None, ("wal-agent", verb, named.strip(), *map(quote_word, more))))


def start_words(agent: str) -> str:
    """Return the `verb` of `command` that starts a job's agent again: what `generic` runs, only the log has."""
    return f"run {quote_word(agent)}" if agent not in ("", "generic") else "resume"


def unheard(phase: str) -> str:
    """Return what stands beside a phase: Codex says that it has started with the first words of a person only."""
    return "no hook was heard yet" if phase == "starting" else ""


def bucket_option(url: str) -> str:
    """Return the option that names the bucket, as typed; "" for none, and for a URL that holds a secret."""
    return " ".join(map(quote_word, bucket_words(url))) if url else ""


def job_option(job: str, url: str) -> str:
    """Return what names a job, as typed, where no more than this is known. `url`: "" where it is not known. Of the job
    that is MEANT the key is known, too."""
    meant, named = MEANT.get(), f"--job {quote_word(job)}"
    return meant if f"{meant} ".startswith(f"{named} ") else f"{named} {bucket_option(url)}".rstrip()


def job_command(verb: str, job: str, url: str) -> str:
    """Return a command about one job. `verb`: as `command`; `job`, `url`: as `job_option`."""
    return command(verb, job_option(job, url))


def name_job(text: str) -> str:
    """Return what a person is told, with the options of the job that is MEANT in each command that names no job: it
    works as pasted in any folder. For errors, which are often raised where no job is known."""
    options = MEANT.get()
    return _UNNAMED.sub(lambda found: command(found[1], options), text) if options else text


def yield_reason(why: str) -> str:
    """Return a `RunEnded.why` of a known form (why the run gave its job up), else "": a log's text is foreign."""
    return why if _YIELDED.fullmatch(why) else ""


def describe_reach(bucket: str, here: str) -> str:
    """Say where a job in `bucket` (a URL) can go on. `here`: a name of this machine."""
    return f"on {here}, or wherever else its bucket's folder is" if bucket.startswith("file:") else "anywhere"


def plural(n: int, noun: str) -> str:
    """ "1 call", "2 calls"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def unproven_text(calls: int) -> str:
    """Say of calls at whose effect the agent looked that nothing showed it; "" for none."""
    return f"{plural(calls, 'call')} answered, not proven" if calls else ""


def clock_time(seconds: float) -> str:
    """ "14:02:13" of seconds since 1970 (UTC); total: times outside the calendar give "an unknown time"."""
    try:
        return time.strftime("%H:%M:%S", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def redraw(line: str) -> None:
    """Print `line` to the terminal in the place of the one before; "" ends it."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[Kwal-agent: {printable(line)}" if line else "\n")
        sys.stderr.flush()


def timestamp(seconds: float) -> str:
    """ "14:02:13 CET" in this machine's zone, with the date in front where that is not today's."""
    return moment(seconds, time.time(), exact=True, whole=True)


def moment(seconds: float, now: float, exact: bool = False, *, utc: bool = False, whole: bool = False) -> str:
    """ "14:02 CET" in this machine's zone (`utc`: in UTC, for agents), `exact`: "14:02:13 CET" where that is no whole
    minute, `whole`: there too; with the date in front where that is not the one of `now`."""
    split = time.gmtime if utc else time.localtime
    try:
        nearest = (int(seconds) if whole else round(seconds)) if exact else 60 * round(seconds / 60)
        then, today = split(nearest), split(now)
        day = "" if then[:3] == today[:3] else "%Y-%m-%d "
        zone = "UTC" if utc else then.tm_zone
        return f"{time.strftime(f'{day}%H:%M:%S' if whole or then.tm_sec else f'{day}%H:%M', then)} {zone}"
    except (OverflowError, ValueError, OSError):
        return clock_time(seconds)


def duration(seconds: float) -> str:
    """ "3 s", "4 min", "2 h 14 min", "3 days"; never negative."""
    s = max(0, round(seconds)) if abs(seconds) < 1e12 else 0
    if s < 120:
        return f"{s} s"
    if s < 7200:
        return f"{s // 60} min"
    if s < 172_800:
        hours, minutes = divmod(s // 60, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{s // 86_400} days"


def size(n: int) -> str:
    """ "812 B", "1.2 kB", "3.4 MB"; decimal units."""
    if n < 1000:
        return f"{n} B"
    for unit, scale in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if n < scale * 1000 or unit == "GB":
            break
    return f"{n / scale:.1f} {unit}"


def say(text: str) -> None:
    """Write one message as one line, redacted; one that another wal-agent wrote has the name in front already. A closed
    stderr loses it."""
    _write([shorten(f"wal-agent: {redact(text[:MAX_REDACTED].removeprefix('wal-agent: '))}", MAX_MESSAGE)])


def why_it_failed(said: str) -> list[str]:
    """Return the lines of a child's stderr that say why it failed: wal-agent's own; where it has none, or points to the
    agent's, the agent's last one. What an agent warns about is in its log. Pure."""
    rows = [row for row in said.splitlines() if row.strip()]
    own = [row for row in rows if row.startswith("wal-agent: ")]
    if own and ABOVE in own[-1]:
        return [*[row for row in rows if row not in own][-1:], own[-1]]
    return own[-2:] or rows[-1:]


def lines(rows: list[str]) -> None:
    """Write further lines of a message, redacted; the caller indents them."""
    if rows:
        _write([redact(row) for row in rows])


def columns() -> int:
    """Return the width of the terminal that answers go to; 0 where they go elsewhere, and may have any width."""
    if sys.stdout is None or not sys.stdout.isatty():
        return 0
    return shutil.get_terminal_size().columns


def answer(rows: list[str]) -> None:
    """Write a command's answer to stdout, redacted. OSError: BrokenPipeError, for example, which main() expects."""
    if rows and sys.stdout is not None:
        print("\n".join(printable(redact(row)) for row in rows), flush=True)


def is_reader_gone() -> bool:
    """Whether stdout is a pipe or socket that nothing reads any more: a BrokenPipeError may come from elsewhere."""
    from select import POLLERR, POLLHUP, POLLNVAL, poll

    if sys.stdout is None:
        return False
    seen = poll()
    seen.register(sys.stdout.fileno(), 0)
    return any(event & (POLLERR | POLLHUP | POLLNVAL) for _, event in seen.poll(0))


def drop_stdout() -> None:
    """Discard what is still to be written to stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(rows: list[str]) -> None:
    if sys.stderr is None:  # closed before we began; print would take stdout instead
        return
    try:
        print("\n".join(map(printable, rows)), file=sys.stderr, flush=True)
    except OSError:
        return
