"""The shell line that Gemini runs as a hook: `bash -c LINE`, the hook's payload on stdin.

Gemini itself fails open: a hook that is missing, hangs, is killed, exits 1 or says nothing lets the tool run. So the
line prints a refusal by itself unless the client brought a whole answer in time (I5). Only bash built-ins decide, as
of bash 3.2; no `timeout`, which macOS lacks. The deadlines nest: server < client < shell < Gemini.

The extension lies in the user's own folder and every Gemini loads it, so the first line asks whether this Gemini is
this run's, and leaves at once if not (I7). The marker's name begins with GEMINI_CLI_ because Gemini passes only such
variables on where it strips the environment (GITHUB_SHA, SURFACE=Github). The pid is the second way.
"""

from __future__ import annotations

import shlex

from wal_agent.agents.base import Deny, HookSetup
from wal_agent.agents.gemini.events import refusal
from wal_agent.hookwire import LINE_SIGN

MARKER = "GEMINI_CLI_WAL_AGENT_RUN"
HOOK_TIMEOUT_MS = 60_000
FIRM = {"BeforeTool", "AfterTool"}  # may wait for the bucket; the others are answered at once
SHELL_SECONDS = {True: 30, False: 5}
CLIENT_SECONDS = {True: 25, False: 4}

GONE = (
    "wal-agent did not run this: its own hook had no answer from wal-agent (it ended, hangs or is broken), so the "
    "intent could not be saved. Nothing was changed. Do not try other ways; stop here and say so."
)

# A line of its own, so that bash runs it before it parses what follows.
_MINE = (
    '[ "$%(marker)s" = %(run)s ] || { IFS= read -r p <%(pid)s && [ "$p" = "$PPID" ]; } 2>/dev/null || exit 0\n'
    "out=; exec 3<&0; "
    "if IFS= read -r -t %(seconds)d -d '' out < <(exec %(client)s \"$PPID\" %(limit)d <&3 2>/dev/null); then "
    "case $out in "
    "%(sign)s "
    "'wal-agent:say {'*'}') printf '%%s' \"${out#wal-agent:say }\"; exit 0;; "
    "esac; fi; "
)
_REFUSE = "printf '%%s' %(deny)s; exit 0"
_SILENT = "exit 0"


def hook_line(setup: HookSetup, event: str) -> str:
    """The command for one event. Only a tool that has not run yet is refused; other broken hooks are silent (I6)."""
    firm = event in FIRM
    client = (*setup.client, str(setup.run_dir / "hook.sock"), setup.run, "gemini", event)
    template = _MINE + (_REFUSE if event == "BeforeTool" else _SILENT)
    return template % {
        "marker": MARKER,
        "sign": LINE_SIGN,
        "run": shlex.quote(setup.run),
        "pid": shlex.quote(str(setup.run_dir / "agent.pid")),
        "seconds": SHELL_SECONDS[firm],
        "limit": CLIENT_SECONDS[firm],
        "client": shlex.join(client),
        "deny": shlex.quote(refusal(Deny(GONE))),
    }
