"""`wal-agent effects`: what a job changed outside of its session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wal_agent.answers import answer_json
from wal_agent.cli.display import HEADED, answer_lines
from wal_agent.cli.options import HERE, AsJson, JobOptions, with_job
from wal_agent.errors import Damaged
from wal_agent.records import state_text
from wal_agent.redact import redact
from wal_agent.text import command, lines, name_job, plural, quote_word, say, shorten, timestamp

if TYPE_CHECKING:
    from wal_agent.records import Payload
    from wal_agent.recovery.effects import Effect, ShownEffect
    from wal_agent.wal.blobs import Blobs

MAX_INPUT = 1 << 20  # bytes of a call's input that are read; a command for which there is an undo is shorter
FOUND = {"completed": "it was done", "partial": "it was done in part"}
_NOTHING = "no logged call changed anything outside the session."
_NOTHING_OPEN = "the outcome of everything that the log has is known."


@with_job
def effects(
    which: JobOptions = HERE,
    n: Annotated[int, typer.Option("-n", "--number", min=0, help="Show the newest N (0 = all).")] = 0,
    open_only: Annotated[
        bool, typer.Option("--unsettled", help="Only calls and steps whose outcome is unknown.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List what the job changed, newest first, with a command to undo it where one is known.

    For the person who cleans up. Calls that only read, were denied or did not start are left out. An undo command is a
    suggestion made from the words of the call alone: read its note, nothing is ever run. Secrets are redacted. Records
    that retention has deleted are not listed. Exit code 73: the log is damaged, and the list is of what can be read.
    """
    from wal_agent.calls.rules.table import load_rules
    from wal_agent.cli.log import newest_run_is_over, read_newest
    from wal_agent.recovery.effects import Effects, effects_of

    at = which.open()
    page = read_newest(at.bucket, at.keys, 0)
    over = newest_run_is_over(at, bool(page.last))
    blobs = at.blobs
    records = ((seq, record) for seq, segment in page.segments for record in segment.records)
    every = effects_of(records, load_rules(), lambda payload: read_bytes(blobs, payload), over)
    wanted = [one for one in every if one.needs_a_look] if open_only else every
    shown = wanted[: n or None]
    if json:
        answer_json(Effects(tuple(map(show_effect, shown))))
    for one in () if json else shown:
        answer_lines(_rows(one, at.options()), HEADED)
    first = page.segments[0][0] if page.segments else 1
    if not json:
        if not shown:
            say(_NOTHING_OPEN if open_only and every else _NOTHING)
        elif len(shown) < len(wanted):
            older = plural(len(wanted) - len(shown), "older effect")
            lines([f"{older} not shown: {command('effects', at.options(), '-n', '0')}"])
        if first > 1:
            lines(
                [f"Records before {first} were deleted by retention or cannot be read; their effects are not listed."]
            )
    if page.damaged:
        raise Damaged(page.damaged[0].what, f"All that is damaged: {command('log', at.options())} -n 0")


def read_bytes(blobs: Blobs, payload: Payload) -> bytes:
    """Return a payload's bytes; b"" where it is too long or cannot be had."""

    if payload.size > MAX_INPUT:
        return b""
    try:
        return blobs.fetch(payload)
    except Damaged:
        return b""  # `wal-agent status` names it; the effect is listed without an undo


def effect_text(effect: Effect) -> str:
    """Return the call's command or path, or the step's command, redacted and on one line."""
    from wal_agent.calls.quote import show_words
    from wal_agent.cli.view import preview

    return show_words(effect.command, 200) if effect.step else preview(effect.input)


def show_effect(effect: Effect) -> ShownEffect:
    """Return the effect for programs: redacted."""
    from wal_agent.recovery.effects import ShownEffect

    return ShownEffect(
        record=effect.record,
        time=effect.time,
        epoch=effect.epoch,
        host=redact(effect.host),
        call=effect.call,
        step=redact(effect.step),
        tool=redact(effect.tool),
        text=effect_text(effect),
        cls=effect.cls,
        result=effect.result,
        finding=effect.finding,
        unsettled=effect.needs_a_look,
        by=effect.by,
        why=redact(effect.why)[:2000],
        because=redact(effect.because)[:2000],
        verify=redact(effect.verify)[:2000],
        undo=effect.undo,
    )


def _state(effect: Effect) -> str:
    """The state of the call, and what is known of it where that word does not say it."""
    found = FOUND.get(effect.finding or "", "it is not known whether it was done" if effect.needs_a_look else "")
    if effect.result == "failed":
        found = "maybe after a part"
    return ", ".join(filter(None, (state_text(effect.result), found)))


def _rows(effect: Effect, options: str) -> list[str]:

    name = f"step {effect.step}" if effect.step else f"#{effect.call} {effect.tool}"
    place = f"{timestamp(effect.time)} on {shorten(effect.host, 60)}"
    rows = [
        f"{effect.record:>5}  {place}  {shorten(redact(name), 80)}  {effect.cls}  {_state(effect)}",
        f"       {effect_text(effect)}",
    ]
    if (effect.needs_a_look or effect.result == "failed") and effect.why:
        rows.append(f"       found: {shorten(redact(effect.why))}")
    if effect.because and effect.needs_a_look:
        rows.append(f"       the agent says: {shorten(redact(effect.because))}")
    if effect.needs_a_look:
        if effect.verify:
            rows.append(f"       look with (the log says): {shorten(redact(effect.verify))}")
        if not effect.by or effect.by == "recovery":
            which = quote_word(effect.step) if effect.step else str(effect.call)
            rows.append(f"       resolve: {command(f'ack {which}', options)} --done (or --not-done)")
    labels = {"command": "undo", "partial": "undo in part", "look": "look", "impossible": "no undo", "unknown": ""}
    label = labels[effect.undo.kind]
    rows += [f"       {label}: {each}" for each in effect.undo.commands]
    if effect.undo.note:
        rows.append(f"       {'note' if effect.undo.commands or not label else label}: {name_job(effect.undo.note)}")
    return rows
