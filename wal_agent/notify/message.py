"""Build the messages that people get of a run, and read where they go.

One pure function makes a message of what happened: job, machine, what, since when, the command to type, and how loud it
is. It leaves the machine: secrets are taken out, and nothing in it is obeyed by a terminal.

Targets are apprise URLs, each with a level, from the person's own wal-agent.toml or from WAL_AGENT_NOTIFY. A URL is a
secret: messages name it by its number and its scheme. A project's wal-agent.toml cannot name one: it would send a
person's messages elsewhere.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from wal_agent import events
from wal_agent.config import FILE, check_keys, own_document
from wal_agent.errors import ConfigError, CrashLoop, Fenced, LeaseHeld, Unavailable, UsageError, WalAgentError
from wal_agent.paths import config_dir
from wal_agent.records import state_text
from wal_agent.text import command, describe_reach, duration, job_option, moment, plural, quote, unproven_text

Level = Literal["info", "recovery", "person_needed"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the most to the fewest messages: who asks for one level also gets those behind it."""

MAX_TITLE = 120  # characters
MAX_LINE = 400
MAX_LINES = 10
MAX_CALLS = 5
_HANGS = {
    "model": "no answer of the model",
    "start": "the agent has not begun",
    "exit": "its turn is over and the agent has not ended",
}
REPORTED = (
    events.CheckpointFailed,
    events.DrainFinished,
    events.Halted,
    events.HungUp,
    events.LeaseLost,
    events.LeftOpen,
    events.Paused,
    events.Recovered,
    events.Restarting,
    events.SummaryLost,
    events.TakesLong,
)
# Nobody needs to be told: the command line was wrong, the job runs elsewhere, `LeaseLost` has told it.
NO_NEWS = frozenset({UsageError.exit_code, LeaseHeld.exit_code, Fenced.exit_code})
VARIABLE = "WAL_AGENT_NOTIFY"
OFF = "off"
DEFAULT: Level = "recovery"
MAX_TARGETS = 20
MAX_URL = 2000  # characters; all of them together fit into a pipe
# They would run a program, show something on this machine's screen, or write files; or read a list of further URLs.
REFUSED = frozenset(
    {"blink1", "dbus", "file", "gio", "glib", "gnome", "kde", "macosx", "memory", "qt", "vapid", "windows"}
)
_URL = re.compile(r"([A-Za-z0-9][A-Za-z0-9+.-]{0,31})://\S*")
_ENTRY = re.compile(r"(?:([a-z_]+)=)?([^=]*://.*)", re.DOTALL)


class Facts(msgspec.Struct, frozen=True):
    """What every message says: which job, where. `named`: what names the job in a command (text.job_option);
    `restarts`: an agent that hangs is started again."""

    job: str
    bucket: str
    agent: str
    host: str
    workspace: str
    restarts: bool = False
    named: str = ""

    def command(self, *words: str) -> str:
        """`wal-agent WORDS` for this job, from whatever folder; never with a secret of the bucket's URL."""
        return command(shlex.join(words), self.named or job_option(self.job, self.bucket))


class Notification(msgspec.Struct, frozen=True):
    """`key`: a message of the same key says nothing new. `insists`: it is told again until somebody acts."""

    level: Level
    title: str
    body: str
    key: str
    insists: bool = False


def reaches(level: Level, wanted: Level) -> bool:
    """Whether who asked for `wanted` gets a message of `level`."""
    return LEVELS.index(level) >= LEVELS.index(wanted)


def message_of(facts: Facts, at: float, event: events.Event) -> Notification | None:
    """None for what people are not told. `at`: seconds since 1970."""
    match event:
        case events.Recovered():
            return _recovered(facts, at, event)
        case events.Halted():
            return _halted(facts, at, event)
        case events.LeaseLost(why):
            return _message(
                facts,
                at,
                "person_needed",
                "stopped: the lease is lost",
                f"{_sentence(why)} The agent was ended here; the machine that holds the job now continues it.",
                _status_line(facts),
                key=f"lost:{why}",
            )
        case events.LeftOpen():
            return _left_open(facts, at, event)
        case events.TakesLong():
            return _takes_long(facts, at, event)
        case events.HungUp():
            return _hangs(facts, at, event)
        case events.Restarting(attempt, delay, cls):
            return _message(
                facts,
                at,
                "info",
                f"the agent died ({cls}) and is started again",
                f"Attempt {attempt}, in {duration(delay)}.",
                f"Look: {facts.command('log')}",
                key=f"restarting:{cls}",
            )
        case events.Paused(until, why, vain):
            return _message(
                facts,
                at,
                "person_needed" if vain > 0 else "info",
                f"paused until {moment(until, at)}" + (f"; nothing was done for {duration(vain)}" if vain > 0 else ""),
                f"Why: {_sentence(why)} A start after that, on any machine, continues the job.",
                _run_line(facts),
                key=f"paused:{until:.0f}",
            )
        case events.CheckpointFailed(why):
            line = f"{_sentence(why)} The run goes on; a recovery builds its content from the log."
            return _message(facts, at, "info", "a checkpoint failed", line, _status_line(facts), key="checkpoint")
        case events.SummaryLost(n, mended):
            follows = (
                "The agent starts again with a compact form of what was said."
                if mended
                else f"It reads its task and where the rest is. What was said: {facts.command('recall', 'WORDS')}"
            )
            return _message(
                facts,
                at,
                "recovery",
                f"compaction {n} left an empty summary",
                f"The agent has lost its conversation, all of which is kept in the log. {follows}",
                _status_line(facts),
                key=f"lost-summary:{n}",
            )
        case events.DrainFinished(seconds, in_time):
            return _drained(facts, at, seconds, in_time)
    return None


def _recovered(facts: Facts, at: float, event: events.Recovered) -> Notification:
    counts = Counter(event.findings)
    findings = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items())
    calls = plural(len(event.findings), "call")
    states = ", ".join(f"{n} {state_text(state)}" for state, n in Counter(event.states).items())
    left = f"Open: {calls} ({states}): {findings}." if findings else "No call was open."
    ended = {"preempted": "drained", "paused": "paused", "over": "at its end"}.get(event.alert, "cut off")
    lines = [
        f"It was {ended} on {event.old_host or 'a machine'} and continues on "
        f"{facts.host}; that took {event.seconds:.1f} s.",
        left,
    ]
    if event.put_back:
        lines.append(f"Put back: {plural(event.put_back, 'finished call')} that the agent had not saved.")
    if counts["unknown"] or counts["partial"]:
        lines.append(f"The agent is asked to verify before it continues. Its calls: {facts.command('log')}")
    return _message(
        facts,
        at,
        "recovery",
        f"{'recovered' if ended == 'cut off' else 'continues'} on {facts.host}",
        *lines,
        _status_line(facts),
        since=event.stopped,
        key=f"recovered:{event.from_epoch}:{at}",
    )


def _halted(facts: Facts, at: float, event: events.Halted) -> Notification | None:
    if event.code in NO_NEWS and not event.limit:
        return None
    passing = event.limit or event.code == Unavailable.exit_code  # whoever started it may well try again
    return _message(
        facts,
        at,
        "recovery" if passing else "person_needed",
        f"stopped with {event.code}" + ("" if passing else ", a person is needed"),
        event.what,
        event.hint,
        _status_line(facts),
        _run_line(facts),
        key=f"halted:{event.code}:{_same(event)}",
        insists=not passing,
    )


def _same(event: events.Halted) -> str:
    """A crash loop counts on; it is the same one."""
    return re.sub(r"[0-9]+", "#", event.what) if event.code == CrashLoop.exit_code else event.what


def _left_open(facts: Facts, at: float, event: events.LeftOpen) -> Notification | None:
    calls = event.calls
    if not calls:
        return None
    lines = [
        f"#{call} {tool} ({state_text(state)}): {facts.command('ack', str(call))} --done (or --not-done)"
        for call, tool, state in calls[:MAX_CALLS]
    ]
    if len(calls) > MAX_CALLS:
        lines.append(f"... and {len(calls) - MAX_CALLS} more: {facts.command('status')}")
    return _message(
        facts,
        at,
        "person_needed",
        "; ".join(filter(None, (plural(len(calls), "open call"), unproven_text(event.unproven)))),
        "It is unknown whether it happened. Check, then record it:",
        *lines,
        key=f"open:{calls}",
    )


def _takes_long(facts: Facts, at: float, event: events.TakesLong) -> Notification:
    tool, lasted = event.tool or "a tool", duration(event.seconds)
    titles = {
        "model": f"no answer of the model for {lasted}",
        "approval": f"the agent waits for you, or runs what you allowed, since {lasted}: {tool}",
        "tool": f"{tool} runs for {lasted}",
        "start": f"the agent has not begun for {lasted}",
        "exit": f"its turn is over and the agent has not ended for {lasted}",
    }
    lines = {
        "model": "It is waited for.",
        "approval": f"If it still asks, allow or refuse {tool} on its screen on {facts.host}, in {facts.workspace}.",
        "tool": "It is left alone.",
        "start": f"It is left alone, and the job is held. Look at it on {facts.host}, in {facts.workspace}.",
        "exit": "Something that it started may not end. It is left alone, and the job is held; end it there if it is "
        f"done: on {facts.host}, in {facts.workspace}.",
    }
    return _message(
        facts,
        at,
        "person_needed" if event.what in ("approval", "start", "exit") else "info",
        titles[event.what],
        lines[event.what],
        _status_line(facts),
        since=at - event.seconds,
        key=f"long:{event.what}:{event.tool}:{at - event.seconds:.0f}",
    )


def _hangs(facts: Facts, at: float, event: events.HungUp) -> Notification:
    if event.what == "exit":
        lines = ["The agent is ended and not started again: its turn was done.", _status_line(facts)]
    elif facts.restarts:
        lines = ["The agent is ended and started again, unless it has died too often.", _status_line(facts)]
    else:
        lines = [
            "The agent is ended and not started again; the next start continues the job.",
            _status_line(facts),
            _run_line(facts),
        ]
    title = f"hangs: {_HANGS[event.what]} for {duration(event.seconds)}"
    return _message(facts, at, "recovery", title, *lines, since=at - event.seconds, key=f"hung:{at}")


def _drained(facts: Facts, at: float, seconds: float, in_time: bool) -> Notification:
    if in_time:
        goes_on = f"it continues {describe_reach(facts.bucket, facts.host)}"
        title, line = "drained", f"All is saved and the job is given up, in {seconds:.1f} s; {goes_on}."
    else:
        title, line = "not drained in time", "What was not saved is lost; the next start takes it for a crash."
    return _message(facts, at, "info" if in_time else "recovery", title, line, _run_line(facts), key=f"drained:{at}")


def _message(
    facts: Facts,
    at: float,
    level: Level,
    title: str,
    *lines: str,
    key: str,
    since: float | None = None,
    insists: bool = False,
) -> Notification:
    when = f"since {moment(since, at, exact=True)}" if since else f"at {moment(at, at, exact=True)}"
    if since and at - since >= 1:
        when += f" ({duration(at - since)} ago)"
    where = f"Job {facts.job} ({facts.agent}) on {facts.host}, {when}, in {facts.bucket}."
    return Notification(level, _line(f"{facts.job}: {title}", MAX_TITLE), _body((where, *lines)), key, insists)


def _body(lines: Iterable[str]) -> str:
    return "\n".join([line for text in lines if (line := _line(text, MAX_LINE))][:MAX_LINES])


def _line(text: str, most: int) -> str:
    return quote(text, most - 3)


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _status_line(facts: Facts) -> str:
    return f"Look: {facts.command('status')}"


def _run_line(facts: Facts) -> str:
    return f"Start it: {facts.command('run', facts.agent)} (in {facts.workspace})"


class Target(msgspec.Struct, frozen=True):
    url: str
    level: Level = DEFAULT

    def __repr__(self) -> str:
        return f"Target({self.hidden}, {self.level})"

    @property
    def id(self) -> str:
        return hashlib.sha256(self.url.encode()).hexdigest()[:16]

    @property
    def hidden(self) -> str:
        """In many schemes even the host is the key, so only the scheme is shown."""
        return scheme(self.url)


def scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def own_file(env: Mapping[str, str]) -> Path:
    return config_dir(env) / FILE


def load_targets(env: Mapping[str, str]) -> tuple[Target, ...]:
    """The variable, where it is set (`off`: none), else the person's file. UsageError, ConfigError: without the URL."""
    text = env.get(VARIABLE, "").strip()
    if text:
        return () if text == OFF else parse_targets(text)
    return from_tables(own_document(env).get("notify", []), own_file(env))


def parse_targets(text: str) -> tuple[Target, ...]:
    """`URL ...` between white space, each with `LEVEL=` before it or not."""
    found = []
    for number, entry in enumerate(text.split(), 1):
        match = _ENTRY.fullmatch(entry)
        level, url = (match[1] or DEFAULT, match[2]) if match else (DEFAULT, entry)
        found.append(_target(url, level, f"Entry {number} of {VARIABLE}", UsageError))
    return _few(found, VARIABLE, UsageError)


def from_tables(value: object, path: Path) -> tuple[Target, ...]:
    """`[[notify]]`, each with `url` and, if it likes, `level`."""
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise ConfigError(f"notify in {path} is not a list of tables, [[notify]].")
    found = []
    for number, entry in enumerate(value, 1):
        check_keys(entry, ("url", "level"), "notify.", path)
        where = f"Entry {number} of [[notify]] in {path}"
        found.append(_target(entry.get("url"), entry.get("level", DEFAULT), where, ConfigError))
    return _few(found, f"[[notify]] in {path}", ConfigError)


def _target(url: object, level: object, where: str, kind: type[WalAgentError]) -> Target:
    if level not in LEVELS:
        raise kind(f"{where} has a level that there is not.", f"Allowed: {', '.join(LEVELS)}.")
    if not isinstance(url, str) or len(url) > MAX_URL or not _URL.fullmatch(url):
        raise kind(f"{where} is no apprise URL of at most {MAX_URL} characters, such as ntfys://ntfy.example.com/x.")
    if scheme(url) in REFUSED:
        raise kind(f"{where} is {scheme(url)}://, which acts on this machine.", "Name a service that takes messages.")
    return Target(url, level)


def _few(found: Sequence[Target], where: str, kind: type[WalAgentError]) -> tuple[Target, ...]:
    if len(found) > MAX_TARGETS:
        raise kind(f"{where} has more than {MAX_TARGETS} URLs.")
    return tuple({target.url: target for target in found}.values())
