"""Count the source files that one tool call and one recovery pass through: `python -m scripts.trace_files [--list]`.

A stub in Gemini's place fires the hooks of a turn with one shell command, and kills its supervisor in the middle of it.
The second start recovers and makes the same call again. A profiler in that process records which files of `wal_agent`
run a function, in which thread and when; the stub records when each hook call began and ended. Code that runs because a
module is imported does not count.

`hook`: one before-hook, in the thread that serves it. `tool_call`: from the before-hook to the end of the after-hook,
in the threads that serve hooks and write the log. `recovery`: the main thread, from the time of the second opening in
the log to that of the recovery record.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

PACKAGE = Path(__file__).resolve().parent.parent / "wal_agent"
SERVING = ("hook", "hooks", "writer")  # names of threads
FUNCTION = 1  # CO_OPTIMIZED: set for functions, not for modules and class bodies
SESSION = "11111111-2222-4333-8444-555555555555"
CALL = {"tool_name": "run_shell_command", "tool_input": {"command": "git push origin BRANCH"}}
HOOKS: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("BeforeAgent", {"prompt": "push it"}),
    ("BeforeTool", CALL),
    ("AfterTool", {**CALL, "tool_response": {"llmContent": "Everything up-to-date"}}),
    ("AfterAgent", {}),
)


def stub() -> str:
    """A shell script that fires HOOKS; killed in the call at its first start, it writes `EVENT BEGAN ENDED` (ns)."""
    from wal_agent.agents.hook_line import client_command

    client = shlex.join(client_command())
    lines = [
        "#!/bin/sh",
        'case "$1" in --version) echo 0.61.0; exit 0;; esac',
        'echo "begin $(date +%s%N)" >> "$MARKS"',
        '[ -e "$MARKS.killed" ] && branch=next || branch=main',
        'for word; do case "$before" in --resume | --session-id) session=$word;; esac; before=$word; done',
        'for file in "$HOME"/.gemini/tmp/*/chats/session-*-"${session%%-*}".jsonl; do',
        """    [ ! -f "$file" ] || printf '{"$set":{"sessionId":"%s"}}\\n' "$session" >> "$file"  # as read""",
        "done",
    ]
    for event, fields in HOOKS:
        payload = json.dumps({"session_id": SESSION, **fields}).replace(SESSION, "%s").replace("BRANCH", "%s")
        branch = (
            ' "$branch"' if payload.count("%s") > 1 else ""
        )  # another call than the one in flight, which is refused
        lines += [
            "began=$(date +%s%N)",
            f'printf {shlex.quote(payload)} "${{session:-{SESSION}}}"{branch} |',
            f'    {client} "$WAL_AGENT_SOCKET" "$WAL_AGENT_RUN" gemini {event} $$ 20 >/dev/null',
            f'echo "{event} $began $(date +%s%N)" >> "$MARKS"',
        ]
        if event == "BeforeTool":
            saved = f"""{shlex.quote(sys.executable)} -m wal_agent status --json | grep -q '"saved": [1-9]'"""
            lines.append(f'[ -e "$MARKS.killed" ] || until {saved}; do :; done  # a recovery has a tree to look at')
            lines.append('[ -e "$MARKS.killed" ] || { : > "$MARKS.killed"; kill -9 "$PPID"; exit 1; }')
    return "\n".join([*lines, ""])


def record(out: Path) -> None:
    """Run the command line under the profiler; `out` gets lines of thread, file and times (ns)."""
    seen: dict[tuple[str, str], list[int]] = {}
    prefix = str(PACKAGE) + os.sep

    def imported(frame: FrameType | None) -> bool:
        """Whether it runs because a module of the package is imported, here or by a caller."""
        while frame is not None:
            code, frame = frame.f_code, frame.f_back
            if code.co_name == "<module>" and code.co_filename.startswith(prefix):
                return True
        return False

    def note(frame: FrameType, what: str, _: object) -> None:
        code = frame.f_code
        if what == "call" and code.co_flags & FUNCTION and code.co_filename.startswith(prefix) and not imported(frame):
            key = (threading.current_thread().name, code.co_filename[len(prefix) :])
            seen.setdefault(key, []).append(time.time_ns())

    from wal_agent.cli.main import main

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        main()
    finally:
        sys.setprofile(None)
        out.write_text("".join(json.dumps([*key, *times]) + "\n" for key, times in list(seen.items())))


def trace(root: Path) -> dict[str, list[str]]:
    """The files of each, by what they do; both starts happen below `root`."""
    home, work, program, marks = root / "home", root / "work", root / "stub", root / "marks"
    (home / ".gemini").mkdir(parents=True)
    (home / ".gemini" / "settings.json").write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}\n')
    work.mkdir()
    program.write_text(stub())
    program.chmod(0o755)
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PACKAGE.parent),
        "HOME": str(home),
        "WAL_AGENT_BUCKET": f"file://{root}/bucket",
        "WAL_AGENT_RUNTIME_DIR": str(root / "run"),
        "WAL_AGENT_GEMINI": str(program),
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "MARKS": str(marks),
    }
    recorded = root / "recorded"
    for _ in range(2):
        argv = [sys.executable, "-m", "scripts.trace_files", "--record", str(recorded), "run", "gemini", "--ttl", "1"]
        done = subprocess.run(
            [*argv, "--wait", "--", "-p", "push it"],
            cwd=work,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
    if done.returncode or not recorded.exists():
        raise RuntimeError(f"the second start ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    calls = [json.loads(line) for line in recorded.read_text().splitlines()]
    times = {event: [int(at) for at in found] for event, *found in map(str.split, marks.read_text().splitlines())}
    began, ended = times["BeforeTool"][0], times["AfterTool"][1]
    argv = [sys.executable, "-m", "wal_agent", "log", "--json", "-n", "1000"]
    log = subprocess.run(argv, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    logged = {
        entry["type"]: int(entry["time"] * 1e9) for entry in map(json.loads, log.splitlines())
    }  # of each the last

    def within(threads: tuple[str, ...], low: int, high: int) -> list[str]:
        return sorted({file for thread, file, *at in calls if thread in threads and any(low <= t <= high for t in at)})

    return {
        "hook": within(("hook",), *times["BeforeTool"]),
        "tool_call": within(SERVING, began, ended),
        "recovery": within(("MainThread",), logged["opening"], logged["recovery"]),
    }


def count() -> dict[str, list[str]]:
    """`trace` in a folder of its own below /tmp: a socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="wa-trace-", dir="/tmp") as folder:
        return trace(Path(folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        target = Path(sys.argv[2])
        sys.argv = ["wal-agent", *sys.argv[3:]]
        record(target)
    else:
        for name, files in count().items():
            print(f"{name}: {len(files)} files")
            if "--list" in sys.argv:
                print("".join(f"  {file}\n" for file in files), end="")
