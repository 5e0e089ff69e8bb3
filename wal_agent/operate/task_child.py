"""Run the job of a task, for `wal-agent task`, and read its result from its log (docs/TASKS.md)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from wal_agent.agents import AGENTS
from wal_agent.agents.base import Agent
from wal_agent.agents.session_files import find_main
from wal_agent.bucket.base import Bucket
from wal_agent.clock import SystemClock
from wal_agent.conversation.checkpoint import Occasion, checkpoint_of
from wal_agent.conversation.json_schema import Schema, read_schema
from wal_agent.conversation.rewrite import MAX_SUMMARIZED, CompactionPolicy, aged, ask_for_summaries, summary_schema
from wal_agent.conversation.tasks import (
    AGAIN,
    ChildAnswer,
    CompactForm,
    child_args,
    child_job,
    compact_form,
    depth_of,
    fork_form,
    read_said,
    task_text,
)
from wal_agent.conversation.transcript import read_lines, words_of
from wal_agent.errors import UsageError
from wal_agent.failpoints import failpoint
from wal_agent.operate.at_rest import JobAccess, act_at_rest
from wal_agent.operate.rewrite import read_units
from wal_agent.paths import PROGRAM
from wal_agent.records import TaskOf
from wal_agent.supervise import control
from wal_agent.supervise.control import ask_own_run
from wal_agent.supervise.rewrite import Home, check_at_rest
from wal_agent.supervise.rewrite import local_file as rewritten_file
from wal_agent.supervise.tasks import VARIABLE, TaskStart, spent_by
from wal_agent.text import say, shorten
from wal_agent.wal.blobs import Blobs, write_file
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import replay
from wal_agent.wal.state import State
from wal_agent.wal.store import JobStore

ENDING: Final = 30.0  # seconds for a child that is over its budget to save and stop; then it is killed
MAX_SAID: Final = 1 << 20  # bytes of its stderr that are read
SUMMARIZING: Final = 900.0  # seconds
SUMMARY_CALLS: Final = 4  # that the child may make


class TaskJob(msgspec.Struct, frozen=True):
    """Where the job of a task is. `place`: variables that name its bucket and key."""

    bucket: Bucket
    job: str
    agent: str
    place: Mapping[str, str]

    def state(self) -> State:
        """As its log says now."""
        return replay(self.bucket, Keys(self.job)).state


def run_child(at: TaskJob, args: tuple[str, ...], start: TaskStart, seconds: float, *, once: bool) -> tuple[int, str]:
    """Run the child, at most for `seconds`; its exit code, and what it said on stderr. `once`:
    unless it is complete."""
    # The caller saves the folder that both work in.
    own = {"WAL_AGENT_WORKSPACE": "off", VARIABLE: msgspec.json.encode(start).decode()}
    words = [*PROGRAM, "run", at.agent, "--job", at.job]
    failpoint("task.before_child")
    with tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            [*words, *(["--once"] if once else []), "--", *args],
            env={**os.environ, **at.place, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # its last message is in its session
            stderr=err,
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so an agent ends a tool that takes too long
        try:
            code = child.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            say(f"the task is over its budget of {seconds:.0f} s, and is ended.")
            code = _end(child)
        except BaseException:
            _end(child)
            raise
        failpoint("task.after_child")
        err.seek(0)
        return code, err.read(MAX_SAID).decode("utf-8", "replace")


class Question(msgspec.Struct, frozen=True):
    """What a child is asked. `caller`: arguments of the run that asks, which are the child's too; `form`: arguments
    that choose a session; `wanted`: what its outputs must be."""

    text: str
    caller: tuple[str, ...] = ()
    form: tuple[str, ...] = ()
    wanted: Schema | None = None


def ask_child(child: TaskJob, asked: Question, start: TaskStart, seconds: float) -> tuple[int, str, ChildAnswer]:
    """Run the child to its answer, and once more where that is not what is wanted; its exit code, what it said on
    stderr, and the answer. `seconds`: for both."""
    own, ends = AGENTS[child.agent], time.monotonic() + seconds
    args = child_args(own, asked.caller, asked.text, asked.form)
    code, said = run_child(child, args, start, seconds, once=True)
    result = read_said(last_answer(child) if not code else "", asked.wanted)
    if not code and asked.wanted is not None and result.fault and not asked_again(now := child.state()):
        form = tuple(word.format(session=now.session) for word in own.capabilities.forms.resume)
        again = child_args(own, asked.caller, f"{AGAIN}{result.fault} Answer with that object alone.", form)
        code, said = run_child(child, again, start, ends - time.monotonic(), once=False)
        result = read_said(last_answer(child) if not code else "", asked.wanted)
    return code, said, result


def _end(process: subprocess.Popen[bytes]) -> int:
    """End it in good order: what it did is saved, and the same task carries on from there. Never 0."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        return process.wait(ENDING) or 1
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait() or 1


def begin_in_run(env: Mapping[str, str], caller: str, job: str) -> dict[str, Any] | None:
    """Have the run whose tool this is begin its task `job`; its answer. None: there is none that has the job `caller`.
    UsageError: it refuses."""
    said = ask_own_run(env, control.TASK, {"ask": "begin", "job": job, "caller": caller})
    return control.unless_refused(said) if said is None or said.get("caller") != "" else None


def start_of(caller: str, said: Mapping[str, Any], depth: int, budget: int) -> TaskStart:
    """Return what the task's run is given. `said`: the answer of the caller's run, or what was done in its place."""
    of = TaskOf(job=caller, epoch=int(said.get("epoch", 0)), checkpoint=int(said["checkpoint"]), depth=depth)
    return TaskStart(of=of, budget=budget, run=str(said.get("run", "")), counted=bool(said.get("counted")))


def begin_at_rest(at: JobAccess, home: Home, state: State, job: str) -> dict[str, Any]:
    """Do the same for a person: in the run of the job on this machine, else in the job at rest. LeaseHeld: it runs
    elsewhere."""
    if (known := state.tasks.get(job)) is not None:
        return {"checkpoint": known.checkpoint}
    doc, question = at.lease().doc, {"ask": "begin", "job": job, "caller": at.keys.job}
    which = (at.bucket.url, at.keys.job)
    held = doc.state == "held"
    said = control.ask_run(doc.host, doc.run, which, control.TASK, question) if held else None
    if (answer := control.unless_refused(said)) is not None:
        return {"checkpoint": answer["checkpoint"]}  # no run bounds what a person asked for
    return begin_unowned(at, home, job)


def begin_unowned(
    at: JobAccess, home: Home, job: str, check: Callable[[State], None] = lambda _: None
) -> dict[str, Any]:
    """Have the log of a job that has no run name its task `job`, and clear what a killed run left beside the session,
    for which the task's own agent could delete the session. LeaseHeld: it has a run; what `check` raises."""

    def act(opened: OpenedJob) -> dict[str, Any]:
        acked, time = opened.writer.acked, SystemClock().now()
        agent = acked.state.openings[-1].opening.agent
        made = checkpoint_of(acked.state, Occasion(at.keys.job, agent, acked.seq, "manual", time, task=job))
        opened.writer.append(made)
        if tidy := home.agent.capabilities.tidy:
            tidy(acked.state.session, home.workspace, home.env)
        return {"checkpoint": made.number}

    return act_at_rest(at, act, check)


def read_result(at: TaskJob, said: ChildAnswer, budget: int) -> CompactForm:
    """The compact form of a task that has ended. `said`: its last message; `budget`: calls, 0 for no limit."""
    state = at.state()
    over = budget > 0 and spent_by(at.bucket, state) > budget
    return compact_form(at.job, at.agent, state, said, budget if over else 0)


def asked_again(state: State) -> bool:
    """Whether the child was asked for its form a second time."""
    prompt = state.prompt.prompt if state.prompt else None
    return prompt is not None and (prompt.data or b"").startswith(AGAIN.encode())


def local_file(agent: Agent, session: str, workspace: Path, env: Mapping[str, str]) -> Path:
    """The main file of a session on this machine. UsageError: there is none."""
    if (main := find_main(agent, session, workspace, env)) is not None:
        return main.path
    raise UsageError("The caller's conversation is not on this machine, so it is not forked.", "Leave --fork out.")


def last_answer(at: TaskJob) -> str:
    """The last message of the child's conversation, "" where there is none."""
    state = at.state()
    file = state.files.get(AGENTS[at.agent].main_file)
    if file is None:
        return ""
    with tempfile.TemporaryDirectory(prefix="wal-agent-task-") as folder:
        path = Path(folder) / "session"
        write_file(Blobs(JobStore(at.bucket, Keys(at.job))), file, path)
        if (read := AGENTS[at.agent].capabilities.last_answer) is not None:
            return read(path.read_bytes())
        with path.open("rb") as lines:
            said = [(line.at, line.end) for line in read_lines(lines) if line.role == "assistant"]
            for at_byte, end in reversed(said):
                lines.seek(at_byte)
                if words := words_of(lines.read(end - at_byte)).strip():
                    return words
    return ""


# ---- summaries of old turns, by the agent itself


class Summaries(msgspec.Struct, frozen=True):
    """The agent's words on turns, by the key of each one's first message. `fault`: why there are none, in a sentence,
    "" where nothing is wrong; `job`: the child's."""

    words: Mapping[str, str]
    job: str
    fault: str = ""


def summarize(
    at: TaskJob, access: JobAccess, home: Home, policy: CompactionPolicy, caller: tuple[str, ...]
) -> Summaries | None:
    """Have the agent of the job, which rests, write the summaries of the turns that the policy compacts, in a fork;
    None where there are none. The same turns are the same child, so its answer is kept. UsageError: it cannot;
    LeaseHeld, PersonNeeded, ConfigError: the job does not rest. `at`: the job; `caller`: its arguments."""
    agent, keys = home.agent, access.keys
    if isinstance(agent.capabilities.forms.fork, str):
        raise UsageError(
            f"{agent.name} cannot write the summaries: {agent.capabilities.forms.fork}.",
            "Leave --by-agent out: the compact form is then made of the conversation's lines.",
        )
    state, blobs = at.state(), Blobs(JobStore(at.bucket, keys))
    units = read_units(state, blobs, home)
    turns = [t for t in aged(units, policy, SystemClock().now()) if t.prompt][-MAX_SUMMARIZED:]
    if not turns:
        return None
    file = rewritten_file(state, home)
    if file is None:
        raise UsageError(
            "The conversation is not on this machine, so the agent cannot read it.",
            "Leave --by-agent out, or type it on the machine that ran the job last.",
        )
    firsts = [units[turn.first].key for turn in turns]
    depth = depth_of(keys.job, state.task)
    job = child_job(keys.job, agent.name, f"summaries of {' '.join(firsts)}", depth, fork=True)
    if (known := state.tasks.get(job)) is not None:
        begun: dict[str, Any] = {"checkpoint": known.checkpoint}
    else:
        begun = begin_unowned(access, home, job, lambda now: check_at_rest(now, home))
    wanted = summary_schema(len(turns))
    text = task_text(ask_for_summaries(turns), json.dumps(wanted))
    asked = Question(text, caller, fork_form(agent, state.session, str(file)), read_schema(json.dumps(wanted).encode()))
    child = TaskJob(at.bucket, job, at.agent, at.place)
    code, said, found = ask_child(child, asked, start_of(keys.job, begun, depth, SUMMARY_CALLS), SUMMARIZING)
    if code:
        last = (said.strip().splitlines() or [""])[-1]
        return Summaries({}, job, f"the agent ended with {code} ({shorten(last, 200)})")
    if found.fault or not isinstance(found.outputs, dict):
        return Summaries({}, job, found.fault or "it has no outputs.")
    return Summaries(dict(zip(firsts, found.outputs["turns"], strict=True)), job)
