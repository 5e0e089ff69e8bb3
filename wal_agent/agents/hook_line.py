"""What a hook runs and exchanges: the table of its events, the answers to it, and the shell line of a command hook.

Agents fail open: a hook that is missing, hangs, is killed or prints nothing lets the tool run. So the shell line, which
gets the payload on stdin, prints a refusal by itself unless the client brought a whole answer in time (I5). Only bash
built-ins decide, as of bash 3.2; no `timeout`, which macOS lacks. The deadlines nest: server < client < shell < agent.

The agent's own limit must never expire, since the tool then runs. Agent and hook may both be frozen for minutes (^Z, a
paused container), and an agent that thaws checks its limit before it reads the hook's output.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents.base import Allow, Decision, Deny, HookEvent, HookSetup, OtherEvent
from wal_agent.agents.session_files import well_formed
from wal_agent.hookwire import LINE_SIGN

Payload = TypeVar("Payload", bound=msgspec.Struct)
Entry = tuple[type[Any], Callable[[Any], HookEvent]]


def on(payload: type[Payload], build: Callable[[Payload], HookEvent]) -> Entry:
    """Return an event's entry in an agent's table: the type of its payload, and what becomes of it."""
    return payload, build


def outer(event: str, payload: type[Payload], build: Callable[[Payload], HookEvent]) -> tuple[str, Entry]:
    """Return the entry of an event that means nothing where it is a subagent's own (`agent_id` of the payload)."""
    return event, on(payload, lambda p: OtherEvent(event) if getattr(p, "agent_id", "") else build(p))


def parser(events: Mapping[str, Entry]) -> Callable[[str, bytes], HookEvent]:
    """Return an agent's `parse`. It raises ValueError when a payload is not what its event carries: the caller then
    denies."""
    decode = msgspec_compat.of_events({event: payload for event, (payload, _) in events.items()})

    def parse(event: str, payload: bytes) -> HookEvent:
        if event not in events:
            return OtherEvent(event)
        try:
            return events[event][1](decode[event].decode(well_formed(payload)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise ValueError(f"{event} hook: {e}") from e

    return parse


def renderer(deny: Callable[[Deny], str], refusable: Collection[str]) -> Callable[[str, Decision], bytes]:
    """Return an agent's `render`, for a client that hands the answer to the shell line. `deny` gives the agent's own
    refusal; events that are not `refusable` are always allowed."""

    def render(event: str, decision: Decision) -> bytes:
        return ALLOW if isinstance(decision, Allow) or event not in refusable else refuse_answer(deny(decision))

    return render


def permission_deny(decision: Deny) -> str:
    """Return the deny of Claude Code and Codex, one line."""
    denied = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": decision.reason}
    return json.dumps({"hookSpecificOutput": denied})


def skip_pattern(tools: Sequence[str]) -> str:
    """Return a pattern for every tool but these, for an agent whose patterns have look-ahead."""
    return f"^(?!(?:{'|'.join(map(re.escape, tools))})$)"


HOOK_SECONDS = 86_400  # the agent's own limit
SHELL_SECONDS = {True: 30, False: 5}  # firm: may wait for the bucket; other hooks are answered at once
CLIENT_SECONDS = {True: 25, False: 4}

ALLOW = b"wal-agent:allow\0"
_SAY = b"wal-agent:say "

GONE = (
    "wal-agent did not run this: its own hook had no answer from wal-agent (it ended, hangs or is broken), so the "
    "intent could not be saved. Nothing was changed. Do not try other ways; stop here and say so."
)

_ASK = (
    "out=; exec 3<&0; "
    "if IFS= read -r -t %(seconds)d -d '' out < <(exec %(client)s \"$PPID\" %(limit)d <&3 2>/dev/null); then "
    "case $out in "
    "%(sign)s "
    "'wal-agent:say {'*'}') printf '%%s' \"${out#wal-agent:say }\"; exit 0;; "
    "esac; fi; "
)


# How a hook's text begins: as each of the lines below does, with what extension.py or installed.py put before them.
_BEGINS = re.compile(
    r"out=; exec 3<&0; |bash -c 'out=; exec 3<&0; "
    r'|\[ "\$\w+" = \S+ \] \|\| \{ IFS= read -r p <|\[ -n "\$WAL_AGENT_RUN" \] && \[ -n "\$WAL_AGENT_SOCKET" \] '
)


def is_hook_line(argv: Sequence[str], wrapped: bool = False) -> bool:
    """Return whether this is a shell that runs one of wal-agent's lines and nothing else. `wrapped`: also as the
    argument of another command, but not as a part of what a tool evaluates."""
    ours = [word for word in argv[1:] if LINE_SIGN in word]
    return any(_BEGINS.match(word) or (wrapped and "eval " not in word) for word in ours)


def refuse_answer(refusal: str) -> bytes:
    """Return the answer that makes the line print `refusal`, one JSON object in one line without a raw NUL. The NUL
    behind it proves it whole. For `ALLOW` the line prints nothing: a hook without an opinion (I6)."""
    return _SAY + refusal.encode() + b"\0"


def bash_line(setup: HookSetup, agent: str, event: str, firm: bool, refusal: str | None) -> str:
    """Return the line for an agent that runs hooks with bash. Without an answer it prints `refusal` (None: nothing)."""
    client = (*setup.client, str(setup.run_dir / "hook.sock"), setup.run, agent, event)
    ask = _ASK % {
        "seconds": SHELL_SECONDS[firm],
        "client": shlex.join(client),
        "limit": CLIENT_SECONDS[firm],
        "sign": LINE_SIGN,
    }
    return ask + ("exit 0" if refusal is None else f"printf '%s' {shlex.quote(refusal)}; exit 0")


def sh_line(setup: HookSetup, agent: str, event: str, firm: bool, refusal: str | None) -> str:
    """Return the line for an agent that runs hooks with any POSIX shell and blocks on exit code 2 with stderr text."""
    bash = f"bash -c {shlex.quote(bash_line(setup, agent, event, firm, refusal))}"
    return (
        f"{bash} || exit 0" if refusal is None else f"{bash} || {{ printf '%s\\n' {shlex.quote(GONE)} >&2; exit 2; }}"
    )
