"""A foreseen start as plain data (`recover --dry-run --json`): the facts of screen and prompt, redacted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from wal_agent.recovery.inflight import InFlight
from wal_agent.recovery.plan import Refuse, Resume, StartAgain
from wal_agent.redact import redact
from wal_agent.shell.quote import cut, show_input
from wal_agent.supervise.dry_run import ForeseenStart

MOST_INPUT = 2000  # characters of a call's input


def foreseen_facts(seen: ForeseenStart) -> dict[str, Any]:
    """`start` is resume, again, new or refuse, None where the lease does not let it come to a decision; the rest is
    there only where a recovery would be."""
    told, decided = seen.told, seen.decided
    found: dict[str, Any] = {
        "plan": redact(seen.plan),
        "start": None if decided is None and not seen.refused else _start(seen),
        "prompt": seen.prompt,
    }
    if seen.tree is not None:
        left, pending = [redact(text) for text in seen.tree.left_out], msgspec.to_builtins(seen.tree.pending)
        if pending is not None:
            pending["names"] = [redact(name) for name in pending.get("names", ())]
        found["tree"] = {**asdict(seen.tree), "left_out": left, "pending": pending}
    if told is not None and isinstance(decided, Resume | StartAgain):
        found |= {
            "alert": told.alert,
            "stopped": told.stopped,
            "saved": told.saved,
            "same_host": told.same_host,
            "calls": [_call(call) for call in told.calls],
            "finished": [e.intent.call for e in decided.finished],
            "lost": [call.call for call in told.lost.calls],
            "leftovers": [redact(text) for text in told.leftovers],
            "warnings": [redact(text) for text in told.warnings],
        }
    return found


def _start(seen: ForeseenStart) -> str:
    match seen.decided:
        case Resume():
            return "resume"
        case StartAgain():
            return "again"
        case Refuse() | None:
            return "refuse"
        case _:
            return "new"


def _call(call: InFlight) -> dict[str, Any]:
    return {
        "calls": list(call.calls),
        "issued": call.issued,
        "tool": call.tool,
        "input": cut(show_input(call.tool, call.input), MOST_INPUT),
        "started": call.started,
        "class": call.cls,
        "rule": call.rule,
        "source": call.source,
        "why": redact(call.why),
        "finding": call.finding,
        "because": redact(call.because),
        "verify": redact(call.verify),
        "next": redact(call.next),
    }
