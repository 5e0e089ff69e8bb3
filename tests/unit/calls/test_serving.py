"""I8: which calls are meant to keep running, so that no recovery asks how they ended."""

from __future__ import annotations

import json

import pytest

from wal_agent.calls.call import ReadCall
from wal_agent.calls.reading import find_runs
from wal_agent.calls.rules.table import load_rules
from wal_agent.calls.serving import serves


def is_server(command: str, tool: str = "Bash") -> bool:
    return serves(find_runs(ReadCall(tool, json.dumps({"command": command}).encode()), "/w", load_rules()))


@pytest.mark.parametrize(
    "command",
    [
        *("npm run dev", "cd app && npm run dev", "npx vite", "PORT=3 npm start", "npm run dev:api", "tsc -w"),
        *("python3 -m http.server 80", "tail -f log", "nohup npm run dev > dev.log 2>&1 &", "uvicorn app:app --reload"),
    ],
)
def test_servers_and_watchers(command: str) -> None:
    assert is_server(command)


@pytest.mark.parametrize(
    "command",
    [
        *("./charge.sh &", "npm install && npm run dev", "./charge.sh & npm run dev", "npm run dev; ./charge.sh"),
        *("npm run deploy", "npm run devastate", "vite build", "$(x)", "sh -c './charge.sh; npm start'", "tail log"),
        *("watch ./charge.sh", "nodemon -x ./charge.sh", "npm run dev $X", "echo hi", ""),
    ],
)
def test_what_does_something_else_as_well_is_none(command: str) -> None:
    assert not is_server(command)


def test_a_watching_tool() -> None:
    assert is_server("tail -f x", "Monitor")
