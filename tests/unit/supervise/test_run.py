"""supervise/run.py: an agent that says nothing (I5), and one that asks to be started again."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faulty_bucket import faulty_environment
from tests.stub_agent import STUB
from tests.unit.cli.shelf import KEYS, Shelf, commit, intent
from tests.unit.supervise.crew import PATIENCE, ScriptAgent, short_folder
from wal_agent.agents import AGENTS
from wal_agent.agents.base import Agent, Cli, NewSession, ResumeSession
from wal_agent.events import LeftOpen
from wal_agent.records import Class, ExitClass, Intent, Payload
from wal_agent.supervise.run import next_session
from wal_agent.supervise.run_end import continues_by_itself, left_open, open_calls_line, unsaved_line
from wal_agent.wal.reader import replay
from wal_agent.wal.state import OpenCall

WS = Path("/w")


class Resumable(ScriptAgent):
    """Its session can be resumed when it has a folder."""

    def resumable(self, session: str, workspace: Path, env: dict[str, str]) -> bool:
        return self.folder(session).is_dir()


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    found = Resumable(tmp_path)
    found.write("s", "{}\n")
    return found.agent


def test_a_recovery_is_told_once_more_until_a_turn_began(agent: Agent) -> None:
    """I8: started again before its first turn, the agent has read nothing; with the user's own prompt in the place of
    the recovery's it would do the task a second time."""
    first = ResumeSession("s", "[wal-agent recovery] ...")
    assert next_session(agent, first, "s", False, WS, {}) == first
    assert next_session(agent, ResumeSession("new", "notice"), "new", False, WS, {}) == ResumeSession("new", "notice")
    assert next_session(agent, first, "s", True, WS, {}) == ResumeSession("s", "", asked=True)


def test_the_users_prompt_is_given_until_a_turn_began(agent: Agent) -> None:
    assert next_session(agent, NewSession("s"), "s", False, WS, {}) == ResumeSession("s", "")
    assert next_session(agent, NewSession("s"), "s", True, WS, {}) == ResumeSession("s", "", asked=True)
    assert next_session(agent, ResumeSession("s", "notice"), "other", False, WS, {}) != ResumeSession("s", "notice")
    fresh = next_session(agent, NewSession("none"), "none", False, WS, {})
    assert isinstance(fresh, NewSession) and uuid.UUID(fresh.id)


# ---- calls that are not settled


@pytest.mark.parametrize(
    ("cls", "until", "restarts", "expected"),
    [
        ("drained", 0.0, False, True),
        ("paused", 5.0, False, True),
        ("quota", 5.0, True, True),
        ("quota", 0.0, False, False),
        ("killed", 0.0, True, True),
        ("hung", 0.0, True, True),
        ("killed", 0.0, False, False),
        ("failed", 0.0, True, False),
        ("context", 0.0, True, False),
        ("completed", 0.0, True, False),
        ("interrupted", 0.0, True, False),
    ],
)
def test_nobody_is_woken_for_calls_that_the_next_start_looks_at(
    cls: ExitClass, until: float, restarts: bool, expected: bool
) -> None:
    """A drain on each spot notice must be no mail that says "nobody can tell": the recovery mostly can."""
    assert continues_by_itself(cls, until, restarts) is expected


def test_a_person_is_asked_of_what_may_have_changed_something() -> None:
    def call(number: int, cls: Class) -> OpenCall:
        word = Payload(size=1, data=f"x{number}".encode())
        return OpenCall(1, 1, Intent(time=1.0, call=number, tool=cls, input=word, cls=cls, rule="r", session="s"))

    kinds: tuple[Class, ...] = ("read_only", "idempotent", "mutation", "unknown")
    calls = [call(number, cls) for number, cls in enumerate(kinds)]
    assert left_open(calls) == LeftOpen(((2, "mutation", "open"), (3, "unknown", "open")))
    assert left_open(calls, {0, 3}) == LeftOpen(((2, "mutation", "open"), (3, "unknown", "open")), 1)
    assert left_open(calls[:2]) is None and left_open([]) is None

    follows = open_calls_line(calls, None, True, "--job shop")
    assert follows.startswith(
        "open: #0 read_only `x0`, #1 idempotent `x1`, #2 mutation `x2` and 1 more; the next start will check"
    )
    asked = open_calls_line(calls, left_open(calls), False, "--job shop")
    assert asked.startswith("open: #2 mutation `x2`, #3 unknown `x3`. The next start checks")
    told = open_calls_line(calls, left_open(calls), False, "--job shop", {3})
    assert told.startswith("open: #2 mutation `x2`, #3 unknown `x3`. Check")
    assert "wal-agent ack 2 --job shop --done" in asked
    assert open_calls_line(calls[:2], None, False, "--job shop").startswith(
        "open: #0 read_only `x0`, #1 idempotent `x1`; harmless to repeat"
    )


@pytest.mark.parametrize("name", sorted(name for name in AGENTS if AGENTS[name].capabilities.restart_codes))
def test_what_was_asked_is_left_out(name: str) -> None:
    made = AGENTS[name]
    cli = Cli(Path(f"/bin/{name}"), made.tested)
    for asked in (False, True):
        argv = made.command(cli, ["-i", "deploy it"], ResumeSession("S", "", asked), True, {}).argv
        assert ("deploy it" in argv) is not asked and ("--resume" in argv)


# ---- with a program that is not the agent


@pytest.fixture
def short_path() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def run(
    folder: Path, agent: str, body: str, *args: str, version: str = ":", words: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """`wal-agent run AGENT -- ARGS`, or `wal-agent WORDS`, with a shell script for the agent. `version`: what it does
    before it names its."""
    home, work, program = folder / "home", folder / "work", folder / agent
    for made in (home, work):
        made.mkdir(exist_ok=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && {{ {version}; echo {AGENTS[agent].tested}; exit; }}\n{body}\n'
    )
    program.chmod(0o755)
    env = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    env |= {
        "HOME": str(home),
        f"WAL_AGENT_{agent.upper()}": str(program),
        "WAL_AGENT_BUCKET": f"file://{folder}/bucket",
        "WAL_AGENT_RUNTIME_DIR": str(folder / "run"),
        **more,
    }
    argv = [sys.executable, "-m", "wal_agent", *(words.split() or ["run", agent, "--", *args])]
    return subprocess.run(
        argv, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


SILENCE = "ended and its hooks never ran, so what it did was not logged."


EARLY = "ended before its session began"


@pytest.mark.parametrize(
    ("code", "exits", "says"), [(0, 78, SILENCE), (41, 41, f"{EARLY} (message above)"), (130, 130, EARLY)]
)
def test_a_headless_agent_that_ends_without_a_word_is_no_success(
    short_path: Path, code: int, exits: int, says: str
) -> None:
    """I5: where our idea of the agent's folder is not the agent's, no hook fires and no session file is seen. An error
    of the agent's own (no login) and Ctrl-C are told as such, without a word on hooks."""
    done = run(short_path, "claude", f"echo worked; exit {code}", "-p", "do it")
    assert (done.returncode, done.stdout) == (exits, "worked\n"), done.stderr
    assert done.stderr.count(f"claude {says}") == 1
    assert ("wal-agent doctor claude" in done.stderr) is (SILENCE in done.stderr) is (code == 0)


def test_a_person_who_leaves_at_once_is_only_told(short_path: Path) -> None:
    """As from the dialog in which the agent asks whether it may trust the folder: its hooks are not to blame, and there
    is nothing to continue."""
    done = run(short_path, "gemini", "exit 0", "-i", "do it")
    assert done.returncode == 0 and done.stderr.count(EARLY) == 1, done.stderr
    assert "hooks" not in done.stderr and "--continue" not in done.stderr


def test_an_agent_without_hooks_has_none_to_miss(short_path: Path) -> None:
    done = run(short_path, "generic", "exit 0", "true")
    assert done.returncode == 0 and SILENCE not in done.stderr, done.stderr


def test_exit_code_199_starts_a_new_session_where_nothing_was_said(short_path: Path) -> None:
    """The second start is given the prompt too: no turn has begun, so nobody has heard it."""
    seen = short_path / "argv"
    body = f'echo "$*" >> {shlex.quote(str(seen))}; [ "$(wc -l < {shlex.quote(str(seen))})" = 1 ] && exit 199; exit 0'
    done = run(short_path, "gemini", body, "-i", "do it")
    assert done.returncode == 0, done.stderr
    first, second = seen.read_text().splitlines()
    assert "--session-id" in first and "--session-id" in second and first != second
    assert "do it" in first and "do it" in second


@pytest.mark.parametrize("dry", [True, False])
def test_a_log_without_a_start_of_the_agent_is_recovered(short_path: Path, dry: bool) -> None:
    """A cut log, or a hostile one: a call is in flight, and nothing says that an agent was ever started. The agent is
    asked about the call."""
    shelf = Shelf(short_path / "bucket")
    job = shelf.open()
    job.writer.append(intent(1, command="./charge.sh 42"))
    commit(job)
    job.lease.settle("released", "", budget=5.0)
    words = "recover --agent gemini --dry-run" if dry else ""
    done = run(short_path, "gemini", "exit 0", "-i", "do it", words=words, WAL_AGENT_JOB=KEYS.job)
    assert done.returncode == 0, done.stderr
    assert "./charge.sh 42" in (done.stdout if dry else done.stderr)
    told = replay(shelf.bucket, KEYS).state.recovery
    assert told is None if dry else told is not None and "./charge.sh 42" in told.told


@pytest.mark.parametrize(("unverified", "code"), [("fail", 79), ("allow", 0)])
def test_an_agent_that_ends_although_it_was_asked_to_look(short_path: Path, unverified: str, code: int) -> None:
    """I8: not every agent goes on for a hook. The turn was over by its own word, so a person is needed: no other try
    looks any better (74)."""
    shelf = Shelf(short_path / "bucket")
    job = shelf.open()
    job.writer.append(intent(1, command="./charge.sh 42"))
    commit(job)
    job.lease.settle("released", "", budget=5.0)
    more = {"WAL_AGENT_JOB": KEYS.job, "STUB_BEGAN": str(short_path / "began"), "WAL_AGENT_UNVERIFIED": unverified}
    done = run(short_path, "gemini", STUB, "-p", "do it", **more)
    assert done.returncode == code and "open: #1" in done.stderr, done.stderr
    assert replay(shelf.bucket, KEYS).state.turn == "completed"


SLOW = {
    "version": "waiting for the version of gemini (since 2 s; gives up after 30 s)",
    "key": "waiting for the key command (since 2 s; gives up after 30 s)",
    "bucket": "waiting for the bucket, for the job's lease (since 2 s)",
    "leftovers": "waiting for the processes of the agent to end (since 2 s; gives up after 35 s)",
}


@pytest.mark.parametrize("slow", SLOW)
def test_what_is_waited_for_is_said(short_path: Path, slow: str) -> None:
    """Each of these takes more than two seconds here; what is quick is not said."""
    body, faults, more = "exit 0", short_path / "faults.toml", dict[str, str]()
    if slow == "leftovers":
        body = "(trap '' TERM; while :; do sleep 0.1; done) & exit 0"
    if slow == "key":
        more["WAL_AGENT_ENCRYPTION_KEY_COMMAND"] = f"sleep 2.5; echo {'ab' * 32}"
    if slow == "bucket":
        faults.write_text('latency = [2.5, 2.5]\nops = ["get"]\nprefixes = ["gemini-work/lease"]\n')
        more |= {**faulty_environment(faults), "WAL_AGENT_JOB": "gemini-work"}
    done = run(short_path, "gemini", body, "-i", "do it", version="sleep 2.5" if slow == "version" else ":", **more)
    assert f"wal-agent: {SLOW[slow]}" in done.stderr.splitlines(), done.stderr


@pytest.mark.parametrize("why", ["The bucket is away.", "the bucket is away", "it is a.b..."])
def test_what_is_not_saved_is_one_sentence(why: str) -> None:
    line = unsaved_line(why)
    assert line.endswith(f": {why.rstrip('.')}.") and line.startswith("the last changes of the session are not saved")
