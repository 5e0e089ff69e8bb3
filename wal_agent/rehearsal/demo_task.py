"""Play the story of a task for `wal-agent demo --story task`: an investigation of which only the result stays.

The machine dies in the middle of it; the same command goes on, and what the caller's model reads then is compared with
what the task's model read.
"""

from __future__ import annotations

import json
import threading
from typing import Final

from wal_agent.bucket import open_bucket
from wal_agent.rehearsal.demo import SECONDS, Stage
from wal_agent.rehearsal.model import Called, HistoryText, Model, Part, Returned, Turn
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import replay
from wal_agent.wal.state import State

TASK: Final = "Have the double charge looked into, and report."
QUESTION: Final = "which customer was charged twice"
ASK: Final = f'wal-agent task "{QUESTION}"'
RESULT: Final = "Customer 7 was charged twice, see day-5.log."
DAYS: Final = range(1, 7)
BEFORE: Final = 3  # days that are read before the machine dies


def play(stage: Stage, model: Model) -> None:
    """Play it. TimeoutError: something that should have happened did not."""
    _TaskStory(stage, model).play()


class _TaskStory:
    """One death of a machine inside a task, and what comes after it."""

    def __init__(self, stage: Stage, model: Model) -> None:
        self.stage, self.model, self.shell = stage, model, stage.rehearsal.shell

    def play(self) -> None:
        show, stage = self.stage.show, self.stage
        for day in DAYS:
            (stage.work / f"day-{day}.log").write_text(f"entry-of-day-{day} " * 200 + "\n")
        home = stage.home("home-1")
        show("1. The agent gives a task away: it reads six logs, in a conversation of its own.")
        show(f"   $ {ASK}\n")
        hold = threading.Event()
        self.model.turns[:] = [Turn(calls=[self.shell(ASK)]), *self._read(1, BEFORE), Turn("never said", hold=hold)]
        run = stage.start(home, self.model)
        stage.wait("three logs are read and saved", lambda: self._saved(BEFORE))
        stage.die(run, home)
        hold.set()
        show("\n2. The machine dies after three of them. The same command again; the agent types the same task again,")
        show("   and once more when it has the result:\n")
        self.model.requests.clear()
        ask = Turn(calls=[self.shell(ASK)])
        self.model.turns[:] = [ask, *self._read(BEFORE + 1, len(DAYS)), Turn(RESULT), ask, Turn("Reported.")]
        code = stage.start(home, self.model).wait(SECONDS)
        show("\n3. What was promised, checked:\n")
        traces = stage.command(home, self.model, "trace", "list", "--job", stage.job, "--json")
        self._check(code, json.loads(traces or "{}"))

    def _read(self, first: int, last: int) -> list[Turn]:
        words = [f"echo looked-at-{day} >> ledger.txt; cat day-{day}.log" for day in range(first, last + 1)]
        return [Turn(calls=[self.shell(each)]) for each in words]

    def _saved(self, calls: int) -> bool:
        child = self._child()
        return child is not None and child.next_call > calls and not child.open and not child.unsettled

    def _child(self) -> State | None:
        """As the log of the task's job says; None: it has not begun."""
        bucket = open_bucket(f"file://{self.stage.bucket}")
        try:
            names = [*replay(bucket, Keys(self.stage.job)).state.tasks]
            return replay(bucket, Keys(names[0])).state if names else None
        finally:
            bucket.close()

    def _check(self, code: int, traces: dict[str, object]) -> None:
        check, stage, child = self.stage.check, self.stage, self._child()
        caller = self.model.history(len(self.model.requests) - 1)
        results = [part.text for part in caller if isinstance(part, Returned) and RESULT in part.text]
        check(f"each log was read once, across the death: {len(stage.ledger())}", stage.ledger() == _looks(DAYS))
        check("the caller got the result twice, the second time from what is kept", len(results) == 2)
        check("six requests to the model were enough for that", len(self.model.requests) == 3 + len(DAYS) - BEFORE + 1)
        check("no line of the logs is in the caller's conversation", not _mentions(caller, "entry-of-day-"))
        trace = "".join(_texts(self.model.history(len(DAYS) - BEFORE + 1)))
        check(
            f"what the task read is in its own: {len(trace) // 4:,} tokens, the results {len(''.join(results)) // 4:,}",
            all(f"entry-of-day-{day} " in trace for day in DAYS),
        )
        recovery = stage.state().recovery
        cut_off = recovery is not None and [v.finding for v in recovery.verdicts] == ["partial"]
        check("the agent was told that its task was cut off, by the log of the task", cut_off)
        linked = child is not None and child.task is not None and child.task.job == stage.job
        check("both logs name the other one", linked and bool(traces.get("tasks")))
        check("the last run ended well (exit 0), and nothing is left to settle", code == 0 and not stage.state().open)


def _looks(days: range) -> list[str]:
    return [f"looked-at-{day}" for day in days]


def _texts(history: list[Part]) -> list[str]:
    return [part.text for part in history if isinstance(part, HistoryText | Returned)]


def _mentions(history: list[Part], words: str) -> bool:
    calls = [str(part.input) for part in history if isinstance(part, Called)]
    return any(words in text for text in [*_texts(history), *calls])
