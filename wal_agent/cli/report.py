"""`wal-agent report`: a job's log as one HTML file that loads nothing.

All that it shows is foreign. It is embedded as JSON in which no character can end the element that holds it, it enters
the page as text alone, and the page's policy runs only the script, and applies only the style, whose hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import msgspec
import typer

from wal_agent.answers import json_line
from wal_agent.cli.options import HERE, JobOptions, with_job
from wal_agent.clock import SystemClock
from wal_agent.errors import ConfigError, Damaged, Exhausted, UsageError
from wal_agent.records import AgentStarted, AnyRecord, CallState, Opening, RunEnded, state_text
from wal_agent.redact import MARGIN, redact, redact_ends, redact_head
from wal_agent.safefs import real_path
from wal_agent.text import command, moment, plural, say

if TYPE_CHECKING:
    from wal_agent.cli.job import JobContext
    from wal_agent.cli.log import Entry
    from wal_agent.wal.blobs import Blobs
    from wal_agent.wal.reader import Replay

MARK: Final = "<!doctype html>\n<!-- wal-agent report -->"  # a file that begins so may be replaced
MOST: Final = 50_000  # records in a page
MAX_PROMPT: Final = 40_000  # characters of a recovery's prompt
MAX_SESSION: Final = 100_000  # characters of each session file with --at
MAX_FILES: Final = 5_000  # names of the working tree with --at
MAX_FILE: Final = 20_000  # characters of each of its files, and
MAX_TREE: Final = 2_000_000  # of all; those that the job changed come first
MAX_DIFFS: Final = 300  # captures whose differences are in a page
WORDS: Final = {state: state_text(state) for state in get_args(CallState)}  # for the page's script


@with_job
def report(
    which: JobOptions = HERE,
    html_file: Annotated[
        str, typer.Option("--html", help="The file to write, - for stdout (default: JOB.html).", metavar="FILE")
    ] = "",
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    diffs: Annotated[
        bool,
        typer.Option(
            "--diffs",
            help=f"Show what changed in the files, for the newest {MAX_DIFFS} captures; downloads the captures.",
        ),
    ] = False,
    place: Annotated[
        str | None,
        typer.Option(
            "--at",
            help="End at this record or time, and show the session and the files as of then.",
            metavar="RECORD|TIME",
        ),
    ] = None,
    n: Annotated[int, typer.Option("-n", "--number", min=1, help="Include at most the newest N records.")] = MOST,
) -> None:
    """Write the job's log as one HTML page: starts, crashes, recoveries, calls, captures, checkpoints, steps.

    The page loads nothing, needs no server, can be searched, filtered and printed, and holds what `wal-agent log
    --json` prints: secrets that were recognised are redacted, and long inputs and results are cut. Treat it as
    confidential all the same. Only a file that is such a report is replaced. Exit code 73: the log is damaged, and the
    page has the rest.
    """
    from wal_agent.calls.rules.table import load_rules
    from wal_agent.cli.effects import read_bytes, show_effect
    from wal_agent.cli.log import entries_of, newest_run_is_over, read_newest
    from wal_agent.recovery.effects import effects_of

    if open_it and html_file == "-":
        raise UsageError("--open needs a file, and --html - writes to stdout.", "Leave one of them out.")
    at = which.open()
    page = read_newest(at.bucket, at.keys, n if place is None else 0)
    over = newest_run_is_over(at, bool(page.last)) and place is None
    then = None if place is None else at.read_log(place)
    entries = [entry for entry in entries_of(page.segments) if then is None or entry.seq <= then.seq][-n:]
    blobs = at.blobs
    effects = effects_of(
        ((entry.seq, entry.record) for entry in entries),
        load_rules(),
        lambda payload: read_bytes(blobs, payload),
        over,
    )
    made = moment(SystemClock().now(), 0, exact=True, whole=True)
    first = entries[0].seq if entries else 0
    text = render_page(
        f"Job {at.keys.job}",
        f"{plural(len(entries), 'record')} ({first} to {then.seq if then else page.last}), made {made}"
        + (f"; {plural(len(page.damaged), 'record')} or more cannot be read or are missing" if page.damaged else ""),
        [entry_json(entry) for entry in entries],
        [msgspec.to_builtins(show_effect(each)) for each in effects],
        _tree_steps(at, entries, blobs) if diffs else [],
        _as_of(at, then, blobs) if then else None,
        how_starts_ended([entry.record for entry in entries], over),
    )
    if html_file == "-":
        sys.stdout.write(text)
    else:
        path = Path(html_file or f"{at.keys.job}.html")
        write_page(path, text)
        say(f"wrote {path.absolute()}; it holds what the log holds, so treat it as confidential.")
        if open_it:
            import webbrowser

            if not webbrowser.open(path.absolute().as_uri()):
                say("no browser was found to open it.")
    if page.damaged:
        raise Damaged(page.damaged[0].what, f"All that is damaged: {command('log', at.options())} -n 0")


def _as_of(at: JobContext, then: Replay, blobs: Blobs) -> dict[str, Any]:
    """Return session and working tree as of `then`, with texts as far as they are few enough. BucketError."""
    import tempfile

    from wal_agent.operate.export import export_job

    session, env, short = then.state.session, dict(os.environ), list[str]()
    with tempfile.TemporaryDirectory(prefix="wal-agent-report-") as scratch:
        folder = real_path(scratch) / "then"
        try:
            done = export_job(
                then,
                at.store,
                folder,
                lambda name: at.agent.restore_path(name, session, at.workspace, env),
                env,
                force=False,
            )
            short = list(done.short)
        except Damaged as error:
            short = [error.what]
        found = [path for path in sorted(folder.rglob("*")) if path.is_file() or path.is_symlink()]
        names = {path: path.relative_to(folder).parts for path in found}
        texts = [
            {"name": redact("/".join(parts[1:])), "text": redact_ends(_text_of(path), MAX_SESSION)}
            for path, parts in names.items()
            if parts[0] == "session"
        ]
        tree = {
            "/".join(parts[1:]): path for path, parts in names.items() if parts[0] == "workspace" and parts[1] != ".git"
        }
        files = files_json(tree, _changes(at, then, blobs))
    return {
        "record": then.seq,
        "time": then.time,
        "open": [{"call": call.intent.call, "state": call.state} for call in then.state.open],
        "session": texts,
        "files": files,
        "more": len(tree) - len(files),
        "short": [redact(each) for each in short],
    }


def files_json(tree: Mapping[str, Path], changes: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the files of a working tree by name, with their texts within the limits. `changes`: what the job did to
    those that it changed. A link is never followed."""
    import stat

    left, listed = MAX_TREE, list[dict[str, Any]]()
    for name in sorted(tree, key=lambda name: (name not in changes, name))[:MAX_FILES]:
        path, seen = tree[name], tree[name].lstat()
        file: dict[str, Any] = {"path": redact(name), "size": seen.st_size}
        if name in changes:
            file["change"] = changes[name]
        if stat.S_ISLNK(seen.st_mode):
            file["link"] = redact(str(path.readlink()))
        elif stat.S_ISREG(seen.st_mode) and left > 0:
            with path.open("rb") as opened:
                data = opened.read(4 * (MAX_FILE + MARGIN))  # a character has at most four bytes
            if b"\0" not in data:
                text = data.decode("utf-8", "replace")
                file["text"] = redact_head(text, min(left, MAX_FILE))
                file["cut"] = len(text) > min(left, MAX_FILE)
                left -= len(file["text"])
        listed.append(file)
    return listed


def _changes(at: JobContext, then: Replay, blobs: Blobs) -> dict[str, str]:
    """Return what became of each file between the first capture that is kept and `then`; nothing where that cannot be
    read. BucketError."""
    from wal_agent.capture.git import GitFailed
    from wal_agent.paths import state_dir
    from wal_agent.recovery.compare_trees import first_capture, scratch_trees
    from wal_agent.recovery.restore_target import RestoreTarget

    first, last, env = first_capture(at.bucket, at.keys), then.state.workspace, dict(os.environ)
    if first is None or first.state.workspace is None or last is None:
        return {}
    target = RestoreTarget(at.workspace, state_dir(env), env, (), at.keys.job)
    try:
        with scratch_trees(target, last, blobs) as trees:
            before, after = (trees.fetch(each).work for each in (first.state.workspace, last))
            return {each.path: each.change for each in trees.changes(before, after)}
    except (Damaged, ConfigError, Exhausted, GitFailed):
        return {}


def _text_of(path: Path) -> str:
    """Return a session file's text, or its size where it is none."""
    data = path.read_bytes()
    return f"({len(data)} bytes, no text)" if b"\0" in data[:4096] else data.decode("utf-8", "replace")


def _tree_steps(at: JobContext, entries: Sequence[Entry], blobs: Blobs) -> list[dict[str, Any]]:
    """Return what each capture changed. BucketError, Damaged."""
    import msgspec

    from wal_agent.paths import state_dir
    from wal_agent.recovery.compare_trees import first_capture, tree_steps
    from wal_agent.recovery.restore_target import RestoreTarget

    first, env = first_capture(at.bucket, at.keys), dict(os.environ)
    if first is None:
        return []
    target = RestoreTarget(at.workspace, state_dir(env), env, (), at.keys.job)
    steps = tree_steps(first, ((entry.seq, entry.record) for entry in entries), target, blobs, MAX_DIFFS)
    return [msgspec.to_builtins(step) for step in steps]


def entry_json(entry: Entry) -> dict[str, Any]:
    """Return a record as `wal-agent log --json` prints it, with a call's state and the whole prompt of a recovery."""
    from wal_agent.cli.log import as_json
    from wal_agent.records import Intent, Recovery

    shown: dict[str, Any] = json.loads(as_json(entry))
    del shown["schema"]
    if isinstance(entry.record, Recovery):
        shown["told"] = redact_head(entry.record.told, MAX_PROMPT)
    if isinstance(entry.record, Intent):
        shown["state"] = entry.state
    return shown


def how_starts_ended(records: Sequence[AnyRecord], over: bool) -> dict[int, tuple[str, bool]]:
    """Return how each start ended, by its epoch, and whether that is a crash, as `status` counts them. `over`: nothing
    runs the newest one any more. Pure."""
    from wal_agent.recovery.lease_policy import CRASH_CLASSES

    ends, epoch = dict[int, tuple[str, bool]](), 0
    for record in records:
        if isinstance(record, Opening):
            if record.cause == "dead" and epoch:
                ends[epoch] = ("lost", True)
            epoch = record.epoch
            ends[epoch] = ("no agent", False)  # as of a command at rest
        elif isinstance(record, AgentStarted) and epoch:
            ends[epoch] = ("not recorded", False)
        elif isinstance(record, RunEnded) and epoch:
            word = "completed" if record.completed else record.cls or f"code {record.code}"
            ends[epoch] = (word, record.cls in CRASH_CLASSES)
    if epoch and not over and ends[epoch][0] == "not recorded":
        ends[epoch] = ("running, or cut off", False)
    return ends


def render_page(
    title: str,
    subtitle: str,
    entries: Sequence[Mapping[str, Any]],
    effects: Sequence[Mapping[str, Any]],
    trees: Sequence[Mapping[str, Any]] = (),
    then: Mapping[str, Any] | None = None,
    ends: Mapping[int, tuple[str, bool]] = MappingProxyType({}),
) -> str:
    """Return the page. Pure, but for the template, script and style, which are files of this package."""
    here = Path(__file__).parent
    style, script = ((here / f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    filled = {
        "POLICY": policy,
        "TITLE": html.escape(title),
        "SUBTITLE": html.escape(subtitle),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": embed_json(
            {
                "entries": entries,
                "effects": effects,
                "trees": trees,
                "then": then,
                "words": WORDS,
                "ends": dict(ends),
                "crashes": sum(crash for _, crash in ends.values()),
            }
        ),
    }
    parts = (here / "report.html").read_text("utf-8").split("@")  # once: what is filled in is not looked at again
    return "".join(filled.get(part, part) if i % 2 else part for i, part in enumerate(parts))


def page_style() -> tuple[str, str]:
    """Return the style of a page without a script, and the policy that allows it alone."""
    style = Path(__file__).with_name("report.css").read_text("utf-8")
    return style, f"default-src 'none'; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"


def embed_json(value: object) -> str:
    """Return JSON that holds no character with a meaning in HTML."""
    return json_line(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def write_page(path: Path, text: str) -> None:
    """Write the page for its owner alone, whole or not at all. UsageError: something else is there, or cannot be."""

    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if os.path.lexists(path):
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8") as there:
                if there.read(len(MARK)) != MARK:
                    raise UsageError(f"{path} is there, and is no report.", "Choose another file with --html.")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
        beside.replace(path)
    except (OSError, UnicodeDecodeError) as error:
        beside.unlink(missing_ok=True)
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{path} cannot be written: {why}.", "Choose another file with --html.") from error
