"""A shell script that stands in for Gemini where only the way to its start matters, in tests and benches.

It writes when it began (nanoseconds) behind what is in the file `$STUB_BEGAN`. Its hooks report one turn, which is
complete; without them `run` would end with 78. Started without wal-agent it fires none.
"""

from __future__ import annotations

import shlex

from wal_agent.agents.hook_line import client_command

STUB = f"""#!/bin/sh
case "$1" in --version) echo 0.61.0; exit 0;; esac
date +%s%N >> "$STUB_BEGAN"
[ "$WAL_AGENT_SOCKET" ] || exit 0
for word; do case "$before" in --resume | --session-id) session=$word;; esac; before=$word; done
for file in "$HOME"/.gemini/tmp/*/chats/session-*-"${{session%%-*}}".jsonl; do
    [ ! -f "$file" ] || printf '{{"$set":{{"sessionId":"%s"}}}}\\n' "$session" >> "$file"  # as read
done
for event in BeforeAgent AfterAgent; do
    printf '{{"session_id": "%s"}}' "$session" |
        {shlex.join(client_command())} "$WAL_AGENT_SOCKET" "$WAL_AGENT_RUN" gemini $event $$ 20 >/dev/null
done
"""
