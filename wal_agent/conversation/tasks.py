"""Bounded tasks: an investigation in a job of its own, of which the caller keeps only the result (docs/TASKS.md). Pure.

The child's name is made of its caller's, the agent and the prompt, so that the same task typed again, in the same
conversation or after a crash, is the same child: its log says how far it came.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from wal_agent.agents.base import Agent
from wal_agent.answers import JsonAnswer, schema_name
from wal_agent.calls.quote import show_input
from wal_agent.conversation.checkpoint import Occasion, checkpoint_of, named_files, read_document
from wal_agent.conversation.json_schema import Schema, find_fault
from wal_agent.errors import UsageError
from wal_agent.records import TaskOf
from wal_agent.redact import redact
from wal_agent.text import shorten
from wal_agent.wal.state import RecentCall, State

MARK: Final = ".task-"
MAX_DEPTH: Final = 3
MAX_PROMPT: Final = 64 << 10  # bytes
MAX_SUMMARY: Final = 12_000  # characters of the answer that the caller gets
MAX_TRAIL: Final = 30
MAX_SOURCES: Final = 5  # calls, and files, that an insight names
MAX_OUTPUTS: Final = 12_000  # characters of the outputs, as JSON
ASK: Final = (
    "\n\nThe caller sees nothing of your work but your last message: end with what you found, with names of files, "
    "numbers and what you are not sure of."
)
FORM: Final = (
    ' That message is one JSON object and nothing else: {"summary": "...", "insights": ["..."], "outputs": ...}, where '
    "outputs is what this JSON Schema says: "
)
AGAIN: Final = "Your last message is not the JSON object that the task asks for: "

_FLAGS: Final = frozenset(("--fork", "--fresh", "--json"))
_NAME: Final = re.compile(r"[\w./@+-]*[\d./_][\w./@+-]*\w")


def depth_of(parent: str, task: TaskOf | None) -> int:
    """Return how many tasks a task of the job `parent` is inside, itself included. `task`: whose the parent is; the
    name says it too, unless it was cut."""
    return max(parent.count(MARK), task.depth if task else 0) + 1


def child_job(
    parent: str, agent: str, prompt: str, depth: int = 1, most: int = MAX_DEPTH, *, fork: bool = False
) -> str:
    """Return the name of the task's job, which is `depth` tasks deep, and may be `most`. UsageError: it may not, or the
    prompt is none."""
    if not prompt.strip():
        raise UsageError("The task is empty.", 'For example: wal-agent task "find out why the login test fails"')
    if len(prompt.encode("utf-8", "replace")) > MAX_PROMPT:
        raise UsageError(f"The task has more than {MAX_PROMPT >> 10} KiB.", "Put it into a file, and its place here.")
    if depth > most:
        raise UsageError(f"Tasks can be nested {most} deep, and {parent} is.", "Do this one yourself.")
    return task_job(parent, agent, prompt, fork=fork)


def task_job(parent: str, agent: str, prompt: str, *, fork: bool = False) -> str:
    """Return the name of the job of a task, deep or not. `fork`: of a copy of the caller's conversation."""
    words = (parent, agent, prompt, *(["fork"] if fork else []))
    digest = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{parent[: 100 - len(MARK) - len(digest)]}{MARK}{digest}"


class TaskWords(msgspec.Struct, frozen=True):
    """What the words of a `wal-agent task` say."""

    prompt: str
    agent: str = ""
    fork: bool = False
    job: str = ""
    bucket: str | None = None


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


def task_text(prompt: str, schema: str = "") -> str:
    """Return what the child is asked. `schema`: of its outputs, as JSON."""
    return f"{prompt}{ASK}{FORM}{schema}" if schema else prompt + ASK


def child_args(agent: Agent, caller: Sequence[str], asked: str, form: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the child's arguments. `caller`: those of the run that asks, where it is of the same agent: its model and
    its permissions are the child's too. Where they name a session, or hold no prompt, only the headless form. `form`:
    arguments that choose a session."""
    given = agent.prompt_from_args(caller) if caller else None
    own = (*agent.capabilities.headless, asked)
    if given and caller.count(given) == 1 and agent.session_from_args(caller) is None:
        own = tuple(asked if arg == given else arg for arg in caller)
    command = form and not form[0].startswith("-") and own[:1] == tuple(form[:1])
    return (*form, *(own[1:] if command else own))


def fork_form(agent: Agent, session: str, file: str) -> tuple[str, ...]:
    """Return the arguments that begin in a copy of the session, whose main file is `file`. UsageError: it has none."""
    form = agent.capabilities.forms.fork
    if isinstance(form, str):
        raise UsageError(
            f"The conversation cannot be forked: {form}.", "Leave --fork out, and say in the task all of it."
        )
    return tuple(word.format(session=session, file=file) for word in form)


class ChildAnswer(msgspec.Struct, frozen=True):
    """What a child's last message says. `summary`: all of it, where it is no form; `fault`: why it is none, or why its
    outputs are not what was asked for, "" where nothing is wrong."""

    summary: str
    insights: tuple[str, ...] = ()
    outputs: Any = None
    fault: str = ""


def read_said(answer: str, schema: Schema | None = None) -> ChildAnswer:
    """Read a child's last message: the form that FORM asks for, else words."""
    text = answer.strip()
    fenced = re.fullmatch(r"```(?:json)?\s*\n(.*)\n```", text, re.DOTALL)
    try:
        found = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return ChildAnswer(text, fault="it is no JSON." if schema is not None else "")
    insights = found.get("insights", []) if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("summary"), str) or not isinstance(insights, list):
        return ChildAnswer(text, fault="it has no summary, or insights that are no list." if schema is not None else "")
    words = tuple(each for each in insights if isinstance(each, str))
    outputs = found.get("outputs")
    if len(json.dumps(outputs)) > MAX_OUTPUTS:
        return ChildAnswer(found["summary"], words, fault=f"its outputs have more than {MAX_OUTPUTS} characters.")
    fault = find_fault(outputs, schema) if schema is not None else ""
    return ChildAnswer(found["summary"], words, None if fault else outputs, fault)


class Insight(msgspec.Struct, frozen=True):
    """One of the child's, and what the log knows behind it. `calls`: the newest whose input or result has a name or a
    number that the words have; `files`: those that these calls name."""

    text: str
    calls: tuple[int, ...] = ()
    files: tuple[str, ...] = ()

    def render(self) -> str:
        calls, files = ", ".join(f"#{n}" for n in self.calls), ", ".join(self.files)
        behind = "; ".join(filter(None, (calls, files)))
        return f"- {self.text}" + (f" [{behind}]" if behind else "")


def find_sources(text: str, calls: Sequence[RecentCall]) -> Insight:
    """Find which calls (oldest first) an insight rests on. Pure."""
    names = [name.encode() for name in dict.fromkeys(_NAME.findall(text)) if len(name) >= 3]
    found = [call for call in calls if any(name in call.input or name in call.output for name in names)]
    newest = found[-MAX_SOURCES:]
    files = dict.fromkeys(file for call in newest for file in named_files(call.input))
    return Insight(text, tuple(call.call for call in newest), tuple(files)[:MAX_SOURCES])


class CompactForm(JsonAnswer, frozen=True, tag=schema_name("task")):
    """`wal-agent task`: what is left of a task for its caller. `summary`, `insights`: the child's words; `outputs`: its
    own, where they are what the schema says, else the files that it changed; `derivation_trail`: its newest calls,
    oldest first; `trace`: the job that has all of it; `budget`: of calls, where it was used up, else 0; `fault`: why
    the outputs are not those of the schema."""

    summary: str
    insights: tuple[Insight, ...]
    outputs: Any
    derivation_trail: tuple[str, ...]
    trace: str
    budget: int = 0
    fault: str = ""

    def render(self) -> str:
        """As the caller's model reads it."""
        rows = [self.summary or "The task ended without a last message."]
        if self.insights:
            rows.append("\n".join(each.render() for each in self.insights))
        if self.fault:
            rows.append(f"Its last message is not what --schema asks for: {self.fault} This is what its log says.")
        if isinstance(self.outputs, tuple):
            rows += [f"Files changed: {', '.join(self.outputs)}"] if self.outputs else []
        elif self.outputs is not None:
            rows.append(f"Outputs: {json.dumps(self.outputs, ensure_ascii=False)}")
        if self.derivation_trail:
            rows.append("What it did, the newest last:\n" + "\n".join(f"- {line}" for line in self.derivation_trail))
        if self.budget:
            rows.append(f"Its budget of {self.budget} calls was used up, so this may not be all.")
        rows.append(f"All of it: wal-agent trace show {self.trace}")
        return "\n\n".join(rows)


def compact_form(job: str, agent: str, state: State, said: ChildAnswer, budget: int = 0) -> CompactForm:
    """Return it for a child's log. `said`: its last message; `budget`: as in CompactForm."""
    document = read_document(checkpoint_of(state, Occasion(job, agent, 0, "manual", state.time)))
    calls = [c for c in state.recent if c.how]
    shown = ((shorten(show_input(c.tool, c.input).splitlines()[0], 160), c.how) for c in calls[-MAX_TRAIL:])
    trail = tuple(f"{words}: {how}" for words, how in shown)
    text = redact(said.summary).strip()
    cut = text if len(text) <= MAX_SUMMARY else f"{text[:MAX_SUMMARY]}\n[...]"
    insights = tuple(find_sources(shorten(redact(each), 600), calls) for each in said.insights[:MAX_TRAIL])
    outputs = tuple(document.workspace.modified) if said.outputs is None else _redacted(said.outputs)
    return CompactForm(cut, insights, outputs, trail, job, budget, said.fault)


def _redacted(value: Any) -> Any:
    match value:
        case str():
            return redact(value)
        case list():
            return [_redacted(each) for each in value]
        case dict():
            return {redact(name): _redacted(each) for name, each in value.items()}
        case _:
            return value
