"""A supervisor in small, run as a process by the tests: starts its arguments as a Child and tells what happens.

`nest.py [--no-stdin] [--passed] -- ARGV`; the environment that it is given goes to the child. Lines on stderr: `pid N`,
`terminated N` for each SIGTERM (the second one ends the child), `exit CODE SHELL_CODE`;
with --passed, the signals that it was given lately, and those that still wait for us.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from wal_agent.supervise.processes import Child, become_subreaper, block_signals


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    options, argv = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    block_signals()
    become_subreaper()
    child = Child(argv, os.environ, Path.cwd(), no_stdin="--no-stdin" in options)
    say(f"pid {child.pid}")

    def on_terminate(count: int) -> None:
        say(f"terminated {count}")
        if count == 2:
            child.kill()

    ended = child.wait(on_terminate, lambda: None, lambda: 0.05)
    say(f"exit {ended.code} {ended.shell_code}")
    if "--passed" in options:
        waiting = signal.sigpending() - {signal.SIGCHLD, signal.SIGALRM}
        say(f"passed {sorted(child.passed)} pending {sorted(waiting)}")


if __name__ == "__main__":
    main()
