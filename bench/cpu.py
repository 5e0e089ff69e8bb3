"""What CPU time does a run use for a changing call? `python -m bench cpu`.

A whole run in a git repository of 300 files; a stub stands in for the agent, and makes calls that change a file each,
a moment apart, through the real hook client. Counted: the supervisor's own CPU time and that of its git, by the kernel,
between the first counted call and the moment behind the last. The hooks themselves are the agent's children, and do
not count.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess

from bench.capture import PER_FOLDER, repository
from bench.hook import payload
from bench.measure import scaled
from bench.story import Story, story, wal_agent
from wal_agent.agents.hook_line import client_command

CALLS = scaled(40, 2)
PAUSE = scaled(0.5, 0.0)  # seconds between calls: a model thinks
FILES = 3 * PER_FOLDER
TICK = 1000 / os.sysconf("SC_CLK_TCK")  # ms


def stub(at: Story) -> str:
    """The agent: `hook EVENT PAYLOAD` as its hooks, and the supervisor's times before and behind the calls."""
    before, after = (shlex.quote(payload(event, "make x").decode()) for event in ("BeforeTool", "AfterTool"))
    turn = shlex.quote(json.dumps({"session_id": "s", "prompt": "x"}))
    return f"""#!/bin/bash
case "$1" in --version) echo 0.61.0; exit 0;; esac
date +%s%N > "$STUB_BEGAN"
hook() {{
    printf %s "$2" | {shlex.join(client_command())} "$WAL_AGENT_SOCKET" "$WAL_AGENT_RUN" gemini "$1" $$ 20 > /dev/null
}}
before={before} after={after} # each call another one: a model that repeats one for ever is stopped
call() {{
    hook BeforeTool "${{before/make x/make $1}}"; echo "$1" >> part0/module0/file1.txt
    hook AfterTool "${{after/make x/make $1}}"; sleep {PAUSE}
}}
hook BeforeAgent {turn}
for n in 1 2 3; do call $n; done
sleep {4 * PAUSE}
cut -d' ' -f14-17 /proc/$PPID/stat > {at.root}/times
for n in $(seq {CALLS}); do call $n; done
sleep {4 * PAUSE}
cut -d' ' -f14-17 /proc/$PPID/stat >> {at.root}/times
hook AfterAgent {turn}
"""


def main() -> None:
    with story() as at:
        at.work.rmdir()
        repository(at.work, FILES)
        at.stub.write_text(stub(at))
        env = at.env(WAL_AGENT_GEMINI=str(at.stub))
        subprocess.run(wal_agent("-p", "x"), cwd=at.work, env=env, stdin=subprocess.DEVNULL, check=True)
        before, after = ([int(n) for n in line.split()] for line in (at.root / "times").read_text().splitlines())
        used = [(b - a) * TICK / CALLS for a, b in zip(before, after, strict=True)]
        print(f"  a changing call: {sum(used[:2]):.1f} ms of CPU of the supervisor, {sum(used[2:]):.1f} ms of its git")


if __name__ == "__main__":
    main()
