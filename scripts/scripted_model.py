"""A scripted model for docs/tutorial.md: it makes a real agent CLI run the commands that you name, without a key.

    python -m scripts.scripted_model gemini FOLDER './charge.sh 49.90' 'cat ledger.txt'

FOLDER becomes the HOME of the tutorial. FOLDER/env holds the exports that point the agent to this model, which serves
on loopback until it is ended. Each command is one tool call; after the last one the model answers with a sentence.
"""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path

from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.rehearsal.model import Model, Turn

USAGE = "usage: python -m scripts.scripted_model AGENT FOLDER COMMAND..."


def main(argv: list[str]) -> int:
    """Serve the script until SIGTERM or SIGINT. Returns the exit code: 64 for wrong arguments."""
    rehearsal = rehearsal_of(AGENTS[argv[0]]) if len(argv) > 2 and argv[0] in AGENTS else None
    if rehearsal is None:
        print(USAGE, file=sys.stderr)
        return 64
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before a thread starts: sigwait needs them blocked in all
    home = Path(argv[1]).resolve()
    home.mkdir(parents=True, exist_ok=True)
    turns = [Turn(calls=[rehearsal.shell(command)]) for command in argv[2:]]
    with Model(rehearsal.dialect, [*turns, Turn(text="All commands of the script have run.")]) as model:
        exports = {**rehearsal.home(home, Path.cwd(), model.url), "HOME": str(home)}
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in exports.items()]
        (home / "env").write_text("".join(lines))
        print(f"serving on {model.url}; now: . {shlex.quote(str(home / 'env'))}", flush=True)
        signal.sigwait(ends)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
