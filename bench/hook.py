"""What one hook costs: `python -m bench hook`.

As Gemini does it: `bash -c LINE` with the payload on stdin, answered by a real supervisor socket.

Locally: against `/bin/true` and against an empty hook (`bash -c true`), which is what any hook at all costs there. Over
stores, near and 30 ms away: against the limit (`/bin/true` and one raw conditional put on an open connection), and
against the way people do it without wal-agent: copy the session file (20 KB) up with the store's own CLI before each
tool and after it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Times, interleaved, scaled
from bench.owner import owned
from bench.store import NAMES, ROUND_TRIP, RawPut, Store, store
from wal_agent.agents import AGENTS
from wal_agent.agents.base import Allow, Decision, HookSetup, ToolEnded, ToolStarting
from wal_agent.agents.gemini.hooks import MARKER, hook_line
from wal_agent.agents.hook_line import native_client, python_client
from wal_agent.bucket import open_bucket
from wal_agent.supervise.ancestry import ancestry_of
from wal_agent.supervise.callers import Callers
from wal_agent.supervise.hook_server import HookRequest, HookServer
from wal_agent.supervise.machine import RunDir

ROUNDS = scaled(100, 2)
COPIES = scaled(10, 1)
SESSION = 20_000  # bytes


def payload(event: str, command: str) -> bytes:
    """What Gemini gives to a hook."""
    told = {"session_id": "s", "transcript_path": "/x", "cwd": "/x", "hook_event_name": event, "timestamp": "t"}
    call = {"tool_name": "run_shell_command", "tool_input": {"command": command}}
    response = {"tool_response": {"llmContent": "done"}} if event == "AfterTool" else {}
    return json.dumps({**told, **call, **response}).encode()


def spawn(argv: list[str], stdin: bytes, env: dict[str, str]) -> Callable[[], object]:
    return lambda: subprocess.run(argv, input=stdin, env=env, stdout=subprocess.DEVNULL, check=True)


def clients() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The native one and the portable one. SystemExit without the native one: then there is nothing to compare."""
    native = native_client()
    if native is None:
        raise SystemExit("bench hook: no native hook client; install a C compiler, then wal-agent again")
    return (str(native),), python_client()


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of a run, as its agent starts them."""

    run: RunDir

    def __call__(
        self, event: str, command: str, client: tuple[str, ...] | None = None, run: str = ""
    ) -> Callable[[], object]:
        line = hook_line(HookSetup(self.run.run, self.run.path, client or clients()[0]), event)
        env = {**os.environ, MARKER: run or self.run.run}
        return spawn(["bash", "-c", line], payload(event, command), env)

    def alone(self, command: str) -> Callable[[], object]:
        """The client without the shell around it."""
        words = [*clients()[0], str(self.run.socket), self.run.run, "gemini", "BeforeTool", "", "25"]
        return spawn(words, payload("BeforeTool", command), dict(os.environ))


@contextmanager
def hooks(url: str) -> Iterator[Hooks]:
    """The hooks of a run whose log is in the bucket at `url`."""
    agent = AGENTS["gemini"]
    with (
        tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder,
        owned(Path(folder), open_bucket(url)) as (_, gate, run),
    ):
        callers = Callers(agent.capabilities.hook_caller, agent.name, os.getppid())
        with callers.starting() as began:
            began(os.getpid())

        def handle(asked: HookRequest) -> bytes:
            # As in a run: who calls is looked up too. This process is the agent here, so the chain ends below it.
            chain = (*asked.caller.processes, *ancestry_of(os.getpid(), os.getppid()).processes)
            if callers.identify(chain, agent.name).origin != "agent":
                raise RuntimeError("a hook was taken for a stranger's")
            event = asked.event
            said = agent.parse(event, asked.payload)
            decision: Decision = Allow()
            if isinstance(said, ToolStarting):
                decision = gate.begin_call(said)
            elif isinstance(said, ToolEnded):
                gate.finish_call(said)
            if not isinstance(decision, Allow):
                raise RuntimeError("a call was denied")
            return agent.render(event, decision)

        server = HookServer(run.socket, run.run, handle, print)
        server.start()
        yield Hooks(run)
        server.close()


def local() -> None:
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder, hooks(f"file://{folder}") as hook:
        native, portable = clients()
        env = dict(os.environ)
        times = interleaved(
            {
                "/bin/true": spawn(["/bin/true"], b"", env),
                "bash -c true (any hook at all)": spawn(["bash", "-c", "true"], b"", env),
                "python3 -I -S -E -c pass": spawn([*portable[:4], "-c", "pass"], b"", env),
                "client alone, read-only call": hook.alone("ls"),
                "before-hook of another run (inert)": hook("BeforeTool", "make x", run="another"),
                "before-hook, read-only call": hook("BeforeTool", "ls"),
                "before-hook, changing call, file:// bucket": hook("BeforeTool", "make x", native),
                "  the same, Python client": hook("BeforeTool", "make x", portable),
            },
            ROUNDS,
        )
    for each in times:
        print(each.line(times[0]))
    print(f"  a changing call's hook costs {times[6].median - times[0].median:.1f} ms over /bin/true")


def over(at: Store) -> None:
    true, raw = spawn(["/bin/true"], b"", dict(os.environ)), RawPut(at)

    def least() -> None:
        true()
        raw(b"x" * 700)

    with hooks(at.url) as hook:
        limit, before, after = interleaved(
            {
                f"{at.name}: limit (/bin/true + one raw put)": least,
                f"{at.name}: before-hook, changing call": hook("BeforeTool", "make x"),
                f"{at.name}: after-hook": hook("AfterTool", "make x"),
            },
            ROUNDS,
        )
    for each in (limit, before, after):
        print(each.line(limit))
    extra = f"p50 {before.median - at.round_trip:.1f} ms, p95 {before.p95 - at.round_trip:.1f} ms"
    print(f"    before the tool: one round trip ({at.round_trip:.0f} ms) and {extra}")
    copied = copies(at)
    if copied is None:
        print("    the store's own CLI is not installed here: no comparison")
        return
    print(copied.line(limit))
    blocked, copying = before.median + after.median, 2 * copied.median
    print(f"    blocked in all {blocked:.1f} ms; two copies {copying:.0f} ms: {copying / blocked:.0f} x")


def copies(at: Store) -> Times | None:
    """The session file copied up by the store's own CLI, each time by a fresh process; None where it is missing."""
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
        (Path(folder) / "session.jsonl").write_bytes(os.urandom(SESSION))
        words = ["gcloud", "storage", "cp"] if at.server.scheme == "gs" else ["aws", "s3", "cp"]
        if shutil.which(words[0]) is None:
            return None
        env = {
            **os.environ,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": at.server.endpoint + "/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CORE_PROJECT": "test",
        }
        argv = [*words, f"{folder}/session.jsonl", f"{at.url}/session.jsonl"]

        def copy() -> object:
            return subprocess.run(argv, env=env, capture_output=True, check=True)

        [found] = interleaved({f"{at.name}: {' '.join(words)}": copy}, COPIES, warmup=1)
        return found


def main() -> None:
    local()
    for round_trip in (0.0, ROUND_TRIP):
        for scheme in NAMES:
            with store(scheme, round_trip) as at:
                over(at)


if __name__ == "__main__":
    main()
