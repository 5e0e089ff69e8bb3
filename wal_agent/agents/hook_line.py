"""The shell line that an agent runs as a command hook, the hook's payload on stdin.

Agents fail open: a hook that is missing, hangs, is killed or says nothing lets the tool run. So the line prints a
refusal by itself unless the client brought a whole answer in time (I5). Only bash built-ins decide, as of bash 3.2; no
`timeout`, which macOS lacks. The deadlines nest: server < client < shell < agent.

The agent's own limit must never pass: it lets the tool run. Agent and hook may both be frozen for minutes (^Z, a paused
container), and an agent that thaws looks at its limit before it looks at what the hook said.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from wal_agent.agents.base import HookSetup
from wal_agent.hookwire import LINE_SIGN

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
    """Whether this is a shell that runs one of our lines, and nothing around it; `wrapped`: or as the argument of
    another command, but not as a part of what a tool evaluates."""
    ours = [word for word in argv[1:] if LINE_SIGN in word]
    return any(_BEGINS.match(word) or (wrapped and "eval " not in word) for word in ours)


def refuse_answer(refusal: str) -> bytes:
    """The answer that makes the line print `refusal`, one JSON object in one line without a raw NUL. With the NUL
    behind it that proves it whole. To an `ALLOW` the line prints nothing: a hook without an opinion (I6)."""
    return _SAY + refusal.encode() + b"\0"


def bash_line(setup: HookSetup, agent: str, event: str, firm: bool, refusal: str | None) -> str:
    """For an agent that runs its hooks with bash. Without an answer it prints `refusal`; None: nothing."""
    client = (*setup.client, str(setup.run_dir / "hook.sock"), setup.run, agent, event)
    ask = _ASK % {
        "seconds": SHELL_SECONDS[firm],
        "client": shlex.join(client),
        "limit": CLIENT_SECONDS[firm],
        "sign": LINE_SIGN,
    }
    return ask + ("exit 0" if refusal is None else f"printf '%s' {shlex.quote(refusal)}; exit 0")


def sh_line(setup: HookSetup, agent: str, event: str, firm: bool, refusal: str | None) -> str:
    """For an agent that runs its hooks with any POSIX shell, and for which exit code 2 with words on stderr blocks."""
    bash = f"bash -c {shlex.quote(bash_line(setup, agent, event, firm, refusal))}"
    return (
        f"{bash} || exit 0" if refusal is None else f"{bash} || {{ printf '%s\\n' {shlex.quote(GONE)} >&2; exit 2; }}"
    )
