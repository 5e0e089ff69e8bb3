"""Bounded tasks: an investigation in a job of its own, of which the caller keeps only the result (docs/TASKS.md). Pure.

The child's name is made of its caller's, the agent and the prompt, so that the same task typed again, in the same
conversation or after a crash, is the same child: its log says how far it came.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wal_agent.agents.base import Agent
from wal_agent.errors import UsageError
from wal_agent.records import TaskOf
from wal_agent.recovery.checkpoint import Occasion, checkpoint_of, read_document
from wal_agent.redact import redact
from wal_agent.shell.quote import show_input
from wal_agent.text import shorten
from wal_agent.wal.state import State

MARK: Final = ".task-"
MOST_DEPTH: Final = 3
MOST_PROMPT: Final = 64 << 10  # bytes
MOST_SUMMARY: Final = 12_000  # characters of the answer that the caller gets
MOST_TRAIL: Final = 30
ASK: Final = (
    "\n\nThe caller sees nothing of your work but your last message: end with what you found, with names of files, "
    "numbers and what you are not sure of."
)


def depth_of(parent: str, task: TaskOf | None) -> int:
    """Return how many tasks a task of the job `parent` is inside, itself included. `task`: whose the parent is; the
    name says it too, unless it was cut."""
    return max(parent.count(MARK), task.depth if task else 0) + 1


def child_job(parent: str, agent: str, prompt: str, depth: int = 1, most: int = MOST_DEPTH) -> str:
    """Return the name of the task's job, which is `depth` tasks deep, and may be `most`. UsageError: it may not, or the
    prompt is none."""
    if not prompt.strip():
        raise UsageError("The task is empty.", 'For example: wal-agent task "find out why the login test fails"')
    if len(prompt.encode("utf-8", "replace")) > MOST_PROMPT:
        raise UsageError(f"The task has more than {MOST_PROMPT >> 10} KiB.", "Put it into a file, and its place here.")
    if depth > most:
        raise UsageError(f"Tasks can be nested {most} deep, and {parent} is.", "Do this one yourself.")
    return task_job(parent, agent, prompt)


def task_job(parent: str, agent: str, prompt: str, *, fork: bool = False) -> str:
    """Return the name of the job of a task, deep or not. `fork`: of a copy of the caller's conversation."""
    words = (parent, agent, prompt, *(["fork"] if fork else []))
    digest = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{parent[: 100 - len(MARK) - len(digest)]}{MARK}{digest}"


@dataclass(frozen=True, slots=True)
class TaskWords:
    """What the words of a `wal-agent task` say."""

    prompt: str
    agent: str = ""
    fork: bool = False
    job: str = ""
    bucket: str | None = None


_FLAGS: Final = frozenset(("--fork", "--fresh", "--json"))


def parse_task(words: Sequence[str]) -> TaskWords | None:
    """Read the words behind `wal-agent task`. None: they are no such command's."""
    own, found, flags, prompts = list(words), dict[str, str](), set[str](), list[str]()
    while own:
        word = own.pop(0)
        name, eq, value = word.partition("=")
        if word == "--":
            prompts += own
            break
        if word in _FLAGS:
            flags.add(word)
        elif word.startswith("--"):
            found[name] = value if eq else own.pop(0) if own else ""
        else:
            prompts.append(word)
    if len(prompts) != 1:
        return None
    chosen = (found.get("--agent", ""), "--fork" in flags, found.get("--job", ""), found.get("--bucket"))
    return TaskWords(prompts[0], *chosen)


def child_args(agent: Agent, caller: Sequence[str], prompt: str) -> tuple[str, ...]:
    """Return the child's arguments. `caller`: those of the run that asks, where it is of the same agent: its model and
    its permissions are the child's too. Where they name a session, or hold no prompt, only the headless form."""
    asked = prompt + ASK
    given = agent.prompt_from_args(caller) if caller else None
    if given and caller.count(given) == 1 and agent.session_from_args(caller) is None:
        return tuple(asked if arg == given else arg for arg in caller)
    return (*agent.capabilities.headless, asked)


@dataclass(frozen=True, slots=True)
class CompactForm:
    """What is left of a task for its caller. `summary`: its last message; `outputs`: files that it changed;
    `derivation_trail`: its newest calls, oldest first; `trace`: the job that has all of it; `budget`: of calls, where
    it was used up, else 0."""

    summary: str
    outputs: tuple[str, ...]
    derivation_trail: tuple[str, ...]
    trace: str
    budget: int = 0

    def render(self) -> str:
        """As the caller's model reads it."""
        rows = [self.summary or "The task ended without a last message."]
        if self.outputs:
            rows.append(f"Files changed: {', '.join(self.outputs)}")
        if self.derivation_trail:
            rows.append("What it did, the newest last:\n" + "\n".join(f"- {line}" for line in self.derivation_trail))
        if self.budget:
            rows.append(f"Its budget of {self.budget} calls was used up, so this may not be all.")
        rows.append(f"All of it: wal-agent recall WORDS --job {self.trace}")
        return "\n\n".join(rows)


def compact_form(job: str, agent: str, state: State, answer: str, budget: int = 0) -> CompactForm:
    """Return it for a child's log. `answer`: its last message; `budget`: as in CompactForm."""
    document = read_document(checkpoint_of(state, Occasion(job, agent, 0, "manual", state.time)))
    calls = [c for c in state.recent if c.how][-MOST_TRAIL:]
    trail = tuple(f"{shorten(show_input(c.tool, c.input).splitlines()[0], 160)}: {c.how}" for c in calls)
    text = redact(answer).strip()
    cut = text if len(text) <= MOST_SUMMARY else f"{text[:MOST_SUMMARY]}\n[...]"
    return CompactForm(cut, tuple(document.workspace.modified), trail, job, budget)
