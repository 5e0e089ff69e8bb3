"""The shell line, run by bash as Gemini runs it, without Gemini: every way in which a client can fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wal_agent.agents import hook_line as agent_line
from wal_agent.agents.base import HookSetup
from wal_agent.agents.gemini import line

ANSWERS = {
    "missing": None,
    "not-executable": "",
    "exit-1": "import sys; sys.exit(1)",
    "silent": "",
    "garbage": "print('hello')",
    "json": """print('{"decision": "allow"}', end="\\0")""",
    "allow-without-end": "print('wal-agent:allow', end='')",
    "allow-and-more": "print('wal-agent:allow more', end='\\0')",
    "something-before": "print(' wal-agent:allow', end='\\0')",
    "say-cut": "print('wal-agent:say {', end='\\0')",
    "say-no-json": "print('wal-agent:say x}', end='\\0')",
    "killed": "import os; print('wal-agent:allow', end='', flush=True); os.kill(os.getpid(), 9)",
    "on-stderr": "import sys; print('wal-agent:allow', end='\\0', file=sys.stderr)",
}


def hook(
    tmp_path: Path, code: str | None, event: str = "BeforeTool", mine: bool = True, pid: int | None = None
) -> subprocess.CompletedProcess[bytes]:
    client = tmp_path / "client.py"
    if code is not None:
        client.write_text(code)
    if pid is not None:
        (tmp_path / "agent.pid").write_text(f"{pid}\n")
    program = (sys.executable, str(client)) if code is not None else (str(client),)
    text = line.hook_line(HookSetup("run", tmp_path, program), event)
    env = {"PATH": os.environ["PATH"]} | ({line.MARKER: "run"} if mine else {})
    return subprocess.run(["bash", "-c", text], env=env, input=b"{}", capture_output=True, timeout=60, check=False)


def decision(done: subprocess.CompletedProcess[bytes]) -> object:
    assert (done.returncode, done.stderr) == (0, b"")
    return json.loads(done.stdout).get("decision")


@pytest.mark.parametrize("code", ANSWERS.values(), ids=ANSWERS)
def test_a_broken_client_denies_and_elsewhere_is_silent(tmp_path: Path, code: str | None) -> None:
    assert decision(hook(tmp_path, code)) == "deny"
    for event in ("AfterTool", "SessionStart"):
        done = hook(tmp_path, code, event)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "import signal; signal.raise_signal(signal.SIGSTOP)"])
def test_a_hanging_client_denies_in_time(tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_line, "SHELL_SECONDS", {True: 1, False: 1})
    start = time.monotonic()
    told = f"import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); {code}"
    assert decision(hook(tmp_path, told)) == "deny"
    assert time.monotonic() - start < 30
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()) and time.monotonic() - start < 60:
        time.sleep(0.05)
    os.kill(int(pid.read_text()), signal.SIGKILL)


def test_allow_says_nothing_and_a_word_is_handed_on(tmp_path: Path) -> None:
    done = hook(tmp_path, "print('wal-agent:allow', end='\\0')")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    said = '{"decision": "deny", "reason": "it\'s $HOME `x` \\\\u0000 %s ünï"}'
    done = hook(tmp_path, f"import sys; sys.stdout.buffer.write(b'wal-agent:say ' + {said!r}.encode() + bytes(1))")
    assert done.stdout.decode() == said


def test_the_client_gets_the_payload_and_who_asks(tmp_path: Path) -> None:
    code = "import sys; open(sys.argv[1] + '.seen', 'w').write(repr((sys.argv[2:], sys.stdin.read())))"
    hook(tmp_path, code, "AfterTool")
    seen = (tmp_path / "hook.sock.seen").read_text()
    assert eval(seen) == (["run", "gemini", "AfterTool", str(os.getpid()), "25"], "{}")


def test_who_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    """No process is started for it, whatever the client is; by the marker or by the parent's pid it is ours."""
    for pid in (None, os.getpid() + 1):
        done = hook(tmp_path, None, mine=False, pid=pid)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert decision(hook(tmp_path, None, mine=False, pid=os.getpid())) == "deny"


def test_a_shell_that_cannot_read_the_second_line_still_leaves_strangers_alone(tmp_path: Path) -> None:
    text = line.hook_line(HookSetup("run", tmp_path, ("client",)), "BeforeTool")
    first, _, _ = text.partition("\n")
    done = subprocess.run(["bash", "-c", first + "\n)("], env={"PATH": "/bin"}, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_deadlines_nest() -> None:
    for firm in (True, False):
        assert agent_line.CLIENT_SECONDS[firm] < agent_line.SHELL_SECONDS[firm] < line.HOOK_TIMEOUT_MS / 1000
    assert agent_line.CLIENT_SECONDS[True] > 20, "the server's own deadline for an append"
