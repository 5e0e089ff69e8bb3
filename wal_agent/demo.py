"""The crash story on the real Gemini CLI, with a scripted model on loopback: no key, no network.

It does not only print: it checks bytes, counts side effects and compares what the model received, and says what did not
hold. `wal-agent demo` and `make demo` run it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from wal_agent.agents.gemini.loopback import GeminiModel, Turn

SECONDS = 60.0
TASK = "Write down the plan, then charge the customer with ./charge.sh, then report."
CHARGE = "./charge.sh 49.90"
SCRIPT = """\
#!/bin/sh
# Not idempotent: each run charges the customer again.
echo "charged $1" >> ledger.txt
sleep 300            # the slow half: here the machine dies
echo "receipt sent" >> ledger.txt
"""


@dataclass
class Stage:
    """A scratch machine: home, repository, bucket. `failed` collects what did not hold."""

    root: Path
    env: Mapping[str, str]
    show: Callable[[str], None]
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.work = self.root / "shop"
        self.bucket = self.root / "bucket"
        self.work.mkdir()
        (self.work / "README.md").write_text("A small shop.\n")
        script = self.work / "charge.sh"
        script.write_text(SCRIPT)
        script.chmod(0o755)
        git = ["git", "-c", "user.name=demo", "-c", "user.email=demo@example.invalid"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "A small shop"]):
            subprocess.run([*git, *words], cwd=self.work, check=True, env={**self.env, "HOME": str(self.root)})

    def home(self, name: str) -> Path:
        home = self.root / name
        (home / ".gemini").mkdir(parents=True)
        (home / ".gemini" / "settings.json").write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}\n')
        return home

    def start(self, home: Path, model: GeminiModel) -> subprocess.Popen[str]:
        kept = {k: self.env[k] for k in ("PATH", "LANG", "TERM", "WAL_AGENT_GEMINI", "PYTHONPATH") if k in self.env}
        scratch = {
            **kept,
            **model.env,
            "HOME": str(home),
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "WAL_AGENT_RUNTIME_DIR": str(self.root / "run"),
        }
        argv = ["run", "gemini", "--bucket", f"file://{self.bucket}", "--", "--yolo", "--prompt", TASK]
        self.show(f"$ wal-agent run gemini --bucket file://{self.bucket} -- --yolo --prompt '{TASK}'")
        return subprocess.Popen(
            [sys.executable, "-m", "wal_agent", *argv], cwd=self.work, env=scratch, stdin=subprocess.DEVNULL, text=True
        )

    def ledger(self) -> list[str]:
        path = self.work / "ledger.txt"
        return path.read_text().splitlines() if path.exists() else []

    def check(self, what: str, held: bool) -> None:
        self.show(f"  {'held ' if held else 'FAILED'}  {what}")
        if not held:
            self.failed.append(what)

    def wait(self, what: str, test: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not test():
            if time.monotonic() > end:
                raise TimeoutError(f"waited {SECONDS:.0f} s in vain until {what}")
            time.sleep(0.05)


def run_demo(env: Mapping[str, str], show: Callable[[str], None]) -> int:
    """Play the story; 0 when everything held, else 1."""
    root = Path(tempfile.mkdtemp(prefix="wal-agent-demo-"))
    stage = Stage(root, env, show)
    (root / "run").mkdir(mode=0o700)
    try:
        with GeminiModel() as model:
            _story(stage, model)
    finally:
        _sweep(root)
        shutil.rmtree(root, ignore_errors=True)
    show("")
    if stage.failed:
        show(f"{len(stage.failed)} of the demo's promises did not hold.")
        return 1
    show("Everything held: nothing was lost, nothing was done twice.")
    return 0


def _story(stage: Stage, model: GeminiModel) -> None:
    show = stage.show
    show("1. Gemini works on a task. The model is a script on this machine; the CLI, the log and the crash are real.\n")
    model.turns[:] = [
        Turn(
            text="First I write down the plan.",
            calls=[
                ("write_file", {"file_path": str(stage.work / "PLAN.md"), "content": "1. charge once\n2. report\n"})
            ],
        ),
        Turn(text="Now I charge the customer.", calls=[("run_shell_command", {"command": CHARGE})]),
    ]
    home = stage.home("home-of-the-first-machine")
    first = stage.start(home, model)
    stage.wait("the customer is charged", lambda: bool(stage.ledger()))
    saved = _session(home)

    show("\n2. The machine dies in the middle of ./charge.sh: SIGKILL to wal-agent and to Gemini. Its HOME is lost.\n")
    agents = [p for p in psutil.Process(first.pid).children(recursive=True) if "node" in p.name()]
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    for process in agents:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass  # it died with its wrapper, as it should
    shutil.rmtree(home)
    shutil.rmtree(stage.work / ".gemini", ignore_errors=True)

    show("3. The same command again, with an empty HOME.\n")
    seen = len(model.requests)
    model.turns[:] = [
        Turn(text="I look before I do anything.", calls=[("run_shell_command", {"command": "cat ledger.txt"})]),
        Turn(
            text="I verified: the ledger holds one charge. I do not charge again. No receipt was sent: please decide."
        ),
    ]
    second_home = stage.home("home-of-the-second-machine")
    second = stage.start(second_home, model)
    code = second.wait(SECONDS)
    requests = model.requests[seen:]
    prompt = _prompt(requests[0]) if requests else ""
    show("\n4. What the agent was told:\n")
    show("\n".join(f"    {line}" for line in prompt.splitlines()))
    show("\n5. What was promised, checked:\n")
    _check(stage, code, requests, prompt, saved, second_home)


def _check(stage: Stage, code: int, requests: list[dict[str, Any]], prompt: str, saved: bytes, home: Path) -> None:
    history = requests[0] if requests else {"contents": []}
    calls = [
        (p["functionCall"]["name"], p["functionCall"].get("args", {}).get("command", ""))
        for content in history["contents"]
        for p in content.get("parts", [])
        if "functionCall" in p
    ]
    exact = sorted((home / ".local/state/wal-agent").rglob("exact/session.jsonl"))
    stage.check("the second run ended well (exit 0)", code == 0)
    stage.check(f"the customer was charged once: {stage.ledger()}", stage.ledger() == ["charged 49.90"])
    stage.check("the conversation is back: the model saw the task", TASK in json.dumps(history))
    stage.check("the finished call is in it", ("write_file", "") in calls)
    stage.check("the call in flight is in it, once", calls.count(("run_shell_command", CHARGE)) == 1)
    stage.check("the agent was told of it by name, and not to repeat it", CHARGE in prompt and "Next:" in prompt)
    stage.check("the call was classified and its finding told", "class: unknown" in prompt and "Finding:" in prompt)
    held = bool(exact) and exact[-1].read_bytes().startswith(saved) and len(saved) > 0
    digest = hashlib.sha256(saved).hexdigest()[:12]
    stage.check(f"the session came back byte for byte ({len(saved)} bytes, sha256 {digest}...)", held)
    stage.check(
        "nothing of ours is left in Gemini's folders", not list((home / ".gemini").glob("extensions/wal-agent-*"))
    )


def _session(home: Path) -> bytes:
    """The session file as it was when the machine died."""
    found = sorted(home.glob(".gemini/tmp/*/chats/session-*.jsonl"))
    return found[-1].read_bytes() if found else b""


def _prompt(request: dict[str, Any]) -> str:
    """The recovery prompt as the model received it."""
    texts = [
        str(part["text"])
        for content in request["contents"]
        for part in content.get("parts", [])
        if "[wal-agent recovery]" in str(part.get("text", ""))
    ]
    return texts[-1] if texts else ""


def _sweep(root: Path) -> None:
    """End whatever of the story still runs."""
    for process in psutil.process_iter(["pid"]):
        try:
            if process.environ().get("HOME", "").startswith(str(root)):
                process.kill()
        except psutil.Error:
            continue
