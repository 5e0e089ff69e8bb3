"""Words for calls that are put back into a session from the log, whatever the agent."""

from __future__ import annotations

from wal_agent.agents.base import LoggedCall

MOST = 40_000  # characters of one result, as in Gemini's own cut


def unknown(call: LoggedCall) -> str:
    """The result of a call whose outcome nobody knows."""
    return "outcome unknown: " + (call.note or "the machine was lost while this call ran.")


def noted(text: str, call: LoggedCall) -> str:
    """A result's text, capped, with what the log has to say of it."""
    text = capped(text, call.call)
    return f"{text}\n\n[wal-agent: {call.note}]" if call.note else text


def capped(text: str, call: int) -> str:
    if len(text) <= MOST:
        return text
    head, tail = MOST // 5, MOST - MOST // 5
    cut = len(text) - MOST
    return f"{text[:head]}\n\n[wal-agent: {cut} characters left out; `wal-agent log` has call {call}]\n\n{text[-tail:]}"
