"""Play the crash story on a real agent CLI with a scripted model on loopback: no key, no network.

The demo does not only print: it compares bytes, counts side effects, compares what the model received, and reports
what did not hold. `wal-agent demo` and `make demo` run it. `Stage` is a scratch machine with a shop's repository, its
remote and a bucket.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from wal_agent.agents import rehearsal_of
from wal_agent.agents.base import Agent, Rehearsal
from wal_agent.bucket import open_bucket
from wal_agent.errors import UsageError
from wal_agent.paths import PROGRAM
from wal_agent.rehearsal.model import Called, HistoryText, Model, Part, Turn
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import replay
from wal_agent.wal.state import State

ROUNDS = 5  # of ending what runs, until there is nothing
SECONDS = 180.0  # after which a thing that should have happened counts as not happening
SCRIPT = """\
#!/bin/sh
echo "charged $1" >> ledger.txt
sleep 300            # the slow half: here the machine dies
echo "receipt sent" >> ledger.txt
"""
RULES = """\
| Tool / Operation | Idempotent? | Verify With | On Ambiguity |
|---|---|---|---|
| `./charge.sh` | No. Each run charges the customer again | `cat ledger.txt` | ask the shop's owner |
"""
TASK = "Write down the plan, charge the customer with ./charge.sh, then commit, push and report."
CHARGE = "./charge.sh 49.90"
LOOK = "cat ledger.txt"
COMMIT = "git add -A && git commit -qm 'Charge once'"
PAID = "echo A small shop that was paid. > README.md"
PUSH = "git push origin main && sleep 300"


@dataclass
class Stage:
    """`failed` collects what did not hold; `work` is the folder that the job is in now."""

    root: Path
    runtime: Path  # for the hooks' socket, whose path must be short
    env: Mapping[str, str]
    show: Callable[[str], None]
    task: str
    agent: Agent
    rehearsal: Rehearsal
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._needed: dict[Path, dict[str, str]] = {}  # by home
        self.work = self.root / "shop"
        self.remote = self.root / "origin.git"
        self.bucket = self.root / "bucket"
        self.work.mkdir()
        (self.work / "README.md").write_text("A small shop.\n")
        (self.work / "GEMINI.md").write_text(RULES)
        script = self.work / "charge.sh"
        script.write_text(SCRIPT)
        script.chmod(0o755)
        self.git("init", "-q", "--bare", str(self.remote))
        (self.remote / "logs").mkdir()
        self.git("--git-dir", str(self.remote), "config", "core.logAllRefUpdates", "true")
        self.git("init", "-q")
        for name, value in (("user.name", "demo"), ("user.email", "demo@example.invalid")):
            self.git("config", name, value)
        self.git("symbolic-ref", "HEAD", "refs/heads/main")
        self.git("add", "-A")
        self.git("commit", "-qm", "A small shop")
        self.git("remote", "add", "origin", str(self.remote))
        self.git("push", "-q", "origin", "main")

    def git(self, *words: str) -> str:
        kept = {name: value for name, value in self.env.items() if not name.startswith("GIT_")}
        env = {**kept, "HOME": str(self.root), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(["git", *words], cwd=self.work, check=True, env=env, stdout=subprocess.PIPE, text=True)
        return done.stdout

    # ---- what happens

    def home(self, name: str) -> Path:
        home = self.root / name
        home.mkdir()
        return home

    def start(self, home: Path, model: Model) -> subprocess.Popen[str]:
        name, args = self.agent.name, self.rehearsal.args(self.task)
        argv = ["run", name, "--bucket", f"file://{self.bucket}", "--job", self.job, "--", *args]
        self.show("$ wal-agent " + shlex.join(argv))
        return subprocess.Popen(
            [*PROGRAM, *argv],
            cwd=self.work,
            env=self.machine(home, model),
            stdin=subprocess.DEVNULL,
            text=True,
        )

    @property
    def job(self) -> str:
        return f"{self.agent.name}-shop"

    def command(self, home: Path, model: Model, *words: str) -> str:
        """What a command prints on the machine with this home."""
        argv = [*PROGRAM, *words, "--bucket", f"file://{self.bucket}"]
        done = subprocess.run(
            argv, cwd=self.work, env=self.machine(home, model), stdout=subprocess.PIPE, text=True, timeout=SECONDS
        )
        return done.stdout

    def machine(self, home: Path, model: Model) -> dict[str, str]:
        """The environment on the machine with this home."""
        kept = ("PATH", "LANG", "TERM", f"WAL_AGENT_{self.agent.name.upper()}", "PYTHONPATH")
        if home not in self._needed:  # written once: its agent may be reading them later on
            self._needed[home] = self.rehearsal.home(home, self.work, model.url)
        return {
            **{k: self.env[k] for k in kept if k in self.env},
            **self._needed[home],
            "HOME": str(home),
            "WAL_AGENT_RUNTIME_DIR": str(self.runtime),
        }

    def die(self, run: subprocess.Popen[str], home: Path) -> None:
        """End the machine with this home, the run among all else."""
        end_all(home)
        run.wait()

    def lose(self, folder: Path) -> None:
        """At once: what a process that is just dying still writes there must not hold it."""
        gone = folder.with_name(f"{folder.name}.lost")
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def wait(self, what: str, test: Callable[[], object]) -> None:
        end = time.monotonic() + SECONDS
        while not test():
            if time.monotonic() > end:
                raise TimeoutError(f"waited {SECONDS:.0f} s in vain until {what}")
            time.sleep(0.05)

    # ---- what is true

    def state(self) -> State:
        """What the log says."""
        bucket = open_bucket(f"file://{self.bucket}")
        try:
            return replay(bucket, Keys(self.job)).state
        finally:
            bucket.close()

    def all_saved(self, home: Path, model: Model) -> bool:
        """The log has the conversation with every call so far, and the tree with what they did."""
        state = self.state()
        tree, main = state.workspace, state.files.get(self.agent.main_file)
        whole = not state.unsettled and tree is not None and tree.holds == state.next_call - 1
        return whole and main is not None and main.size == len(self.session(home, model))

    def session(self, home: Path, model: Model) -> bytes:
        """The session's main file on the machine with this home."""
        files = self.agent.session_files(self.state().session, self.work, self.machine(home, model))
        return files[0].path.read_bytes() if files else b""

    def charged(self, home: Path, model: Model, before: str) -> bool:
        """The slow half of the charge runs, and the log has the tree and the conversation up to the call that names
        `before`: Copilot writes its session in pieces, a second late, and the first has not even the task."""
        state = self.state()
        session, main = self.session(home, model), state.files.get(self.agent.main_file)
        is_saved = main is not None and main.size == len(session) and before.encode() in session
        return bool(self.ledger() and state.workspace and is_saved)

    def ledger(self) -> list[str]:
        path = self.work / "ledger.txt"
        return path.read_text().splitlines() if path.exists() else []

    def updates(self) -> int:
        """How often the remote's branch was moved."""
        return len((self.remote / "logs/refs/heads/main").read_text().splitlines())

    def landed(self) -> bool:
        """The remote took the second push, and git here knows it: not by the log of the ref, which it writes before the
        ref itself, and a death in between leaves a lock."""
        tracking = self.work / ".git/refs/remotes/origin/main"
        sent = (self.work / ".git/refs/heads/main").read_text()
        done = tracking.read_text() == sent and not tracking.with_name("main.lock").exists()
        return self.updates() == 2 and done

    def tree(self) -> dict[str, str]:
        """Every file of the shop by hash, and where git stands."""
        files = (p for p in self.work.rglob("*") if p.is_file() and ".git" not in p.relative_to(self.work).parts)
        found = {str(p.relative_to(self.work)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
        return {**found, "git status": self.git("status", "--porcelain", "-b"), "HEAD": self.git("rev-parse", "HEAD")}

    def check(self, what: str, held: bool) -> None:
        self.show(f"  {'held ' if held else 'FAILED'}  {what}")
        if not held:
            self.failed.append(what)


def end_all(home: Path) -> None:
    """End whatever still runs under a HOME that is, or is below, this one, and what it starts meanwhile; a machine that
    died runs nothing any more."""
    for _ in range(ROUNDS):
        alive = [process for process in home_environment(home) if process.pid != os.getpid()]
        if not alive:
            return
        end_at_once(alive)
        psutil.wait_procs(alive, timeout=5)


def end_at_once(processes: Collection[psutil.Process]) -> None:
    """As a machine that dies ends them: all are stopped before one is ended. An agent that lived on would end its
    commands, and a script whose command is ended goes on to its next one."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            with suppress(psutil.Error):
                process.send_signal(number)


def home_environment(home: Path) -> Iterator[psutil.Process]:
    """All that run under a HOME that is, or is below, this one, whoever started them: those of one pretended machine.
    Git that saves a working tree is given no HOME, but its repository is below it."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            env = process.environ()
            folders = (env.get("HOME") or "/", env.get("GIT_DIR") or "/")
            if any(Path(f).is_relative_to(home) for f in folders) and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def run_demo(
    agent: Agent,
    env: Mapping[str, str],
    show: Callable[[str], None],
    task: str = TASK,
    play: Callable[[Stage, Model], None] | None = None,
) -> int:
    """Play a story with `agent`: by default that of three deaths. 0 when everything held, else 1. UsageError for one
    that cannot be scripted."""
    rehearsal = rehearsal_of(agent)
    if rehearsal is None:
        raise UsageError(f"There is no demo of {agent.name}: it stands for any command.", "For example: --agent claude")
    # Not our own name: agents name their folders after the workspace, and of ours nothing may be left there.
    root = Path(tempfile.mkdtemp(prefix="demo-of-wal-")).resolve()
    runtime = Path(tempfile.mkdtemp(prefix="wal-agent-", dir="/tmp")).resolve()
    try:
        # Its agent types `wal-agent`.
        env = {**env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"}
        stage = Stage(root, runtime, env, show, task, agent, rehearsal)
        with Model(rehearsal.dialect) as model:
            play(stage, model) if play is not None else _Story(stage, model).play()
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        stage.check(f"the story came to its end ({error})", False)
    finally:
        end_all(root)
        for folder in (root, runtime):
            shutil.rmtree(folder, ignore_errors=True)
    show("")
    if stage.failed:
        show(f"{len(stage.failed)} of the demo's promises did not hold.")
        return 1
    show("Everything held: nothing was lost, nothing was done twice.")
    return 0


class _Story:
    """Three deaths of a machine, and what comes after each. What the acts find is checked at the end."""

    def __init__(self, stage: Stage, model: Model) -> None:
        self.stage, self.model = stage, model
        self.shell, self.write = stage.rehearsal.shell, stage.rehearsal.write
        self.prompts: list[str] = []  # of the three recoveries
        self.histories: list[list[Part]] = []  # what the model saw first after each

    def play(self) -> None:
        show, name = self.stage.show, self.stage.agent.name
        show(f"1. {name} works on a task. The model is a script on this machine; CLI, log and deaths are real.\n")
        self._charge()
        show("\n2. The machine dies in the middle of ./charge.sh, by SIGKILL to all of it, and its HOME is lost.")
        show("   The same command again:\n")
        self._push()
        self._show_prompt(0)
        show("\n3. It dies again: the push has just landed, and no record says so. The same command again:\n")
        receipt = self._after_the_push()
        self._show_prompt(1)
        show(
            "\n4. It dies while the model thinks, and now the folder is lost too. In an empty folder, the same again:\n"
        )
        tree, session = self._lose_the_folder(receipt)
        code, home = self._finish()
        self._show_prompt(2)
        show("\n5. What was promised, checked:\n")
        self._check(tree, session, code, home)

    # ---- the acts

    def _charge(self) -> None:
        plan = self.write(self.stage.work / "PLAN.md", "1. charge once\n2. push\n")
        self.model.turns[:] = [
            Turn(text="First I write down the plan.", calls=[plan]),
            Turn(text="Now I charge the customer.", calls=[self.shell(CHARGE)]),
        ]
        home = self.stage.home("home-1")
        run = self.stage.start(home, self.model)
        self.stage.wait("the customer is charged", lambda: self.stage.charged(home, self.model, "PLAN.md"))
        self.stage.die(run, home)
        self.stage.lose(home)

    def _push(self) -> None:
        self._script(
            Turn(text="I look before I do anything.", calls=[self.shell(LOOK)]),
            Turn(text="The ledger holds one charge: done. I commit.", calls=[self.shell(COMMIT)]),
            Turn(text="I push.", calls=[self.shell(PUSH)]),
        )
        home = self.stage.home("home-2")
        run = self.stage.start(home, self.model)
        self.stage.wait("the push has landed", self.stage.landed)
        self._keep_request()
        self.stage.die(run, home)
        self.stage.lose(home)

    def _after_the_push(self) -> Path:
        receipt = self.stage.work / "receipt.txt"
        hold = threading.Event()
        self._script(
            Turn(
                text="The push is done; I go on after it.",
                calls=[self.write(receipt, "49.90, paid\n"), self.shell(PAID)],
            ),
            Turn(text="never said", hold=hold),
        )
        home = self.stage.home("home-3")
        run = self.stage.start(home, self.model)
        paid = self.stage.work / "README.md"
        self.stage.wait(
            "all is saved",
            lambda: receipt.exists() and "paid" in paid.read_text() and self.stage.all_saved(home, self.model),
        )
        self._keep_request()
        self.stage.die(run, home)
        hold.set()
        return home

    def _lose_the_folder(self, home: Path) -> tuple[dict[str, str], bytes]:
        """The tree and the session as they were."""
        lost, session = self.stage.tree(), self.stage.session(home, self.model)
        self.stage.lose(home)
        self.stage.lose(self.stage.work)
        self.stage.work = self.stage.root / "another-machine" / "shop"
        self.stage.work.mkdir(parents=True)
        return lost, session

    def _finish(self) -> tuple[int, Path]:
        self._script(Turn(text="All is as I left it: charged once, pushed once, the receipt is written."))
        home = self.stage.home("home-4")
        code = self.stage.start(home, self.model).wait(SECONDS)
        self._keep_request()
        return code, home

    def _script(self, *turns: Turn) -> None:
        self.model.requests.clear()
        self.model.turns[:] = turns

    def _keep_request(self) -> None:
        """Keep what the first request of this start held."""
        heard = self.model.history(0) if self.model.requests else []
        self.histories.append(heard)
        said = [
            part for part in heard if isinstance(part, HistoryText) and part.role != "system"
        ]  # which has the protocol
        prompts = [part.text for part in said if "[wal-agent recovery]" in part.text]
        self.prompts.append(prompts[-1] if prompts else "")

    def _show_prompt(self, n: int) -> None:
        self.stage.show("\n   The agent read:\n")
        self.stage.show("\n".join(f"    {line}".rstrip() for line in _gist(self.prompts[n]).splitlines()))

    # ---- what is checked

    def _check(self, tree: dict[str, str], session: bytes, code: int, home: Path) -> None:
        check, stage = self.stage.check, self.stage
        charged, pushed, _ = self.prompts
        state = stage.state()
        check(f"the customer was charged once: {stage.ledger()}", stage.ledger() == ["charged 49.90"])
        check(
            "of ./charge.sh the agent was classified by this project's own rule, with a command to check it",
            _ruled(charged),
        )
        check("the push was reported as completed, not to be repeated", _said(pushed, PUSH, "Finding: completed."))
        check(
            f"the remote's branch was moved once by it ({stage.updates()} updates with the first)", stage.updates() == 2
        )
        check(f"the working tree is back in an empty folder ({len(tree) - 2} files)", stage.tree() == tree)
        check("with what was never committed", " M README.md\n?? receipt.txt" in tree["git status"])
        asked = [any(isinstance(part, HistoryText) and TASK in part.text for part in heard) for heard in self.histories]
        check("the conversation is back: the model saw the task each time", all(asked))
        calls = [c for c in _calls(self.histories[-1]) if c != LOOK]
        check(
            "each call is in it, once", calls == sorted(["PLAN.md", CHARGE, COMMIT, PUSH, "receipt.txt", "README.md"])
        )
        exact = sorted((home / ".local/state/wal-agent").rglob(f"exact/{stage.agent.main_file}"))
        check(f"byte for byte ({len(session)} bytes)", bool(exact and session) and exact[-1].read_bytes() == session)
        check("the last run ended well (exit 0), and nothing is left to settle", code == 0 and not state.open)
        own = (home / ".local/state/wal-agent", home / ".config/wal-agent")
        left = [path for path in home.rglob("*wal-agent*") if not any(map(path.is_relative_to, own))]
        check(f"nothing of ours is left in {stage.agent.name}'s folders", not left)


def _ruled(prompt: str) -> bool:
    return _said(prompt, CHARGE, "class: mutation (this project's rule", "GEMINI.md", f"`{LOOK}`")


def _said(prompt: str, *words: str) -> bool:
    return all(text in prompt for text in words)


def _calls(heard: list[Part]) -> list[str]:
    """The calls in the conversation, sorted: of each what it runs, or the name of the file that it writes."""
    known = (CHARGE, LOOK, COMMIT, PUSH, "PLAN.md", "receipt.txt", "README.md")
    inputs = [" ".join(str(v) for v in part.input.values()) for part in heard if isinstance(part, Called)]
    return sorted(next((words for words in known if words in input), input) for input in inputs)


def _gist(prompt: str) -> str:
    """Without the rules that every prompt ends with."""
    return prompt.partition("\nRules: ")[0].strip()
