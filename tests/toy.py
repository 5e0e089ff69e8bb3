#!/usr/bin/env python3
"""toy: a made-up coding agent, which docs/how-to/add-an-agent.md describes to wal-agent. Its hooks have the shape of
Claude Code's.

toy [-p PROMPT] [--resume ID]: without a prompt it reads prompts from stdin. ~/.toy/settings.json has the "url" of a
model that speaks Chat Completions, and "hooks"; ~/.toy/projects/FOLDER/ID.jsonl is a session.
"""

import argparse
import json
import re
import subprocess
import sys
import urllib.request
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HOME = Path.home() / ".toy"
TOOLS = {"Bash": ["command"], "Write": ["file_path", "content"]}


class Session:
    def __init__(self, id: str | None) -> None:
        self.settings = json.loads((HOME / "settings.json").read_text())
        self.id = id or str(uuid.uuid4())
        self.file = HOME / "projects" / re.sub("[^A-Za-z0-9]", "-", str(Path.cwd())) / f"{self.id}.jsonl"
        if id and not self.file.exists():
            sys.exit(f"toy: there is no session {id}")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.records = [json.loads(line) for line in self.file.read_text().splitlines()] if id else []
        self.hook("SessionStart", source="resume" if id else "startup")

    def write(self, type: str, **fields: Any) -> None:
        record = {"type": type, **fields, "timestamp": datetime.now(UTC).isoformat()}
        self.records.append(record)
        with self.file.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def hook(self, event: str, **fields: Any) -> tuple[str, str]:
        """Run the hooks of an event; return why they refuse it, and what they add for the model."""
        payload = json.dumps({"hook_event_name": event, "session_id": self.id, "cwd": str(Path.cwd()), **fields})
        refused = words = ""
        for group in self.settings.get("hooks", {}).get(event, []):
            if not re.fullmatch(group.get("matcher") or ".*", fields.get("tool_name", "")):
                continue
            for hook in group["hooks"]:
                done = subprocess.run(hook["command"], shell=True, input=payload, capture_output=True, text=True)
                answer = json.loads(done.stdout) if done.stdout.startswith("{") else {}
                own = answer.get("hookSpecificOutput", {})
                if done.returncode == 2 or own.get("permissionDecision") == "deny":
                    refused = done.stderr or own["permissionDecisionReason"]
                words += own.get("additionalContext", "") if answer else done.stdout
        return refused, words

    def turn(self, prompt: str) -> None:
        _, words = self.hook("UserPromptSubmit", prompt=prompt)
        self.write("user", text=prompt)
        if words:
            self.write("context", text=words)
        calls: list[Any] = [prompt]
        while calls:
            said = self.ask()
            if said.get("content"):
                self.write("assistant", text=said["content"])
            calls = said.get("tool_calls") or []
            for call in calls:
                self.call(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        self.hook("Stop")
        print(said.get("content"))

    def call(self, id: str, name: str, input: dict[str, str]) -> None:
        self.write("call", id=id, name=name, input=input)
        about = {"tool_name": name, "tool_input": input, "tool_use_id": id}
        refused, _ = self.hook("PreToolUse", **about)
        failed, output = (True, refused) if refused else self.run(name, input)
        self.write("result", id=id, output=output, error=failed)
        if not refused:
            self.hook("PostToolUseFailure" if failed else "PostToolUse", **about, tool_response=output)

    def run(self, name: str, input: dict[str, str]) -> tuple[bool, str]:
        if name == "Write":
            Path(input["file_path"]).write_text(input["content"])
            return False, "written"
        words = ["bash", "-c", input["command"]]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, start_new_session=True)
        return done.returncode != 0, f"{done.stdout}{done.stderr}exit code {done.returncode}"

    def ask(self) -> Any:
        tools = [
            {
                "name": name,
                "parameters": {"type": "object", "properties": {field: {"type": "string"} for field in fields}},
            }
            for name, fields in TOOLS.items()
        ]
        body = {
            "model": "toy",
            "messages": self.messages(),
            "tools": [{"type": "function", "function": t} for t in tools],
        }
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.settings['url']}/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["choices"][0]["message"]

    def messages(self) -> list[Any]:
        made: list[Any] = []
        for r in self.records:
            if r["type"] in ("user", "context", "assistant"):
                role = "assistant" if r["type"] == "assistant" else "user"
                made.append({"role": role, "content": r["text"]})
            elif r["type"] == "result":
                made.append({"role": "tool", "tool_call_id": r["id"], "content": r["output"]})
            else:
                if made[-1]["role"] != "assistant":
                    made.append({"role": "assistant", "content": None})
                call = {"name": r["name"], "arguments": json.dumps(r["input"])}
                made[-1].setdefault("tool_calls", []).append({"id": r["id"], "type": "function", "function": call})
        return made


if __name__ == "__main__":
    words = argparse.ArgumentParser("toy")
    words.add_argument("--version", action="version", version="toy 1.0.0")
    words.add_argument("-p", "--prompt")
    words.add_argument("--resume")
    given = words.parse_args()
    session = Session(given.resume)
    for prompt in [given.prompt] if given.prompt else sys.stdin:
        session.turn(prompt.strip())
