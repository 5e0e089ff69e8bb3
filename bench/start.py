"""What does `wal-agent run` add to a start? `python -m bench start`.

First to a stub that stands in for the agent: the way to its first instruction. Then to the real CLI, for one short
answer of a scripted model, against the bare CLI as a user would type it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.measure import Times, interleaved, scaled
from bench.story import story, wal_agent
from wal_agent.rehearsal.dialects import GeminiModel

ROUNDS = scaled(10, 1)
TOOLS = Path(__file__).resolve().parent.parent / ".tools/npm/node_modules/.bin/gemini"


def main() -> None:
    gemini = str(TOOLS) if TOOLS.exists() else shutil.which("gemini")
    with story() as at:
        ways: dict[str, list[float]] = {"bare": [], "wal-agent run": []}
        for _ in range(ROUNDS + 2):
            ways["bare"].append(at.until_agent([str(at.stub)]))
            ways["wal-agent run"].append(at.until_agent(wal_agent("-p", "x"), WAL_AGENT_GEMINI=str(at.stub)))
        bare, wrapped = (Times(name, tuple(values[2:])) for name, values in ways.items())
        print(
            f"  to the agent's first instruction: bare {bare.median:.1f} ms, wal-agent run {wrapped.median:.1f} ms: ",
            end="",
        )
        print(f"adds {wrapped.median - bare.median:.0f} ms")
    if gemini is None:
        raise SystemExit("the real Gemini CLI is missing; install it with: make tools")
    with story() as at, GeminiModel() as model:
        env = at.env(**model.env, WAL_AGENT_GEMINI=gemini)

        def run(argv: list[str]) -> None:
            subprocess.run(argv, cwd=at.work, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=True)

        times = interleaved(
            {
                "gemini -p (bare)": lambda: run([gemini, "-p", "x"]),
                "wal-agent run gemini -- -p": lambda: run(wal_agent("-p", "x")),
            },
            ROUNDS,
            warmup=1,
        )
        for each in times:
            print(each.line(times[0]))


if __name__ == "__main__":
    main()
