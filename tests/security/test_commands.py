"""Every command that uses a bucket says who named it, and none sends a request to one that only a project
named. `wal-agent trust` is a person's."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.security.conftest import Clone
from wal_agent.config import Consents
from wal_agent.supervise import ancestry
from wal_agent.supervise.machine import RunDir, runtime_dir
from wal_agent.supervise.settings import load

COMMANDS = {
    "run": ("run", "generic", "--", "true"),
    "run --once": ("run", "generic", "--once", "--", "true"),
    "run --from": ("run", "generic", "--from", "1", "--", "true"),
    "resume": ("resume",),
    "list": ("list",),
    "stop": ("stop",),
    "status": ("status",),
    "status --json": ("status", "--json"),
    "log": ("log",),
    "ack": ("ack", "1", "--done"),
    "recover": ("recover", "--dry-run"),
    "restore": ("restore", "--to", "../out"),
    "diff": ("diff",),
    "stats": ("stats",),
    "effects": ("effects",),
    "report": ("report", "--html", "-"),
    "mark": ("mark",),
    "rewind": ("rewind",),
    "compact": ("compact", "--dry-run"),
    "trace": ("trace", "list"),
    "recall": ("recall", "deploy"),
    "task": ("task", "look"),
    "send": ("send", "stop"),
    "inbox": ("inbox",),
    "reply": ("reply", "a", "yes"),
    "publish": ("publish", "build", "it is out"),
    "gc": ("gc",),
    "rm": ("rm", "shop", "--yes"),
    "checkpoint": ("checkpoint", "list"),
    "state": ("state", "list"),
    "pause": ("pause", "--for", "1m"),
    "pause --end": ("pause", "--end"),
    "unlock": ("unlock", "--epoch", "1"),
    "unlock --damaged": ("unlock", "--damaged"),
    "doctor": ("doctor",),
    "doctor --forget": ("doctor", "--forget"),
    "rename": ("rename", "job", "other"),
    "fleet ls": ("fleet", "ls"),
    "fleet claim": ("fleet", "claim"),
    "fleet watch": ("fleet", "watch", "--on-crash", "true", "--once"),
}
# Commands that use none, or their own.
NO_BUCKET = {
    "acp",  # none before a session is opened; then as `run`
    "settle",
    "mcp",
    "step",
    "rules",
    "notify",
    "configure-hooks",
    "agents",
    "demo",
    "drill",
    "trust",
    "key",
    "uninstall",
}


@pytest.fixture
def store() -> Iterator[list[str]]:
    """An attacker's S3 on this machine; the requests that came."""
    came: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            came.append(f"{self.command} {self.path}")
            self.send_response(404)
            self.send_header("content-length", "0")
            self.end_headers()

        do_PUT = do_HEAD = do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.server_port}"
    os.environ |= {"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "mine", "AWS_REGION": "us-east-1"}
    os.environ["AWS_MAX_ATTEMPTS"] = "1"
    yield came
    server.shutdown()
    server.server_close()
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        del os.environ[name]


def test_each_command_is_in_this_test() -> None:
    from wal_agent.cli.commands import COMMANDS as TABLE

    assert {words[0] for words in COMMANDS.values()} | NO_BUCKET == set(TABLE)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_request_goes_to_a_bucket_that_only_a_project_named(clone: Clone, store: list[str], name: str) -> None:
    """The exploit: `status` in a clone sent requests signed with the user's keys."""
    clone.says('bucket = "s3://attacker/loot"')
    code, _, err = clone.run(*COMMANDS[name])
    assert (code, store) == (78, []), err
    if name != "doctor":
        assert "s3://attacker/loot" in err and "wal-agent trust" in err


def test_the_store_would_have_seen_them(clone: Clone, store: list[str]) -> None:
    """Once the person has allowed it, it is asked; so nothing else kept the requests above away."""
    clone.says('bucket = "s3://acme-agents/shop"')
    assert clone.run("trust", "--yes")[0] == 0
    err = clone.run("status")[2]
    assert store and all("/acme-agents" in request for request in store)
    assert f"wal-agent: bucket s3://acme-agents/shop (from {clone.file})\n" in err


@pytest.mark.parametrize("by", ["--bucket", "WAL_AGENT_BUCKET", "own"])
@pytest.mark.parametrize("name", COMMANDS)
def test_who_named_the_bucket_is_said_once_a_start(clone: Clone, name: str, by: str) -> None:
    url, words, place = f"file://{clone.folder.parent}/bucket", list(COMMANDS[name]), by
    if by == "--bucket":
        at = 2 if words[0] in ("fleet", "run", "checkpoint", "state", "trace") else 1
        words[at:at] = [by, url]
    elif by == "own":
        place = str(clone.person(f'bucket = "{url}"'))
    else:
        clone.monkeypatch.setenv(by, url)
    start = clone.process if words[0] in ("run", "fleet") else clone.run
    _, out, err = start(*words)
    assert err.count(f"wal-agent: bucket {url} (from {place})\n") == (words[0] == "run"), err
    assert "(from" not in out


def test_the_default_bucket_needs_no_words(clone: Clone) -> None:
    assert "(from" not in clone.run("status")[2]


# ---- wal-agent trust -----------------------------------------------------------------------------------------------


def allowed(clone: Clone) -> dict[str, str]:
    return Consents(clone.folder, clone.env).given()


def test_it_shows_and_allows_and_revokes(clone: Clone) -> None:
    clone.says('restart = "on"\nbucket = "gs://acme/agents"')
    clone.prompt("protocol.md", "Be \x1b[2J careful.")
    code, out, err = clone.run("trust", "--show")
    assert (code, err) == (0, "") and out.count("(not allowed)") == 3 and str(clone.file) in out
    assert "restart" in out and "gs://acme/agents" in out and "\x1b" not in out and allowed(clone) == {}
    code, _, err = clone.run("trust")  # nobody can be asked here
    assert code == 78 and "wal-agent trust --yes" in err and allowed(clone) == {}
    code, _, err = clone.run("trust", "--yes")
    assert code == 0 and set(allowed(clone)) == {"restart", "bucket", ".wal-agent/prompts/protocol.md"}
    code, out, _ = clone.run("trust", "--show")
    assert (code, out.count("(allowed)")) == (0, 3)
    clone.prompt("protocol.md", "Be careless.")
    assert clone.run("trust", "--show")[1].count("(not allowed)") == 1
    assert clone.run("trust", "--revoke")[0] == 0 and allowed(clone) == {}
    assert "nothing was allowed" in clone.run("trust", "--revoke")[2]


def test_nothing_to_allow(clone: Clone) -> None:
    code, out, _ = clone.run("trust")
    assert code == 0 and "nothing in" in out
    clone.says("zzz = 1")
    assert clone.run("trust")[0] == 78
    assert clone.run("trust", "--yes", "--revoke")[0] == 64


def test_an_agent_allows_nothing(clone: Clone) -> None:
    """What the agent types in its own run is no person's word."""
    clone.says('restart = "on"')
    clone.monkeypatch.setattr(ancestry, "outer_runs", lambda: (ancestry.OuterRun("0123456789abcdef", 1),))
    for words in ((), ("--yes",), ("--revoke",)):
        assert clone.run("trust", *words)[0] == 79
    assert clone.run("trust", "--show")[0] == 0 and allowed(clone) == {}


def at_terminal(clone: Clone, answer: str, *words: str, **env: str) -> tuple[int, str]:
    """A command whose standard streams are a terminal at which somebody types `answer`."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "wal_agent", *words],
        cwd=clone.folder,
        env={**clone.env, "PYTHONPATH": str(Path(__file__).parents[2]), **env},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    said = b""
    while True:
        try:
            more = os.read(ours, 4096)
        except OSError:
            break
        if not more:
            break
        said += more
    os.close(ours)
    return process.wait(60), said.decode("utf-8", "replace")


def test_at_a_terminal_the_person_is_asked_and_no_is_the_default(clone: Clone) -> None:
    clone.says('on_ambiguity = "resume"')
    for answer in ("\n", "n\n"):
        code, said = at_terminal(clone, answer, "run", "generic", "--", "true")
        assert code == 78 and "on_ambiguity" in said and str(clone.file) in said and "[y/N]" in said
        assert allowed(clone) == {}
    code, said = at_terminal(clone, "y\n", "run", "generic", "--", "true")
    assert code == 0 and allowed(clone) == {"on_ambiguity": '"resume"'}, said
    assert load("gemini", clone.folder, clone.env, {}).on_ambiguity == "resume"


def test_an_agent_at_a_terminal_of_its_own_is_not_asked(clone: Clone) -> None:
    """Gemini's shell tool is a terminal. This process holds a run's lock, so what it starts is below that run."""
    clone.says('bucket = "s3://attacker/loot"')
    run = RunDir.create(runtime_dir(clone.env), "0123456789abcdef")
    run.socket.touch()
    code, said = at_terminal(clone, "y\n", "status")
    run.end()
    assert code == 78 and "[y/N]" not in said and allowed(clone) == {}
