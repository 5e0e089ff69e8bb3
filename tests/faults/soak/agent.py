"""Stands in for Gemini CLI 0.61 where a real one would take a second to start: same hooks, same session file, and a
plan (SOAK_PLAN, JSON) in place of a model. Each of its changing calls does one thing that cannot be taken back: it
appends `<uid> <attempt>` to the file SOAK_WORLD. Standard library only; runs as `python -IS`.

The plan: `cycle` makes its names unique; `batches` are lists of calls, each "append" (done by this process), "tool" (by
a shell of its own that outlives it) or "read"; `again`: first do again, under the same uids, what the recovery notice
tells as in flight; `death`: (what, n): "allowed", "effect" and "ended" kill the supervisor at the n-th changing call,
"agent" just this process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

STAMP = "2026-01-01T00:00:00.000Z"
GEMINI = Path(os.environ.get("HOME", "/")) / ".gemini"
TITLE = "[wal-agent recovery]"


def main() -> None:
    args = sys.argv[1:]
    if args == ["--version"]:
        print("0.61.0")
        return
    resumed = "--resume" in args
    session = args[args.index("--resume" if resumed else "--session-id") + 1]
    Agent(session, resumed, json.loads(os.environ["SOAK_PLAN"])).turn(args[args.index("--prompt") + 1])


class Agent:
    def __init__(self, session: str, resumed: bool, plan: dict[str, Any]) -> None:
        self.session, self.resumed, self.plan = session, resumed, plan
        self.world = os.open(os.environ["SOAK_WORLD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.changing = self.said = 0
        self.stopped = False
        found = Path(os.environ["WAL_AGENT_SOCKET"]).parent.glob("extensions/*/hooks/hooks.json")
        self.tables = [json.loads(path.read_bytes())["hooks"] for path in found]
        self.file = self.session_file()

    # ---- the session

    def session_file(self) -> Path:
        project = GEMINI / "tmp" / "work"
        (project / "chats").mkdir(parents=True, exist_ok=True)
        (marker := project / f"{os.getpid()}.new").write_text(str(Path.cwd()))
        marker.replace(project / ".project_root")  # whole at any kill: a torn one would be another folder's
        if self.resumed:
            own = [path for path in (project / "chats").iterdir() if owner(path) == self.session]
            return max(own, key=lambda path: path.stat().st_size)
        made = project / "chats" / f"session-2026-01-01T00-00-{self.session[:8]}.jsonl"
        head = {"sessionId": self.session, "projectHash": "0", "startTime": STAMP, "lastUpdated": STAMP}
        made.write_text(json.dumps({**head, "kind": "main"}) + "\n")
        return made

    def tell(self, kind: str, content: Any, **more: Any) -> None:
        self.said += 1
        name = f"{self.plan['cycle']}-{self.said}"
        line = json.dumps({"id": name, "timestamp": STAMP, "type": kind, "content": content, **more})
        with self.file.open("a") as file:
            file.write(line + "\n")

    def in_flight(self) -> list[str]:
        """The uids of the calls that the recovery notice at the session's end tells as in flight."""
        last = json.loads(self.file.read_text().splitlines()[-1])
        text = "".join(part["text"] for part in last.get("content") or [] if isinstance(part, dict))
        if last.get("type") != "user" or not text.startswith(TITLE):
            return []
        _, _, calls = text.partition(" in flight:\n")
        return re.findall(r"append (\S+) as ", calls.partition("\nRules:")[0])

    # ---- the turn

    def turn(self, prompt: str) -> None:
        again = self.in_flight() if self.resumed and self.plan["again"] else []
        self.hook("SessionStart", source="resume" if self.resumed else "startup")
        if self.resumed:  # its word that the session is loaded
            with self.file.open("a") as file:
                file.write(json.dumps({"$set": {"sessionId": self.session}}) + "\n")
        self.hook("BeforeAgent", prompt=prompt)
        self.tell("user", [{"text": prompt}])
        batches = [[("append", uid)] for uid in dict.fromkeys(again)]
        batches += [[(kind, "") for kind in batch] for batch in self.plan["batches"]]
        for batch in batches:
            self.hook("PreCompress", trigger="auto")
            calls = []
            for kind, uid in batch:
                calls.append(self.call(kind, uid))
                if self.stopped:
                    self.tell("gemini", "", toolCalls=calls)
                    return
            self.tell("gemini", "", toolCalls=calls)
        self.hook("PreCompress", trigger="auto")
        self.tell("gemini", "done")
        self.hook("AfterAgent", prompt=prompt, prompt_response="done", stop_hook_active=False)

    def call(self, kind: str, uid: str) -> dict[str, Any]:
        if kind == "read":
            tool, given, attempt = "read_file", {"file_path": str(Path.cwd() / "README.md")}, ""
        else:
            self.changing += 1
            attempt = f"{self.plan['cycle']}.{self.changing}"
            uid = uid or attempt
            tool, given = "run_shell_command", {"command": f"append {uid} as {attempt}"}
        answer = self.hook("BeforeTool", tool_name=tool, tool_input=given)
        if answer.get("decision") in ("deny", "block"):
            self.stopped = answer.get("continue") is False
            return told(tool, given, "error", f"Tool execution blocked: {answer.get('reason')}")
        self.dies("allowed")
        if kind == "append":
            os.write(self.world, f"{uid} {attempt}\n".encode())
        elif kind == "tool":
            line = 'sleep 0.02; echo "$0 $1" >>"$SOAK_WORLD"'
            done = subprocess.run(["bash", "-c", line, uid, attempt], check=False, start_new_session=True)
            if done.returncode < 0:  # the run ends and takes all that it started
                os.kill(os.getpid(), signal.SIGKILL)
            done.check_returncode()
        self.dies("effect")
        self.dies("agent")
        self.hook("AfterTool", tool_name=tool, tool_input=given, tool_response={"llmContent": "ok"})
        self.dies("ended")
        return told(tool, given, "success", "ok")

    def dies(self, where: str) -> None:
        what, n = self.plan["death"]
        if (what, n) == (where, self.changing):
            if what != "agent":
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    # ---- hooks

    def hook(self, event: str, **more: Any) -> dict[str, Any]:
        """Run the event's hooks; the refusal, if there is one. As in the real one a hook that is broken, or says
        nothing, or nothing that can be read, refuses nothing."""
        common = {"session_id": self.session, "transcript_path": str(self.file), "cwd": str(Path.cwd())}
        payload = json.dumps({**common, "hook_event_name": event, "timestamp": STAMP, **more}).encode()
        refusal: dict[str, Any] = {}
        for line in [h["command"] for table in self.tables for group in table.get(event, []) for h in group["hooks"]]:
            done = subprocess.run(["bash", "-c", line], input=payload, stdout=subprocess.PIPE, check=False)
            try:
                answer = json.loads(done.stdout or b"{}")
            except ValueError:
                continue
            if answer.get("decision") in ("deny", "block"):
                refusal = answer
        return refusal


def owner(path: Path) -> str:
    """The id of the session whose file it is; nobody's when its maker died over its first line."""
    try:
        with path.open() as file:
            return str(json.loads(file.readline())["sessionId"])
    except ValueError:
        return ""


def told(tool: str, given: dict[str, Any], status: str, text: str) -> dict[str, Any]:
    """A call as the session file tells it."""
    name = f"{tool}-{fresh()}"
    response = {"functionResponse": {"id": name, "name": tool, "response": {"output": text}}}
    common = {"id": name, "name": tool, "args": given, "status": status, "timestamp": STAMP}
    return {**common, "result": [response], "resultDisplay": text}


def fresh() -> str:
    return os.urandom(16).hex()  # the module takes longer to load than a call takes


if __name__ == "__main__":
    main()
