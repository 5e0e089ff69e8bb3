"""`wal-agent task PROMPT`: run a bounded investigation in a job of its own, and print only its result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wal_agent.cli.options import AsJson, BucketUrl, JobName, KeyCommand, KeyFile, complete_agent
from wal_agent.text import answer, answer_json, printable, say

if TYPE_CHECKING:
    from wal_agent.cli.options import JobContext
    from wal_agent.recovery.tasks import CompactForm

ENDING = 30.0  # seconds for a child that is over its budget to save and stop; then it is killed


def task(
    prompt: Annotated[str, typer.Argument(help="What the child is to find out or to do.", metavar="PROMPT")],
    agent: Annotated[
        str,
        typer.Option(
            "--agent", help="The child's agent; default: the caller's.", metavar="AGENT", autocompletion=complete_agent
        ),
    ] = "",
    budget_seconds: Annotated[
        float, typer.Option("--budget-seconds", min=1, help="End the child after so many seconds.", metavar="SECONDS")
    ] = 3600.0,
    bucket: BucketUrl = None,
    job: JobName = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
    json: AsJson = False,
) -> None:
    """Run a task in a job of its own, and print only what came of it.

    For an agent with a long investigation: none of its steps gets into the caller's conversation. The same task typed
    again, also after a crash, is the same job: it carries on, or prints the kept result at once.
    """
    from wal_agent.agents import AGENTS
    from wal_agent.cli.options import open_existing_job, unknown_agent_error
    from wal_agent.errors import UsageError
    from wal_agent.recovery.tasks import child_args, child_job

    at = open_existing_job(None, bucket, job, encryption_key_file, encryption_key_command)
    name = agent or at.agent.name
    if name not in AGENTS:
        raise unknown_agent_error(name)
    if AGENTS[name].capabilities.hookless is not None:
        raise UsageError(f"{name} cannot do a task: it reads no prompt.", "Name another one with --agent.")
    child = child_job(at.keys.job, name, prompt)
    code, said = _run(at, child, name, child_args(AGENTS[name], _caller_args(at, name), prompt), budget_seconds)
    if code:
        for line in said[-5:]:
            say(printable(line))
        say(f"the task did not come to its end ({code}). The same command carries on.")
        say(f"its log: wal-agent log --job {child}")
        raise typer.Exit(code)
    form = _result(at, child, name)
    if json:
        from dataclasses import asdict

        answer_json(asdict(form))
    else:
        answer([printable(line) for line in form.render().splitlines()])


def _caller_args(at: JobContext, agent: str) -> tuple[str, ...]:
    """What the caller was started with, where the child's agent is the same: only what was typed on this machine, so
    that who writes the bucket chooses neither model nor permissions."""
    from wal_agent.supervise.provenance import vouched_args
    from wal_agent.wal.reader import replay

    state = replay(at.bucket, at.keys).state
    same = state.home_opening is not None and state.home_opening.agent == agent
    return vouched_args(os.environ, at.settings.bucket, at.keys.job, state) if same else ()


def _run(at: JobContext, child: str, agent: str, args: tuple[str, ...], budget: float) -> tuple[int, list[str]]:
    """Run the child, unless it is complete; return its exit code and what it said on stderr."""
    settings = at.settings
    options = ["--job", child, "--bucket", settings.bucket, "--once"]
    if settings.encryption_key_file:
        options += ["--encryption-key-file", str((at.workspace / settings.encryption_key_file).resolve())]
    if settings.encryption_key_command:
        options += ["--encryption-key-command", settings.encryption_key_command]
    env = {**os.environ, "WAL_AGENT_WORKSPACE": "off"}  # the caller saves the folder that both work in
    with tempfile.TemporaryFile() as err:
        child_process = subprocess.Popen(
            [sys.executable, "-m", "wal_agent", "run", agent, *options, "--", *args],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # its last message is in its session
            stderr=err,
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so an agent ends a tool that takes too long
        try:
            code = child_process.wait(budget)
        except subprocess.TimeoutExpired:
            say(f"the task is over its budget of {budget:g} s, and is ended.")
            code = _end(child_process)
        except BaseException:
            _end(child_process)
            raise
        err.seek(0)
        return code, err.read(1 << 20).decode("utf-8", "replace").splitlines()


def _end(process: subprocess.Popen[bytes]) -> int:
    """End it in good order: what it did is saved, and the same task carries on from there. Never 0."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        return process.wait(ENDING) or 1
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait() or 1


def _result(at: JobContext, child: str, agent: str) -> CompactForm:
    from dataclasses import replace

    from wal_agent.agents import AGENTS
    from wal_agent.cli.restore import blobs_of
    from wal_agent.recovery.tasks import compact_form
    from wal_agent.recovery.transcript import read_lines
    from wal_agent.wal.blobs import write_file
    from wal_agent.wal.keys import Keys
    from wal_agent.wal.reader import replay

    state = replay(at.bucket, keys := Keys(child)).state
    last = ""
    if (file := state.files.get(AGENTS[agent].main_file)) is not None:
        with tempfile.TemporaryDirectory(prefix="wal-agent-task-") as folder:
            path = Path(folder) / "session"
            write_file(blobs_of(replace(at, keys=keys)), file, path)
            with path.open("rb") as lines:
                for line in read_lines(lines):
                    last = line.text if line.role == "assistant" else last
    return compact_form(child, agent, state, last)
