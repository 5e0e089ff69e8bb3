"""Decide how a conversation is rewritten: where a return ends, which turns age, and what stands in their place. Pure.

A compact form says what a person asked, what was done and what came of it, turn by turn, and names the trace that has
all of it. It is made of the session's own lines, so the same turns give the same form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from wal_agent.agents.base import Compacted, RequestedCall, Unit
from wal_agent.agents.session_files import canonical_json
from wal_agent.calls.quote import show_input
from wal_agent.conversation.checkpoint import named_files
from wal_agent.conversation.transcript import parse_lines
from wal_agent.errors import UsageError
from wal_agent.records import Intent
from wal_agent.redact import redact
from wal_agent.text import moment, plural, shorten

TITLE: Final = "[wal-agent] "
TURN: Final = "## Turn "
ASKED: Final = 600  # characters of a turn's prompt
ANSWERED: Final = 1200  # of its last answer
SUMMARY: Final = 1200  # of the agent's own words on it
MAX_SUMMARIZED: Final = 20  # turns that an agent is asked to summarize at once
MAX_CALLS: Final = 12  # calls of a turn that are named
MAX_FILES: Final = 8  # of a turn that are named
MAX_FORM: Final = 48_000  # characters of a whole compact form
KEEP: Final = 10  # turns that stay as they are
BYTES_PER_TOKEN: Final = 4  # an estimate, as the agents' own

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class ConversationTurn(msgspec.Struct, frozen=True):
    """A turn of the conversation: units[first:last]. `number` counts from 1; `prompt`: "" for the summary of earlier
    turns, which counts as one."""

    number: int
    first: int
    last: int
    prompt: str
    time: float


def turns_of(units: Sequence[Unit]) -> list[ConversationTurn]:
    """Return the turns, oldest first. What an agent puts in front of the first one belongs to none."""
    starts = [i for i, unit in enumerate(units) if unit.prompt or unit.summary]
    bounds = pairwise([*starts, len(units)])
    return [ConversationTurn(n, a, b, units[a].prompt, units[a].time) for n, (a, b) in enumerate(bounds, 1)]


def tokens_of(units: Sequence[Unit]) -> int:
    """Estimate what the model gets, in tokens."""
    return sum(len(unit.data) for unit in units) // BYTES_PER_TOKEN


def resting_place(units: Sequence[Unit], keep: int) -> int:
    """Return the smallest number from `keep` on of messages that leave no call without its result. UsageError: the last
    message of all has such a call."""
    waiting: set[str] = set()
    for at, unit in enumerate(units, 1):
        waiting = (waiting | {call.id for call in unit.asks}) - set(unit.answers)
        if at >= keep and not waiting:
            return at
    if keep == 0:
        return 0
    raise UsageError("A call at the end of the conversation has no result yet.", "Start the job once, then try again.")


def kept_units(newest: str, units: Sequence[Unit]) -> int:
    """Return how many messages there were when the newest one had the key `newest` ("" for none). UsageError: it is
    gone: a compaction lies between."""
    if not newest:
        return 0
    at = next((i for i, unit in enumerate(units, 1) if unit.key == newest), 0)
    if not at:
        raise UsageError(
            "The conversation was compacted or rewound since then, so that place is not in it any more.",
            "What the conversation has: wal-agent rewind. What was there: wal-agent trace list",
        )
    return at


class CompactedUnits(msgspec.Struct, frozen=True):
    """A compaction of the agent's own. `before`: the messages that it left out; `summary`: the key of its message."""

    before: tuple[Unit, ...]
    summary: str


def compacted_units(
    main: bytes,
    size: int,
    units: Callable[[bytes], tuple[Unit, ...]],
    compactions: Callable[[bytes], Sequence[Compacted]],
) -> CompactedUnits | None:
    """Find the first compaction behind `size` bytes of a main file; None: there is none.

    `size` is what the log had when the compaction began. An agent may write lines of before it later still (Claude
    Code does, a moment after their hooks), so the longest conversation in front of it counts."""
    ends = [size]
    for line in main[size:].splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
        if compactions(line):
            break
    else:
        return None
    saved = units(main[:size])
    known = {unit.key for unit in saved}
    shown = (units(main[:end]) for end in reversed(ends[1:-1]))
    before = next((found for found in shown if known <= {unit.key for unit in found}), saved)
    left_out = {unit.key for unit in before}
    fresh = [unit.key for unit in units(main[: ends[-1]]) if unit.key not in left_out]
    return CompactedUnits(before, fresh[-1]) if fresh else None


class CompactionPolicy(msgspec.Struct, frozen=True):
    """When turns age. Over `turns` turns, or `tokens` tokens, all but the newest `keep` are compacted; a turn older
    than `age` seconds is compacted anyway, if it is none of those. 0: no such limit."""

    turns: int = 0
    tokens: int = 0
    age: float = 0.0
    keep: int = KEEP


def parse_policy(text: str, keep: int = KEEP) -> CompactionPolicy:
    """Read `turns=40,tokens=120000,age=2d,keep=10`; `keep` where it says none. UsageError."""
    found: dict[str, float] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, value = part.partition("=")
        match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", value.strip())
        if name not in ("turns", "tokens", "age", "keep") or match is None or (name == "age") != bool(match[2]):
            raise UsageError(
                f"{shorten(part)} is no part of a policy.", "For example: --policy turns=40,tokens=120000,age=2d"
            )
        found[name] = int(match[1]) * _UNITS.get(match[2], 1)
    keep = int(found.pop("keep", keep))
    if not any(found.values()):
        raise UsageError("The policy names no limit.", "For example: --policy turns=40,tokens=120000,age=2d")
    return CompactionPolicy(int(found.get("turns", 0)), int(found.get("tokens", 0)), found.get("age", 0.0), keep)


def aged(units: Sequence[Unit], policy: CompactionPolicy, now: float) -> list[ConversationTurn]:
    """Return the turns, from the oldest on, that the policy compacts: at least one that is no summary, or none. Never
    the newest `keep`, nor a turn with a call that has no result."""
    turns = turns_of(units)
    may = turns[: max(0, len(turns) - max(1, policy.keep))]
    over = (policy.turns and len(turns) > policy.turns) or (policy.tokens and tokens_of(units) > policy.tokens)
    if not over:
        old = [policy.age > 0 and 0 < turn.time < now - policy.age for turn in may]
        may = may[: max((i for i, is_old in enumerate(old, 1) if is_old), default=0)]
    waiting: set[str] = set()
    done: list[ConversationTurn] = []
    for turn in may:
        for unit in units[turn.first : turn.last]:
            waiting = (waiting | {call.id for call in unit.asks}) - set(unit.answers)
        if waiting:
            break
        done.append(turn)
    return done if any(turn.prompt for turn in done) else []


def number_calls(asks: Sequence[RequestedCall], logged: Iterable[Intent]) -> dict[str, int]:
    """Return the log's numbers of the calls of a whole conversation, by their ids there: of those that an agent gives
    its id to, else where the log has as many calls of these words as the conversation. Others have none. Pure."""
    by_id: dict[str, int] = {}
    by_words: dict[tuple[str, bytes], list[int]] = {}
    for intent in logged:
        by_id |= {intent.agent_call: intent.call} if intent.agent_call else {}
        by_words.setdefault(_spelled(intent.tool, intent.input.data or b""), []).append(intent.call)
    found = {ask.id: by_id[ask.id] for ask in asks if ask.id in by_id}
    same: dict[tuple[str, bytes], list[str]] = {}
    for ask in asks:
        same.setdefault(_spelled(ask.tool, ask.input), []).append(ask.id)
    for words, ids in same.items():
        if len(ids) == len(calls := by_words.get(words, [])) and words[1]:
            found = {**dict(zip(ids, calls, strict=True)), **found}
    return found


def _spelled(tool: str, input: bytes) -> tuple[str, bytes]:
    try:
        return tool, canonical_json(json.loads(input))
    except (ValueError, RecursionError):
        return tool, input


def compact_form(
    units: Sequence[Unit],
    turns: Sequence[ConversationTurn],
    n: int,
    summaries: Mapping[str, str] | None = None,
    numbers: Mapping[str, int] | None = None,
) -> str:
    """Return the text that replaces the turns. `n`: the number of the trace; `summaries`: the agent's own words on
    turns, by the key of the first message; `numbers`: of calls in the log, as of `number_calls`."""
    words, known = summaries or {}, numbers or {}
    parts: list[str] = []
    for turn in turns:
        mine = units[turn.first : turn.last]
        if turn.prompt:
            parts.append(_turn(mine, turn, known, words.get(mine[0].key, "")))
        else:
            parts.append(_older(mine[0].summary))
            if len(mine) > 1:
                parts.append(_turn(mine, turn, known))
    text = "\n\n".join(filter(None, parts))
    if len(text) > MAX_FORM:
        newest = text[-MAX_FORM:]
        begins = newest.find(f"\n\n{TURN}")  # else one summary fills all the room
        text = f"[...]{newest[begins:] if begins >= 0 else newest}"
    count = plural(len(turns), "earlier turn")
    head = (
        f"{TITLE}{count} of this conversation, in compact form. Everything that was said and done in them is kept: "
        f"`wal-agent trace show {n}` prints it, `wal-agent recall WORDS` searches it."
    )
    return f"{head}\n\n{text}"


def summary_schema(count: int) -> dict[str, Any]:
    """Return the JSON Schema of the summaries of so many turns, oldest first."""
    each = {"type": "string", "minLength": 1, "maxLength": SUMMARY}
    turns = {"type": "array", "items": each, "minItems": count, "maxItems": count}
    return {"type": "object", "required": ["turns"], "properties": {"turns": turns}}


def ask_for_summaries(turns: Sequence[ConversationTurn]) -> str:
    """Return what the agent is asked in a copy of the conversation."""
    listed = "\n".join(f"{n}. {shorten(redact(turn.prompt), 160)}" for n, turn in enumerate(turns, 1))
    return (
        "The old turns of this conversation are about to be replaced by summaries. Write them; do nothing else, and "
        "use no tool. For each turn: what was found, decided and changed, with names of files, numbers and what is "
        f'still open, in at most 80 words. `outputs` is {{"turns": [...]}}, one string for each of these '
        f"{plural(len(turns), 'turn')}, in this order:\n{listed}"
    )


def _older(summary: str) -> str:
    """Return what a summary says, without the head that this module gave it."""
    return summary.partition("\n\n")[2] if summary.startswith(TITLE) else summary.strip()


def _turn(units: Sequence[Unit], turn: ConversationTurn, numbers: Mapping[str, int], summary: str = "") -> str:
    data = b"".join(unit.data for unit in units)
    lines = parse_lines(data)
    answer = next((line.text for line in reversed(lines) if line.role == "assistant"), "")
    answered = {id for unit in units for id in unit.answers}
    failed = {id for unit in units for id in unit.failed}
    calls = [
        _call(call, "failed" if call.id in failed else "done" if call.id in answered else "no result", numbers)
        for unit in units
        for call in unit.asks
    ]
    when = f" ({moment(turn.time, 0.0, utc=True)})" if turn.time else ""
    rows = [f"{TURN}{turn.number}{when}"]
    if turn.prompt:
        rows.append(f"Asked: {shorten(redact(turn.prompt).strip(), ASKED)}")
    behind = _sources([call for unit in units for call in unit.asks], numbers)
    if summary:
        return "\n".join([*rows, f"Summary: {shorten(redact(summary).strip(), SUMMARY)}", *behind])
    if calls:
        rows.append(f"Did ({plural(len(calls), 'call')}):")
        shown = calls if len(calls) <= MAX_CALLS else [*calls[:3], *calls[3 - MAX_CALLS :]]
        rows += [f"- {call}" for call in shown[:3]]
        if len(calls) > MAX_CALLS:
            rows.append(f"- ({len(calls) - MAX_CALLS} more)")
        rows += [f"- {call}" for call in shown[3:]]
    if answer.strip():
        rows.append(f"Answered: {shorten(redact(answer).strip(), ANSWERED)}")
    return "\n".join([*rows, *behind])


def _sources(calls: Sequence[RequestedCall], numbers: Mapping[str, int]) -> list[str]:
    """A row on what a turn's words rest on: the calls of the log, and the files that they name."""
    known = [numbers[call.id] for call in calls if call.id in numbers]
    files = list(dict.fromkeys(file for call in calls for file in named_files(call.input)))
    more = [f"{len(files) - MAX_FILES} more"] if len(files) > MAX_FILES else []
    logged = f"calls #{min(known)} to #{max(known)} of the log" if known else ""
    named = f"files {', '.join([*(shorten(f, 120) for f in files[:MAX_FILES]), *more])}" if files else ""
    behind = "; ".join(filter(None, (logged, named)))
    return [f"From: {behind}"] if behind else []


def _call(call: RequestedCall, how: str, numbers: Mapping[str, int]) -> str:
    said = show_input(call.tool, call.input).splitlines()
    number = f"#{numbers[call.id]} " if call.id in numbers else ""
    return f"{number}{call.tool}: {shorten(redact(said[0]) if said else '', 160)} ({how})"


def rewound_note(turns: int, calls: int, n: int, compact: str, *, files: bool) -> str:
    """Return the message that stands where the conversation goes on after a return. `files`: the files went back
    too."""
    what = f"{plural(turns, 'turn')} behind this place with {plural(calls, 'call')}" if turns else plural(calls, "call")
    done = "What those calls did is still done, in the files and elsewhere"
    if files:
        done = "The files of this folder were put back too; what those calls did elsewhere is still done"
    note = (
        f"{TITLE}The conversation was taken back to this place: {what} are not in it any more. {done}: look before you "
        f"do any of it again. Everything that was said is kept: `wal-agent trace show {n}` prints it."
    )
    return f"{note}\n\n{compact.strip()}" if compact.strip() else note
