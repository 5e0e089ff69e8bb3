"""The crash story on the real Gemini CLI, with a scripted model on loopback: no key, no network.

It does not only print: it checks bytes, counts side effects and compares what the model received, and says what did not
hold. `wal-agent demo` and `make demo` run it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wal_agent.demo_stage import SECONDS, Stage, end_all
from wal_agent.loopback.gemini import GeminiModel
from wal_agent.loopback.model import Turn

TASK = "Write down the plan, charge the customer with ./charge.sh, then commit, push and report."
CHARGE = "./charge.sh 49.90"
LOOK = "cat ledger.txt"
COMMIT = "git add -A && git commit -qm 'Charge once'"
PUSH = "git push origin main && sleep 300"

Json = dict[str, Any]


def run_demo(env: Mapping[str, str], show: Callable[[str], None]) -> int:
    """Play the story; 0 when everything held, else 1."""
    root = Path(tempfile.mkdtemp(prefix="wal-agent-demo-")).resolve()
    runtime = Path(tempfile.mkdtemp(prefix="wal-agent-", dir="/tmp")).resolve()
    try:
        stage = Stage(root, runtime, env, show, TASK)
        with GeminiModel() as model:
            _Story(stage, model).play()
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

    def __init__(self, stage: Stage, model: GeminiModel) -> None:
        self.stage, self.model = stage, model
        self.prompts: list[str] = []  # of the three recoveries
        self.histories: list[Json] = []  # what the model saw first after each

    def play(self) -> None:
        show = self.stage.show
        show("1. Gemini works on a task. The model is a script on this machine; CLI, log and deaths are real.\n")
        self._charge()
        show("\n2. The machine dies in the middle of ./charge.sh, by SIGKILL to all of it, and its HOME is lost.")
        show("   The same command again:\n")
        self._push()
        self._told(0)
        show("\n3. It dies again: the push has just landed, and nobody wrote that down. The same command again:\n")
        receipt = self._after_the_push()
        self._told(1)
        show(
            "\n4. It dies while the model thinks, and now the folder is lost too. In an empty folder, the same again:\n"
        )
        tree, session = self._lose_the_folder(receipt)
        code, home = self._finish()
        self._told(2)
        show("\n5. What was promised, checked:\n")
        self._check(tree, session, code, home)

    # ---- the acts

    def _charge(self) -> None:
        plan = _write(self.stage.work / "PLAN.md", "1. charge once\n2. push\n")
        self.model.turns[:] = [
            Turn(text="First I write down the plan.", calls=[plan]),
            Turn(text="Now I charge the customer.", calls=[_shell(CHARGE)]),
        ]
        home = self.stage.home("home-1")
        run = self.stage.start(home, self.model)
        self.stage.wait("the customer is charged", lambda: self.stage.ledger() and self.stage.state().workspace)
        self.stage.die(run, home)
        shutil.rmtree(home)

    def _push(self) -> None:
        self._script(
            Turn(text="I look before I do anything.", calls=[_shell(LOOK)]),
            Turn(text="The ledger holds one charge: done. I commit.", calls=[_shell(COMMIT)]),
            Turn(text="I push.", calls=[_shell(PUSH)]),
        )
        home = self.stage.home("home-2")
        run = self.stage.start(home, self.model)
        self.stage.wait("the push has landed", self.stage.landed)
        self._heard()
        self.stage.die(run, home)
        shutil.rmtree(home)

    def _after_the_push(self) -> Path:
        receipt = self.stage.work / "receipt.txt"
        shop = self.stage.work / "README.md"
        hold = threading.Event()
        self._script(
            Turn(
                text="The push is done; I go on after it.",
                calls=[_write(receipt, "49.90, paid\n"), _write(shop, "A small shop that was paid.\n")],
            ),
            Turn(text="never said", hold=hold),
        )
        home = self.stage.home("home-3")
        run = self.stage.start(home, self.model)
        self.stage.wait("all is saved", lambda: receipt.exists() and self.stage.all_saved())
        self._heard()
        self.stage.die(run, home)
        hold.set()
        return home

    def _lose_the_folder(self, home: Path) -> tuple[dict[str, str], bytes]:
        """The tree and the session as they were."""
        lost, session = self.stage.tree(), _session(home)
        shutil.rmtree(home)
        shutil.rmtree(self.stage.work)
        self.stage.work = self.stage.root / "another-machine" / "shop"
        self.stage.work.mkdir(parents=True)
        return lost, session

    def _finish(self) -> tuple[int, Path]:
        self._script(Turn(text="All is as I left it: charged once, pushed once, the receipt is written."))
        home = self.stage.home("home-4")
        code = self.stage.start(home, self.model).wait(SECONDS)
        self._heard()
        return code, home

    def _script(self, *turns: Turn) -> None:
        self.model.requests.clear()
        self.model.turns[:] = turns

    def _heard(self) -> None:
        """Keep what the model was told at this start."""
        first: Json = self.model.requests[0] if self.model.requests else {"contents": []}
        self.histories.append(first)
        self.prompts.append(_prompt(first))

    def _told(self, n: int) -> None:
        self.stage.show("\n   The agent was told:\n")
        self.stage.show("\n".join(f"    {line}".rstrip() for line in _gist(self.prompts[n]).splitlines()))

    # ---- what is checked

    def _check(self, tree: dict[str, str], session: bytes, code: int, home: Path) -> None:
        check, stage = self.stage.check, self.stage
        charged, pushed, _ = self.prompts
        state = stage.state()
        check(f"the customer was charged once: {stage.ledger()}", stage.ledger() == ["charged 49.90"])
        check("of ./charge.sh the agent was told by this project's own rule, and how to look", _ruled(charged))
        check("the push was told as completed, not to be repeated", _said(pushed, PUSH, "Finding: completed."))
        check(
            f"the remote's branch was moved once by it ({stage.updates()} updates with the first)", stage.updates() == 2
        )
        check(f"the working tree is back in an empty folder ({len(tree) - 2} files)", stage.tree() == tree)
        check("with what was never committed", " M README.md\n?? receipt.txt" in tree["git status"])
        check(
            "the conversation is back: the model saw the task each time", all(TASK in _text(h) for h in self.histories)
        )
        calls = [c for c in _calls(self.histories[-1]) if c != LOOK]
        check("each call is in it, once", calls == ["PLAN.md", CHARGE, COMMIT, PUSH, "receipt.txt", "README.md"])
        exact = sorted((home / ".local/state/wal-agent").rglob("exact/session.jsonl"))
        check(f"byte for byte ({len(session)} bytes)", bool(exact and session) and exact[-1].read_bytes() == session)
        check("the last run ended well (exit 0), and nothing is left to settle", code == 0 and not state.open)
        left = list((home / ".gemini").glob("extensions/wal-agent-*"))
        check("nothing of ours is left in Gemini's folders", not left)


def _ruled(prompt: str) -> bool:
    return _said(prompt, CHARGE, "class: mutation (this project's rule", "GEMINI.md", f"`{LOOK}`")


def _said(prompt: str, *words: str) -> bool:
    return all(text in prompt for text in words)


def _shell(command: str) -> tuple[str, Json]:
    return "run_shell_command", {"command": command}


def _write(path: Path, content: str) -> tuple[str, Json]:
    return "write_file", {"file_path": str(path), "content": content}


def _calls(request: Json) -> list[str]:
    """The calls in the conversation: a command, or the name of a file that was written."""
    parts = [p for content in request["contents"] for p in content.get("parts", []) if "functionCall" in p]
    args = [p["functionCall"].get("args", {}) for p in parts]
    return [str(a.get("command") or Path(a.get("file_path", "")).name) for a in args]


def _text(request: Json) -> str:
    return json.dumps(request)


def _session(home: Path) -> bytes:
    """The session file as it was when the machine died."""
    found = sorted(home.glob(".gemini/tmp/*/chats/session-*.jsonl"))
    return found[-1].read_bytes() if found else b""


def _prompt(request: Json) -> str:
    """The recovery prompt as the model received it: the newest."""
    texts = [
        str(part["text"])
        for content in request["contents"]
        for part in content.get("parts", [])
        if "[wal-agent recovery]" in str(part.get("text", ""))
    ]
    return texts[-1] if texts else ""


def _gist(prompt: str) -> str:
    """Without the rules that every prompt ends with."""
    return prompt.partition("\nRules: ")[0].strip()
