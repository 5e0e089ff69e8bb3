"""A wrapper as ferrofaction describes itself, for Gemini: `ferrofaction.py BUCKET PROGRAM ARGS...`.

A lock object from the start to a clean exit; a hook around each tool copies the transcript to the bucket; a lock that
is found means an unclean shutdown: the transcript is brought back and the agent resumed with a prompt that asks to
classify, verify, decide and report. The published script looks for session files under a name that Gemini no longer
uses, and then saves nothing; this one copies today's files. Its bucket is a folder, so a copy costs no round trip.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

PROMPT: Final = (
    "[unclean shutdown] The previous session ended unexpectedly. An operation may have been in progress. Before you go "
    "on: classify the last operation as idempotent or not, verify its state, decide whether to repeat it, and report. "
    "Then finish the task."
)


def main(bucket: Path, command: list[str]) -> int:
    kept, lock = bucket / "sessions", bucket / "session.lock"
    kept.mkdir(parents=True, exist_ok=True)
    gemini = Path.home() / ".gemini"
    place_hooks(gemini, kept)
    if lock.exists() and any(kept.iterdir()):
        shutil.copytree(kept, gemini / "tmp" / Path.cwd().name / "chats", dirs_exist_ok=True)
        command = [*command[: command.index("--prompt")], "--resume", "latest", "--prompt", PROMPT]
    lock.touch()
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        lock.unlink()
    return code


def place_hooks(gemini: Path, kept: Path) -> None:
    """Copy the transcript before and after each tool."""
    settings = gemini / "settings.json"
    found = json.loads(settings.read_text("utf-8"))
    copy = f'for f in "$HOME"/.gemini/tmp/*/chats/*; do cp "$f" {shlex.quote(str(kept))}; done; echo "{{}}"'
    hook = {"matcher": "*", "hooks": [{"name": "sync", "type": "command", "command": copy, "timeout": 30000}]}
    found["hooks"] = {"BeforeTool": [hook], "AfterTool": [hook]}
    settings.write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
