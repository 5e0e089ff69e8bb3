"""What the tests of the supervisor share: polling with a deadline, an agent of plain JSON lines, a gate on a job."""

from __future__ import annotations

import base64
import json
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec.structs import replace

from tests.unit.wal.world import World
from wal_agent.agents import AGENTS
from wal_agent.agents.base import Agent, Capabilities, Compacted, Deny, SeenCall, SessionFile, ToolEnded, ToolStarting
from wal_agent.calls.rules.table import Rules, load_rules
from wal_agent.clock import Clock
from wal_agent.config import Settings
from wal_agent.errors import WalAgentError
from wal_agent.events import Emit, Event
from wal_agent.messages import open_values
from wal_agent.records import AnyRecord, Cut, End, Intent, Opening, RunsOn
from wal_agent.supervise.compaction import CompactionGuard, Surroundings
from wal_agent.supervise.context import Action, RunContext
from wal_agent.supervise.gate import Gate
from wal_agent.supervise.options import Screen
from wal_agent.supervise.steps import StepKeeper
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.reader import iter_segments, replay
from wal_agent.wal.state import State

if TYPE_CHECKING:
    from wal_agent.messages.values import KvValues

T = TypeVar("T")
PATIENCE = 120.0  # seconds after which a thing that should have happened counts as not happening


def until(what: Callable[[], T], why: str) -> T:
    """Poll until `what()` is truthy; give it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"waited {PATIENCE:.0f} s in vain: {why}")


@contextmanager
def short_folder() -> Iterator[Path]:
    """A private folder whose path is short enough for a socket, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="wa-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class ScriptAgent:
    """Its session is one folder: `main.jsonl` with a call a line, and any other files."""

    name = "script"
    main_file = "main.jsonl"
    capabilities = Capabilities()

    def __init__(self, home: Path) -> None:
        self.home = home

    def folder(self, session: str) -> Path:
        return self.home / session

    def session_files(self, session: str, workspace: Path, env: Mapping[str, str]) -> list[SessionFile]:
        folder = self.folder(session)
        paths = sorted(folder.iterdir(), key=lambda p: (p.name != self.main_file, p)) if folder.is_dir() else []
        return [SessionFile(p.name, p) for p in paths]

    def restore_path(self, name: str, session: str, workspace: Path, env: Mapping[str, str]) -> Path:
        return self.folder(session) / name

    def seen_calls(self, appended: bytes) -> list[SeenCall]:
        found = [json.loads(line) for line in appended.splitlines() if line.startswith(b"{")]
        return [
            SeenCall(c["tool"], json.dumps(c["input"]).encode(), c["status"], c.get("id", ""), c.get("call_id", ""))
            for c in found
            if "tool" in c
        ]

    def tell(self, session: str, tool: str, status: str, **input: Any) -> None:
        """Write a call's outcome into the session file."""
        self.write(session, json.dumps({"tool": tool, "input": input, "status": status}) + "\n")

    def write(self, session: str, text: str) -> None:
        self.folder(session).mkdir(parents=True, exist_ok=True)
        with (self.folder(session) / self.main_file).open("a") as file:
            file.write(text)

    @property
    def agent(self) -> Agent:
        return cast(Agent, self)


def run_context(
    job: OpenedJob,
    clock: Clock,
    workspace: Path = Path("/w"),
    agent: Agent = AGENTS["gemini"],
    emit: Emit = lambda _: None,
    **settings: Any,
) -> RunContext:
    """What a run of `job` works with; `settings`: those that are not the default."""
    return RunContext(job, agent, Settings("file:///bucket", "job", **settings), workspace, {}, clock, emit)


SILENT = Screen(lambda _: None, lambda _: None)


class Watcher:
    """A `Supervisor` that only writes down what it is asked for, in order."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.appended: list[bytes] = []
        self.refusal: Deny | None = None
        self.failures: list[BaseException] = []
        self.stopped: list[WalAgentError] = []

    def stop(self, error: WalAgentError) -> None:
        found = re.search(r" ran (.+), which no hook announced", error.what)
        self.stopped.append(error)
        self.did.append(f"stop: {error.what}" if found is None else f"unseen {found[1]}")

    @property
    def unseen(self) -> list[str]:
        """The tools of calls that no hook announced."""
        return [did.removeprefix("unseen ") for did in self.did if did.startswith("unseen ")]

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def request_save(self) -> None:
        self.did.append("save")

    def compacted(self, found: Compacted, session: str) -> None:
        self.did.append(f"compacted {session} {found.key}")

    def turn_stopped(self) -> None: ...

    def know_compactions(self, keys: set[str]) -> None:
        self.did.append(f"known {sorted(keys)}")

    def mark_boundary(self, call: int) -> None:
        self.did.append(f"boundary {call}")

    def switch_session(self, session: str) -> None:
        self.did.append(f"switch {session}")

    def may_begin_turn(self, session: str) -> Deny | None:
        self.did.append(f"turn of {session}")
        return self.refusal

    def on_phase(self, actions: Sequence[Action]) -> None:
        return

    def answer_command(self, event: str, question: dict[str, Any], by_agent: bool) -> dict[str, Any]:
        raise LookupError(event)

    def check_handshake(self, appended: bytes) -> None:
        self.appended.append(appended)


def quiet_guard(context: RunContext, gate: Gate, did: list[str]) -> CompactionGuard:
    """A guard of a run that saves at once and mends nothing."""

    def save(budget: float) -> bool:
        did.append("saved")
        return True

    return CompactionGuard(context, gate, Surroundings(save, did.append, lambda: False, lambda: 400))


class Post:
    """A gate on a job of its own in memory. Nothing is committed but by `commit` or inside `committing`."""

    def __init__(self, workspace: Path, deadline: float = 20.0, sync: bool = False, rules: Rules | None = None) -> None:
        self.world = World()
        self.job: OpenedJob = self.world.open("a")
        self.fresh = True  # what the last check (R7) says
        self.listeners: list[Emit] = []
        self.context = run_context(
            self.job,
            self.world.clock,
            workspace,
            emit=self._emit,
            append_deadline=deadline,
            durability="sync" if sync else "intent",
        )
        self.gate = Gate(self.context, lambda: rules or load_rules(), lambda: self.fresh)

    def _emit(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    def commit(self) -> None:
        while self.job.writer.commit_once() == "acked":
            pass

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Meanwhile the log is written in a thread, as in a run."""
        stop = threading.Event()
        thread = threading.Thread(target=self.job.writer.run, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            self.job.writer._work.set()
            thread.join(PATIENCE)

    def begin(self, tool: str = "write_file", **input: Any) -> int:
        """A call that was allowed; its number."""
        with self.committing():
            decision = self.gate.begin_call(starting(tool, **input))
        assert not hasattr(decision, "reason"), decision
        assert self.gate.last is not None
        return self.gate.last.call

    @property
    def state(self) -> State:
        """What the bucket says."""
        return replay(self.world.inner, self.job.keys, parallel=1).state

    def log(self) -> list[AnyRecord]:
        """Every record in the bucket, in order."""
        return [r for _, segment in iter_segments(self.world.inner, self.job.keys) for r in segment.records]

    def intents(self) -> list[Intent]:
        return [r for r in self.log() if isinstance(r, Intent)]

    def ends(self) -> list[End]:
        return [r for r in self.log() if isinstance(r, End)]

    def open_words(self) -> list[tuple[int, str]]:
        """What the log says of calls that the agent is done with and that are open all the same."""
        return [(r.call, "cut" if isinstance(r, Cut) else "runs_on") for r in self.log() if isinstance(r, Cut | RunsOn)]


def starting(tool: str, **input: Any) -> ToolStarting:
    return ToolStarting("s", tool, json.dumps(input).encode())


def ended(tool: str, failed: bool = False, **input: Any) -> ToolEnded:
    return ToolEnded("s", tool, json.dumps(input).encode(), b'{"ok":1}', failed)


class Desk:
    """A keeper on a job in memory, whose log is written in a thread while it is asked. `server`: where values are, ""
    for the log."""

    def __init__(self, folder: Path, server: str = "") -> None:
        self.post = Post(folder)
        self.settings = Settings("memory://", "shop", messages=server, state="nats" if server else "log")
        self.values: list[KvValues] = []
        self.clock = self.post.world.clock
        self.refusal, self.fresh = "", True
        self.keeper = self.on(self.post.job)

    def on(self, job: OpenedJob) -> StepKeeper:
        context = run_context(job, self.clock)
        values = open_values(self.settings, {}, self.post.world.bucket, job.keys, run=job.writer.state)
        if values is not None:
            self.values.append(values)
            context = replace(context, values=values)
        return StepKeeper(context, Path("/nowhere/hook.sock"), lambda: self.fresh, lambda: self.refusal)

    def close(self) -> None:
        for values in self.values:
            values.close()

    def next_run(self) -> None:
        """Another machine takes the job; from now on its keeper is asked."""
        self.post.job = self.post.world.take_over("b")
        self.keeper = self.on(self.post.job)

    def ask(self, do: str, step: str = "a", by_agent: bool = True, **more: Any) -> dict[str, Any]:
        with self.post.committing():
            return self.keeper.answer({"do": do, "step": step, **more}, by_agent)

    def put(self, data: bytes, step: str = "a", **more: Any) -> dict[str, Any]:
        return self.ask("put", step, data=base64.b64encode(data).decode(), **more)

    def entry(self, step: str = "a") -> dict[str, Any] | None:
        found: list[dict[str, Any]] = self.ask("get", step)["entries"]
        return found[0] if found else None

    def value(self, step: str = "a") -> bytes:
        data = b""
        while True:
            answer = self.ask("read", step, offset=len(data))
            data += base64.b64decode(answer["data"])
            if len(data) == answer["size"]:
                return data

    def begin(self, *command: str, step: str = "a", **more: Any) -> dict[str, Any]:
        return self.ask("begin", step, command=command or ("cmd",), **more)

    def kinds(self) -> list[str]:
        return [type(r).__name__ for r in self.post.log() if not isinstance(r, Opening)]
