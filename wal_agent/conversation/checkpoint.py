"""Make, read and compare checkpoints: the job's state in a few kilobytes that any agent can read (docs/CHECKPOINTS.md).

A checkpoint is a pure view of the log's state at one record, so that it can be built again at any record that is kept.
What triggers one decides when, never what. Everything foreign in it is redacted and cut; the body is canonical JSON
(sorted keys, no blanks, UTF-8) with the SHA-256 of the rest of it.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from wal_agent import msgspec_compat
from wal_agent.answers import JsonAnswer, schema_name
from wal_agent.records import Checkpoint, PlanStep, StepState, TaskPhase, Trigger
from wal_agent.redact import redact_head
from wal_agent.text import duration, plural
from wal_agent.wal.plans import PLAN_TOOLS
from wal_agent.wal.state import MAX_CHECKPOINT, CheckpointAt, PlanCall, RecentCall, State

SCHEMA: Final = schema_name("checkpoint")
INPUT: Final = 200  # characters of a call's input, and
OUTPUT: Final = 500  # of its result
TITLE: Final = 160
NOTE: Final = 2000
MAX_STEPS: Final = 60  # of a plan, in a document
MAX_PLANNED: Final = 500  # steps of a plan that is taken at all
_NEXT: Final = 5  # open steps that a recovery prompt names
STEP: Final = 200  # characters of one
MAX_PATHS: Final = 30
GATHERED: Final = 120  # characters of what a read said
STALE: Final = 15 * 60.0  # seconds after which a recovery builds a newer one from the log
_PHASE_CALLS: Final = 8  # the newest calls whose mix is the phase
_PATHS: Final = ("file_path", "absolute_path", "filePath", "path", "notebook_path", "file")
_STATES: Final[Mapping[str, StepState]] = {"completed": "done", "done": "done", "in_progress": "active"}
_BOXES: Final[Mapping[str, StepState]] = {"[x]": "done", "[~]": "active", "[ ]": "open"}

_WRITERS: Final = frozenset(("touch", "mv", "cp", "rm", "tee", "truncate", "install", "ln", "mkdir", "rmdir"))


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """`ok`: None while the call is open. `time`: RFC 3339, UTC."""

    call: int
    tool: str
    time: str
    input: str
    output: str = ""
    duration_ms: int = 0
    ok: bool | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What the job works on. `progress` in percent."""

    task_id: str
    title: str
    phase: TaskPhase
    progress: int
    started_at: str


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """`gathered`: what was read or asked lately, and the beginning of what it said; `plan`: its steps from the one
    before the first open one, at most MAX_STEPS; `completed_steps`: those of them that are done, `done`: where they
    stand in it, from 0; `steps`, `steps_done`: how many the whole plan has; `draft`: the newest note."""

    gathered: list[str] = []
    plan: list[str] = []
    completed_steps: list[str] = []
    done: list[int] = []
    steps: int = 0
    steps_done: int = 0
    draft: str = ""
    tool_calls: list[ToolCall] = []


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """`driver`: how the newest came; `last_acked_seq`: the record of the newest that the agent has seen; `pending`: how
    many were given to it that it may not have seen. `stream`, `consumer`: "", since the log has none."""

    driver: str = ""
    stream: str = ""
    consumer: str = ""
    last_acked_seq: int = 0
    pending: int = 0


class WorkingTree(msgspec.Struct, frozen=True, kw_only=True):
    """`modified`: files that recent calls named as they changed something. `uncommitted`: changing calls whose changes
    the newest capture may lack. `commit`, `branch`: of the user's repository at the newest capture."""

    modified: list[str] = []
    uncommitted: int = 0
    commit: str = ""
    branch: str = ""


class Document(JsonAnswer, frozen=True, kw_only=True, tag=SCHEMA):
    """A checkpoint's body, and what `wal-agent checkpoint show` answers. `record`: the newest record that it has seen.
    `size`: bytes without `size` and `sha256`."""

    checkpoint_id: str
    job: str
    agent: str
    epoch: int
    sequence_number: int
    record: int
    time: str
    trigger: Trigger
    role: Literal["", "rewind_target"]
    active_task: Task | None
    context: Context
    messages: Messages
    workspace: WorkingTree
    ttl_days: int
    size: int
    sha256: str


class ShownCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`time`: as in RFC 3339; `size`: bytes of the document. `title`, `phase` and `progress` are its task's."""

    number: int
    checkpoint_id: str
    record: int
    epoch: int
    time: str
    trigger: str
    role: str
    size: int
    title: str
    phase: str
    progress: int


class CheckpointList(JsonAnswer, frozen=True):
    """`wal-agent checkpoint list`, the newest first."""

    checkpoints: tuple[ShownCheckpoint, ...]


class CheckpointDiff(JsonAnswer, frozen=True):
    """`wal-agent checkpoint diff`: both, as `wal-agent checkpoint show` has each."""

    checkpoints: tuple[Document, Document]


_document = msgspec_compat.of_values(Document)


class Occasion(msgspec.Struct, frozen=True):
    """What a checkpoint says beside the state. `record`: the segment that the state is of; `now`: since 1970; `task`:
    the job of the task that begins behind it, which makes it a place to return to."""

    job: str
    agent: str
    record: int
    trigger: Trigger
    now: float
    ttl_days: int = 7
    task: str = ""

    @property
    def role(self) -> Literal["", "rewind_target"]:
        return "rewind_target" if self.task else ""


# ---- make


def checkpoint_of(state: State, at: Occasion, id: str | None = None, number: int = 0) -> Checkpoint:
    """Return the checkpoint of `state`: the same input gives the same bytes, but for the id (made up where None).

    `number`: in the job, 0 for the one behind the newest that the log has acknowledged."""
    number = number or state.checkpointed + 1
    calls = [_tool_call(c) for c in state.recent]
    plan = plan_of(state)
    near = _steps_near(plan)
    document = {
        "schema": SCHEMA,
        "checkpoint_id": id or str(uuid.uuid4()),
        "job": at.job,
        "agent": at.agent,
        "epoch": state.epoch,
        "sequence_number": number,
        "record": at.record,
        "time": rfc3339(at.now),
        "trigger": at.trigger,
        "role": at.role,
        "active_task": _task(state, plan),
        "context": {
            "gathered": list(_gathered(state.recent)),
            "plan": [step.text for step in near],
            "completed_steps": [step.text for step in near if step.state == "done"],
            "done": [at for at, step in enumerate(near) if step.state == "done"],
            "steps": len(plan),
            "steps_done": sum(step.state == "done" for step in plan),
            "draft": redact_head(state.progress.note, NOTE) if state.progress else "",
            "tool_calls": calls,
        },
        "messages": _messages(state),
        "workspace": _workspace(state),
        "ttl_days": at.ttl_days,
    }
    body = _seal(document)
    while len(body) > MAX_CHECKPOINT:
        _shorten(document)
        body = _seal(document)
    return Checkpoint(time=at.now, number=number, trigger=at.trigger, body=body, role=at.role, task=at.task)


def _shorten(document: dict[str, Any]) -> None:
    """Take the least of use out: the oldest calls, then paths, then the plan's last steps."""
    context = document["context"]
    for field in ("tool_calls", "gathered"):
        if context[field]:
            del context[field][: max(1, len(context[field]) // 8)]
            return
    if document["workspace"]["modified"]:
        document["workspace"]["modified"] = []
    elif context["plan"]:
        context["plan"].pop()
        if context["done"][-1:] == [len(context["plan"])]:
            context["done"].pop()
            context["completed_steps"].pop()
    else:
        context["draft"] = ""


def _seal(document: Mapping[str, Any]) -> bytes:
    bare = {key: value for key, value in document.items() if key not in ("size", "sha256")}
    sized = {**bare, "size": len(canonical(bare))}
    return canonical({**sized, "sha256": hashlib.sha256(canonical(sized)).hexdigest()})


def canonical(value: Any) -> bytes:
    """JSON as the hash covers it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def rfc3339(time: float) -> str:
    """`time` (since 1970) in UTC; of one that no calendar has, the beginning of 1970."""
    try:
        return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return "1970-01-01T00:00:00.000Z"


def _tool_call(call: RecentCall) -> dict[str, Any]:
    return {
        "call": call.call,
        "tool": redact_head(call.tool, 80),
        "time": rfc3339(call.time),
        "input": redact_head(call.input.decode("utf-8", "replace"), INPUT),
        "output": redact_head(call.output.decode("utf-8", "replace"), OUTPUT),
        "duration_ms": call.duration_ms,
        "ok": None if call.how == "" else call.how == "done",
    }


def _task(state: State, plan: Sequence[PlanStep]) -> dict[str, Any] | None:
    said, turn = state.progress, state.prompt
    prompt = turn.prompt.data if turn is not None and turn.prompt is not None else None
    if prompt is None and said is None and not plan:
        return None
    began = turn.time if turn is not None else said.time if said is not None else state.time
    words = (prompt or b"")[: TITLE * 8].decode("utf-8", "replace").strip()
    first = next((line.strip() for line in words.splitlines() if line.strip()), "")
    done = sum(step.state == "done" for step in plan)
    progress = round(100 * done / len(plan)) if plan else 0
    if said is not None and said.progress >= 0:
        progress = min(100, said.progress)
    seed = f"{state.session}\n{began!r}\n".encode("utf-8", "replace") + (prompt or b"")
    return {
        "task_id": hashlib.sha256(seed).hexdigest()[:12],
        "title": redact_head(said.title if said is not None and said.title else first, TITLE),
        "phase": said.phase if said is not None and said.phase else task_phase(state),
        "progress": progress,
        "started_at": rfc3339(began),
    }


def task_phase(state: State) -> TaskPhase:
    """What the newest calls are about: a plan was just stated; something is being changed; what was changed is being
    looked at; else things are being looked up."""
    newest = state.recent[-_PHASE_CALLS:]
    if state.plan is not None and newest and state.plan.call >= newest[-2:][0].call:
        return "planning"
    if sum(c.cls != "read_only" for c in newest) * 3 > len(newest):
        return "executing"
    return "reviewing" if any(c.cls != "read_only" for c in state.recent) else "gathering"


def _gathered(calls: Sequence[RecentCall]) -> Iterator[str]:
    """What was read or asked, and the beginning of what it said; the newest last, each once."""
    from wal_agent.calls.call import ReadCall
    from wal_agent.calls.reading import shell_text

    found: dict[str, str] = {}
    for call in calls:
        if call.cls == "read_only" and call.how in ("done", "") and call.tool not in PLAN_TOOLS:
            command = shell_text(ReadCall("", call.input))
            what = _path(call.input) or _plain(command or "\n".join(_words(call.input)))
            if what:
                found.pop(what, None)
                found[what] = f"{what}: {said}" if (said := _first_line(command, call.output)) else what
    yield from list(found.values())[-MAX_PATHS:]


def _first_line(command: str, output: bytes) -> str:
    """What a result says first, redacted and cut. Of a long one the end is missing, so that it is no JSON any more."""
    from wal_agent.calls.checks import printed_lines

    lines = printed_lines(command, output) if command else iter(_words(output))
    return _plain(next(chain(lines, _words(output)), ""))[:GATHERED]


def _plain(text: str) -> str:
    return redact_head(" ".join(text.split()), INPUT)


def _words(data: bytes) -> list[str]:
    """The lines of an input or a result that are not blank, without the names of its fields."""
    text = data.decode("utf-8", "replace")
    with suppress(ValueError, RecursionError):
        given = json.loads(text)
        text = "\n".join(_texts(given)) if isinstance(given, dict | list) else str(given)
    return [line for line in text.splitlines() if line.strip()]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(part)


def _modified(calls: Sequence[RecentCall]) -> Iterator[str]:
    """Files that the calls which change something name, those of shell commands too; the newest last, each once."""
    found: dict[str, None] = {}
    for call in calls:
        if call.cls != "read_only" and call.how != "refused":
            for path in named_files(call.input):
                found.pop(path, None)
                found[path] = None
    yield from list(found)[-MAX_PATHS:]


def named_files(input: bytes) -> list[str]:
    """The file that a call's input names, else those that its shell command writes. Redacted."""
    path = _path(input)
    return [path] if path else list(_written(input))


def _written(input: bytes) -> Iterator[str]:
    """What a shell command's redirections and its plainest programs write, as far as its text says."""
    from wal_agent.calls.call import ReadCall
    from wal_agent.calls.reading import shell_commands

    for simple in shell_commands(ReadCall("", input)):
        words = [word.text or "" for word in simple.words]
        named = [r.to.text or "" for r in simple.redirects if ">" in r.op and r.to is not None]
        operands = [word for word in words[1:] if not word.startswith("-")]
        if words[:1] == ["sed"] and any(word.startswith(("-i", "--in-place")) for word in words):
            named += operands[1:]
        elif words and words[0] in _WRITERS:
            named += operands
        yield from (redact_head(name, INPUT) for name in named if name and not name.startswith(("/dev/", "&")))


def _path(input: bytes) -> str:
    with suppress(ValueError, RecursionError):
        given = json.loads(input)
        if isinstance(given, dict):
            named = next((given[key] for key in _PATHS if isinstance(given.get(key), str)), "")
            return redact_head(str(named), INPUT)
    return ""


def _messages(state: State) -> dict[str, Any]:
    """How far the agent has read: by the newest message's driver, in the order in which they were given."""
    newest = state.messages[-1] if state.messages else None
    seen = max((m.seq for m in state.messages if m.seen), default=0)
    pending = sum(not m.seen for m in state.messages)
    driver = newest.driver if newest else ""
    return msgspec.to_builtins(Messages(driver=driver, last_acked_seq=seen, pending=pending))  # type: ignore[no-any-return]


def _workspace(state: State) -> dict[str, Any]:
    repository = state.workspace.repository if state.workspace is not None else None
    return {
        "modified": list(_modified(state.recent)),
        "uncommitted": len(state.unheld) + state.unheld_more,
        "commit": redact_head(repository.head, 64) if repository is not None else "",
        "branch": redact_head(repository.branch, INPUT) if repository is not None else "",
    }


# ---- the plan, in each agent's own spelling


def _steps_near(plan: Sequence[PlanStep]) -> Sequence[PlanStep]:
    """The steps from the one before the first that is not done."""
    first = next((n for n, step in enumerate(plan) if step.state != "done"), len(plan))
    start = max(0, min(first - 1, len(plan) - MAX_STEPS))
    return plan[start : start + MAX_STEPS]


def marked_steps(context: Context) -> list[tuple[bool, str]]:
    """Each step of `plan`, and whether it is done. An older document names those that are by their words alone."""
    words = () if context.done else context.completed_steps
    return [(at in context.done or step in words, step) for at, step in enumerate(context.plan)]


def count_steps(context: Context) -> tuple[int, int]:
    """How many steps of the whole plan are done and open. An older document holds the whole plan."""
    if not context.steps:
        done, every = len(context.completed_steps), len(context.plan)
    else:
        done, every = context.steps_done, context.steps
    return done, every - done


def describe_counts(context: Context) -> str:
    """Such as "14 of 20 steps are done"; "" for no plan."""
    done, left = count_steps(context)
    return f"{done} of {done + left} steps are done" if done + left else ""


def plan_of(state: State) -> tuple[PlanStep, ...]:
    """The newest plan: of the agent's plan tool, or what was said with `wal-agent checkpoint --plan`."""
    if state.plan is not None:
        return parse_plan(state.plan)
    said = state.progress.plan if state.progress is not None else None
    return tuple(map(_clean_step, said or ()))


def parse_plan(call: PlanCall) -> tuple[PlanStep, ...]:
    """The steps that a plan tool's input states; none where it is in no known form. The forms are those of Claude
    Code, Gemini CLI, Qwen Code and OpenCode (`todos`), Codex (`plan`), and Copilot (Markdown in `todos`)."""
    with suppress(ValueError, RecursionError):
        given = json.loads(call.input)
        rows = given.get("todos", given.get("plan")) if isinstance(given, dict) else None
        if isinstance(rows, str):
            return parse_markdown_plan(rows)
        if isinstance(rows, list):
            steps = (_step(row) for row in rows[:MAX_PLANNED] if isinstance(row, dict))
            return tuple(step for step in steps if step is not None)
    return ()


def _step(row: Mapping[str, Any]) -> PlanStep | None:
    text = next((row[key] for key in ("content", "description", "step", "title") if isinstance(row.get(key), str)), "")
    if not text or row.get("status") == "cancelled":
        return None
    return _clean_step(PlanStep(text=text, state=_STATES.get(str(row.get("status")), "open")))


def parse_markdown_plan(text: str) -> tuple[PlanStep, ...]:
    """The items of a Markdown list: `- [x]` is done, `- [~]` active; other lines are steps as they are."""
    steps = []
    for line in text.splitlines():
        words = line.strip().lstrip("-*+").strip()
        box, rest = words[:3].lower(), words[3:].strip()
        if (state := _BOXES.get(box)) is not None:
            steps.append(PlanStep(text=rest, state=state))
        elif words and not words.startswith("#"):
            steps.append(PlanStep(text=words))
    return tuple(_clean_step(step) for step in steps if step.text)


def _clean_step(step: PlanStep) -> PlanStep:
    return PlanStep(text=redact_head(" ".join(step.text[: STEP * 4].split()), STEP), state=step.state)


# ---- read


def read_document(record: Checkpoint) -> Document:
    """Parse a checkpoint's body and check its hash. ValueError: why it cannot be used."""
    if len(record.body) > MAX_CHECKPOINT:
        raise ValueError(f"it has {len(record.body)} bytes, more than {MAX_CHECKPOINT}")
    try:
        given = json.loads(record.body)
        said = given.pop("sha256") if isinstance(given, dict) else None
    except (ValueError, KeyError, RecursionError) as error:
        raise ValueError("it is no checkpoint") from error
    if not isinstance(said, str) or hashlib.sha256(canonical(given)).hexdigest() != said:
        raise ValueError("its SHA-256 does not match")
    try:
        return _document({**given, "sha256": said})
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f"it is no checkpoint ({error})") from error


def iter_documents(state: State) -> Iterator[tuple[CheckpointAt, Document | str]]:
    """The kept checkpoints, newest first; in the place of one that cannot be used a sentence that says why."""
    for at in reversed(state.checkpoints):
        try:
            yield at, read_document(at.record)
        except ValueError as error:
            yield at, f"checkpoint {at.record.number} (record {at.seq}) is skipped: {error}."


class Usable(msgspec.Struct, frozen=True):
    """The newest checkpoint that can be used, and a sentence on each newer one that cannot."""

    at: CheckpointAt | None
    document: Document | None
    problems: tuple[str, ...] = ()


def newest_usable(state: State) -> Usable:
    """Skip what is damaged, with a sentence each."""
    problems: list[str] = []
    for at, found in iter_documents(state):
        if not isinstance(found, str):
            return Usable(at, found, tuple(problems))
        problems.append(found)
    return Usable(None, None, tuple(problems))


def list_usable(state: State, now: float) -> tuple[list[tuple[CheckpointAt, Document]], list[str]]:
    """The checkpoints whose days are not over at `now`, and the newest in any case, newest first; a sentence on each
    that cannot be used."""
    listed: list[tuple[CheckpointAt, Document]] = []
    problems: list[str] = []
    for at, found in iter_documents(state):
        if isinstance(found, str):
            problems.append(found)
        elif not listed or now - at.record.time <= found.ttl_days * 86_400:
            listed.append((at, found))
    return listed, problems


# ---- at a recovery


class WorkSoFar(msgspec.Struct, frozen=True):
    """What a recovery prompt says of the task, a line each, and where that comes from. `number`: of the newest
    checkpoint, 0 for none; `age`: seconds from it to the old run's last sign of life."""

    lines: tuple[str, ...] = ()
    source: str = ""
    number: int = 0
    age: float = 0.0
    rebuilt: bool = False
    problems: tuple[str, ...] = ()


NO_WORK: Final = WorkSoFar()


def work_so_far(state: State, job: str, agent: str) -> WorkSoFar:
    """The newest checkpoint that can be used, or one that is built from the log where that one is older than STALE."""
    found = newest_usable(state)
    document, age = found.document, 0.0
    if found.at is not None:
        age = max(0.0, state.time - found.at.record.time)
    rebuilt = document is None or age > STALE
    if rebuilt:
        made = checkpoint_of(state, Occasion(job, agent, found.at.seq if found.at else 0, "periodic", state.time))
        document = read_document(made)
    assert document is not None
    lines = tuple(_work_lines(document))
    number = found.at.record.number if found.at is not None else 0
    source = f"checkpoint {number}, made {duration(age)} before the end"
    if rebuilt:
        source = "the log" if found.at is None else f"the log (the newest checkpoint is {duration(age)} older)"
    return WorkSoFar(lines, source, number, age, rebuilt, found.problems) if lines else replace(NO_WORK, number=number)


def _work_lines(document: Document) -> Iterator[str]:
    """Only what somebody said of the task: the conversation has its words, and the calls are listed elsewhere."""
    task, context = document.active_task, document.context
    if task is None or not (context.plan or context.draft or task.progress):
        return
    if context.draft:
        yield f"Note: {' '.join(context.draft.split())}"
    yield f"Task: {task.title} ({task.phase}, {task.progress} %)"
    if counted := describe_counts(context):
        yield f"Plan: {counted}."
    marked = marked_steps(context)
    yield from [f"[x] {step}" for done, step in marked if done][-1:]
    opened = [step for done, step in marked if not done]
    yield from [f"[ ] {step}" for step in opened[:_NEXT]]
    if (more := count_steps(context)[1] - len(opened[:_NEXT])) > 0:
        yield f"and {plural(more, 'more open step')}: see `wal-agent checkpoint show`"


def seconds_of(text: str) -> float:
    """The time of `rfc3339`, in seconds since 1970; 0 of what is no time."""
    with suppress(ValueError, OverflowError):
        return max(0.0, datetime.fromisoformat(text).timestamp())
    return 0.0


# ---- compare


def compare(a: Document, b: Document) -> list[str]:
    """The lines of a unified diff of two checkpoints, without what differs anyway (id, time, size, hash)."""
    import difflib

    return list(
        difflib.unified_diff(
            _lines(a), _lines(b), f"checkpoint {a.sequence_number}", f"checkpoint {b.sequence_number}", lineterm="", n=1
        )
    )


def _lines(document: Document) -> list[str]:
    shown = msgspec.to_builtins(document)
    for field in ("checkpoint_id", "time", "size", "sha256", "sequence_number", "record"):
        shown.pop(field)
    return json.dumps(shown, indent=2, sort_keys=True, ensure_ascii=False).splitlines()
