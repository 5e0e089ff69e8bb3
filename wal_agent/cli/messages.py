"""`wal-agent send`, `inbox`, `reply` and `publish`: messages to and from a job (docs/MESSAGES.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from wal_agent.answers import JsonAnswer, answer_json, schema_name
from wal_agent.cli.job import JobContext, job_of_this_run
from wal_agent.cli.options import HERE, AsJson, JobOptions, with_job
from wal_agent.errors import Unavailable, UsageError
from wal_agent.text import answer, duration, job_command, plural, printable, say, shorten, timestamp

if TYPE_CHECKING:
    from wal_agent.inbox import Driver, Message
    from wal_agent.wal.state import MessageAt

Text = Annotated[list[str] | None, typer.Argument(help="The text, or - for stdin.", metavar="TEXT|-")]
Id = Annotated[
    str, typer.Option("--id", help="The message's id; sending the same id again sends nothing.", metavar="ID")
]


MessageState = Literal["waits", "given", "seen", "done", "refused"]


class Sent(JsonAnswer, frozen=True):
    """`wal-agent send`, `reply` and `publish`. `to`: a job, or what it is published under; `new`: it was sent now."""

    to: str
    id: str
    sender: str = msgspec.field(name="from")
    new: bool


class ShownMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Times as in RFC 3339. `control`: what it asks of the run. `text`: None where it is no longer kept."""

    id: str
    sender: str = msgspec.field(name="from")
    state: MessageState
    control: str
    sent: str
    given: str | None
    seen: str | None
    refused: str
    answer: str
    text: str | None


class Messages(JsonAnswer, frozen=True, tag=schema_name("inbox")):
    """`wal-agent inbox`: what waits comes first, then the newest."""

    messages: tuple[ShownMessage, ...]


@with_job
def send(
    text: Text = None,
    id: Id = "",
    from_: Annotated[str, typer.Option("--from", help="The sender (default: you).", metavar="NAME")] = "",
    control: Annotated[
        str,
        typer.Option(
            "--control", help="A control message: checkpoint, pause, resume, drain, status or ack.", metavar="VERB"
        ),
    ] = "",
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Send a message to a job; its agent reads it at its next step or start.

    When the command returns, the message is in the bucket, and no crash loses it. --control asks the run itself, not
    the agent: checkpoint, pause (TEXT says how long: 10m), resume, drain (save everything and stop), status, or ack
    (remove the message with the ID in TEXT). `wal-agent inbox` shows the answer, or why it was refused. At most 64 KiB.
    """
    from wal_agent.inbox import default_sender, make_message
    from wal_agent.paths import MARKER

    at = which.open_existing()
    sender = from_ or (job_of_this_run() or {}).get("job", "")  # an agent sends as its job, which can be answered
    if not sender and os.environ.get(MARKER):  # under another name its message would be another one
        raise Unavailable("The run of which this command is a part has ended; nothing was sent.", "Or name --from.")
    message = make_message(_text(text, control), sender or default_sender(), id, control)
    with message_driver(at) as driver:
        new = driver.send(message)
    _sent(at.keys.job, message, new, json, when_read(at) if new and not control else "")


def when_read(at: JobContext) -> str:
    """When the agent of the job gets a message that is sent now, in words."""
    from wal_agent.fleet.jobs import Reader

    job = Reader.of(at.bucket, os.environ).one(at.keys.job)
    if job is None:
        return ""
    start = job_command("resume", at.keys.job, at.bucket.url)
    match job.state:
        case "running" if job.phase in ("starting", "recovering"):
            return f"the job is {job.phase}, and its agent reads it at its first step"
        case "running":
            return "the job runs, and its agent reads it at its next step"
        case "crashed":
            return f"the job crashed; its agent reads it when it is recovered: {start}"
        case "paused":
            return f"the job is paused; its agent reads it when the pause is over, in {duration(job.left)}"
        case "closed":
            return f"the job is closed; its agent reads it only when it is started again: {start}"
        case _:
            return f"the job is {job.state}; its agent reads it at its next start: {start}"


@with_job
def inbox(
    id: Annotated[str, typer.Argument(help="Show this message whole.", metavar="[ID]")] = "",
    every: Annotated[bool, typer.Option("--all", help="All messages, not just 50 that wait and 50 others.")] = False,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Show the messages to a job: what waits, what was given to the agent, what it has seen, and what became of
    control messages. What waits comes first, then the newest.

    With an ID: the message's whole text. Exit code 1: there is no such message, or its text is no longer kept.
    """
    from wal_agent.inbox import MAX_AT_ONCE, MAX_LISTED, identity_of
    from wal_agent.wal.reader import replay

    at = which.open_existing()
    state = replay(at.bucket, at.keys).state
    given = {identity_of(m.sender, m.id): m for m in state.messages}
    most = MAX_LISTED if every or id else MAX_AT_ONCE
    with message_driver(at) as driver:
        waiting = fetch_messages(driver, lambda key: key in given, most + 1)
        kept: list[Message] = []  # of which the texts are still there
        with suppress(Unavailable):
            kept = fetch_messages(driver, lambda key: key not in given, len(given))
    texts = {m.id: m.text for m in (*waiting, *kept)}
    if id and not json:
        _show_whole(id, texts.get(id), [m for m in state.messages if m.id == id])
        return
    newest = sorted(given.values(), key=lambda m: -m.time)
    rows = [
        *(_row(m.id, m.sender, m.sent, m.verb, texts) for m in waiting[:most]),
        *(_row(m.id, m.sender, m.sent, m.verb, texts, at=m) for m in newest[:most]),
    ]
    if id:
        rows = [row for row in rows if row.id == id]
    elif len(waiting) > most or len(newest) > most:
        say(f"only the first {most} that wait and the newest {most} others are shown. All: {_all_command(at)}")
    if json:
        answer_json(Messages(tuple(rows)))
        if id and not any(row.text is not None for row in rows):
            raise typer.Exit(1)
        return
    for row in rows:
        first = " ".join((row.text or "").split())[:80]
        control = f" control: {row.control}" if row.control else ""
        outcome = row.refused or row.answer
        control += f" ({outcome})" if outcome else ""
        sent = timestamp(datetime.fromisoformat(row.sent).timestamp())
        answer([printable(f"{row.state:<8} {row.id}  {sent}  {row.sender}{control}  {first}".rstrip())])
    if not rows:
        say("no message has come.")


def _all_command(at: JobContext) -> str:
    return f"{job_command('inbox', at.keys.job, at.bucket.url)} --all"


def fetch_messages(driver: Driver, known: Callable[[str], bool], most: int) -> list[Message]:
    """Return up to `most` messages, those not `known`, by as many looks as that takes. Unavailable: not even one could
    be had."""
    found: dict[str, Message] = {}
    while len(found) < most:
        try:
            more = driver.fetch(lambda key: key in found or known(key))
        except Unavailable:
            if not found:
                raise
            break
        if not more:
            break
        found.update((message.identity, message) for message in more)
    return [*found.values()][:most]


@with_job
def reply(
    id: Annotated[str, typer.Argument(help="The message that is answered.", metavar="ID")],
    text: Text = None,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Answer a message, once: repeating the command, also after a crash, sends nothing.

    It goes to the inbox of the sender, if that is a job of this bucket; else it is published under `reply`.
    """
    from wal_agent.inbox import make_message, reply_id
    from wal_agent.wal.keys import Keys
    from wal_agent.wal.lease import read_lease
    from wal_agent.wal.reader import replay

    at = which.open_existing()
    known = [m for m in replay(at.bucket, at.keys).state.messages if m.id == id]
    if not known:
        raise UsageError(
            f"Job {at.keys.job} has been given no message {shorten(id)}.",
            f"See: {job_command('inbox', at.keys.job, at.bucket.url)}",
        )
    words, sender = _text(text), known[-1].sender
    message = make_message(words, at.keys.job, reply_id(at.keys.job, id, words))
    try:
        is_job = read_lease(at.bucket, Keys(sender)) is not None
    except UsageError:
        is_job = False
    with message_driver(at, sender if is_job else at.keys.job) as driver:
        new = driver.send(message) if is_job else driver.publish("reply", message)
    _sent(sender if is_job else "reply", message, new, json)


@with_job
def publish(
    subject: Annotated[str, typer.Argument(help="What it is about: a name without blanks.", metavar="SUBJECT")],
    text: Text = None,
    id: Id = "",
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Publish a message of the job, once: repeating the same text and subject sends nothing.

    It lies in the bucket below `<job>/outbox/SUBJECT/`, for whoever reads there. --id makes an equal text another one.
    """
    from wal_agent.inbox import NAME, make_message, repeated_id

    if not NAME.fullmatch(subject):
        raise UsageError(f"{subject[:60]!r} cannot be a subject.", "Use 1 to 100 of A-Z a-z 0-9 @ . _ -")
    at = which.open_existing()
    words = _text(text)
    message = make_message(words, at.keys.job, id or repeated_id("pub", subject, words))
    with message_driver(at) as driver:
        new = driver.publish(subject, message)
    _sent(subject, message, new, json)


# ---- shared


def message_driver(at: JobContext, job: str = "") -> AbstractContextManager[Driver]:
    """What carries messages to and from `job`, by default the one that is meant; closed behind the block."""
    from wal_agent.messages import open_driver

    return closing(open_driver(at.settings, os.environ, at.bucket, job or at.keys.job, say, secret=bool(at.key_id)))


def _text(words: Sequence[str] | None, control: str = "") -> str:
    from wal_agent.inbox import MAX_TEXT

    if words and list(words) != ["-"]:
        return " ".join(words)
    if control and not words:
        return ""
    if not words and sys.stdin.isatty():
        raise UsageError("Say what to send.", 'For example: wal-agent send "stop deploying"')
    return sys.stdin.buffer.read(MAX_TEXT + 1).decode("utf-8", "replace")


def _sent(to: str, message: Message, new: bool, json: bool, read: str = "") -> None:
    """`read`: when that will be, where it is known."""
    if json:
        answer_json(Sent(to, message.id, message.sender, new))
        return
    said = "is on its way" if new else "was sent before, so nothing was sent now"
    say(f"message {message.id} to {printable(to)} {said}{'; ' + read if read else ''}.")


def _row(
    id: str, sender: str, sent: float, verb: str, texts: Mapping[str, str], at: MessageAt | None = None
) -> ShownMessage:
    from wal_agent.conversation.checkpoint import rfc3339

    state: MessageState = "waits" if at is None else "given" if not at.seen else "seen"
    if at is not None and at.seen and verb:
        state = "refused" if at.refused else "done"
    given = rfc3339(at.time) if at else None
    seen = rfc3339(at.seen) if at and at.seen else None
    return ShownMessage(
        id=id,
        sender=sender,
        state=state,
        control=verb,
        sent=rfc3339(sent),
        given=given,
        seen=seen,
        refused=at.refused if at else "",
        answer=at.answer if at else "",
        text=texts.get(id),
    )


def _show_whole(id: str, text: str | None, given: Sequence[MessageAt]) -> None:
    if text is None:
        say(f"the text of message {id[:100]} is not kept here: {plural(len(given), 'message')} of this id was given.")
        raise typer.Exit(1)
    answer([printable(line) for line in text.splitlines()])
