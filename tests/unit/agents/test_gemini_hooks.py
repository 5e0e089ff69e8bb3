"""Gemini's hooks: payloads, answers, the shell line, and the extension of a run."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import gemini as GEMINI
from wal_agent.agents import hook_line as agent_line
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Deny,
    HookEvent,
    HookSetup,
    ModelRequest,
    OtherEvent,
    SessionEnded,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from wal_agent.agents.gemini import hooks
from wal_agent.agents.gemini.hooks import EVENTS, EXTENSION, HOOK_TIMEOUT_MS, MARKER
from wal_agent.errors import ConfigError

BASE = '{"session_id":"s","transcript_path":"/t","cwd":"/w","hook_event_name":"x","timestamp":"2026"'
CALL = ',"tool_name":"run_shell_command","tool_input":{"command":"a  \\u00e9",  "n":1.0}'
UNANSWERED = TurnFailed("s", "other", "Gemini ended the turn without an answer of the model")


@pytest.mark.parametrize(
    ("event", "rest", "meant"),
    [
        ("SessionStart", ',"source":"resume"', SessionStarted("s", "resume")),
        ("BeforeAgent", ',"prompt":"p\\n"', TurnStarted("s", "p\n")),
        ("AfterAgent", ',"prompt":"p","prompt_response":"r"', TurnCompleted("s")),
        ("AfterAgent", ',"prompt":"p","prompt_response":"[no response text]"', UNANSWERED),
        ("PreCompress", ',"trigger":"auto"', ModelRequest("s")),
        ("Notification", ',"notification_type":"ToolPermission","message":"m"', AwaitingApproval("s", "m")),
        ("SessionEnd", ',"reason":"exit"', SessionEnded("s", "exit")),
        ("BeforeTool", CALL, ToolStarting("s", "run_shell_command", b'{"command":"a  \\u00e9",  "n":1.0}')),
        ("Unheard", "", OtherEvent("Unheard")),
    ],
)
def test_what_a_hook_says(event: str, rest: str, meant: HookEvent) -> None:
    assert GEMINI.parse(event, (BASE + rest + "}").encode()) == meant


INJECTION = "Command injection detected: command substitution syntax ($(), backticks) found in command arguments."


@pytest.mark.parametrize(
    ("response", "failed", "kept"),
    [
        ({"llmContent": "out", "returnDisplay": {"originalContent": "x" * 9}}, False, {"llmContent": "out"}),
        ({"llmContent": [{"text": "a"}], "error": None}, False, {"llmContent": [{"text": "a"}]}),
        (
            {"llmContent": "", "error": {"message": "no", "type": "t"}},
            True,
            {"llmContent": "", "error": {"message": "no", "type": "t"}},
        ),
        ({}, False, {"llmContent": ""}),
        # 0.61.0 gives no error with it
        ({"llmContent": INJECTION}, True, {"llmContent": INJECTION}),
        ({"llmContent": f"Output: {INJECTION}"}, False, {"llmContent": f"Output: {INJECTION}"}),
    ],
)
def test_an_end_keeps_what_the_model_got(response: object, failed: bool, kept: object) -> None:
    payload = (BASE + CALL + ',"tool_response":' + json.dumps(response) + "}").encode()
    event = GEMINI.parse("AfterTool", payload)
    assert isinstance(event, ToolEnded)
    assert (event.failed, json.loads(event.result)) == (failed, kept)


@pytest.mark.parametrize(
    ("llm", "clean"),
    [
        ("Output: all well, Exit Code: none", True),
        ("Output: ok\nProcess Group PGID: 7", True),
        ("Output: no\nExit Code: 1\nProcess Group PGID: 7", False),
        ("Exit Code: 128", False),
        ("Output: (empty)\nSignal: 9", False),
        ([{"text": "Error: no such file"}], False),
    ],
)
def test_a_command_that_went_wrong_is_no_clean_end(llm: object, clean: bool) -> None:
    payload = (BASE + CALL + ',"tool_response":' + json.dumps({"llmContent": llm}) + "}").encode()
    event = GEMINI.parse("AfterTool", payload)
    assert isinstance(event, ToolEnded) and (event.clean, event.failed) == (clean, False)


LIMIT = "Command was automatically cancelled because it exceeded the timeout of 0.1 minutes without output."
STOP = "Command was cancelled by user before it could complete. There was no output before it was cancelled."


@pytest.mark.parametrize(
    ("llm", "cut", "runs_on"),
    [
        (f"<untrusted_context>\n{LIMIT}\n</untrusted_context>", True, False),
        (STOP, True, False),
        ("Command is running in background. PID: 7. Initial output:\n", False, True),
        ("<untrusted_context>\nCommand moved to background (PID: 7). Output hidden.", False, True),
        (f"Output: {LIMIT}", False, False),
        ("Output: x\nCommand moved to background (PID: 7)", False, False),
    ],
)
def test_what_was_stopped_or_goes_on_is_not_over(llm: str, cut: bool, runs_on: bool) -> None:
    """I8; Gemini reports no error with any of them."""
    payload = (BASE + CALL + ',"tool_response":' + json.dumps({"llmContent": llm}) + "}").encode()
    event = GEMINI.parse("AfterTool", payload)
    assert isinstance(event, ToolEnded)
    assert (bool(event.cut), event.runs_on) == (cut, runs_on) and not (cut and event.clean)
    other = GEMINI.parse("AfterTool", payload.replace(b'"run_shell_command"', b'"say"'))
    assert isinstance(other, ToolEnded) and not other.cut and not other.runs_on


def test_half_of_a_surrogate_pair_does_not_lose_a_call() -> None:
    """JSON.stringify writes a cut emoji so; a refused payload is a denied call, or a lost result."""
    said = rb',"tool_name":"t","tool_input":{"a":"\ud83d"}'
    assert GEMINI.parse("BeforeTool", BASE.encode() + said + b"}") == ToolStarting("s", "t", rb'{"a":"\ufffd"}')
    ended = GEMINI.parse("AfterTool", BASE.encode() + said + rb',"tool_response":{"llmContent":"\ude00 \\ud83d"}}')
    assert isinstance(ended, ToolEnded) and ended.result == rb'{"llmContent":"\ufffd \\ud83d"}'
    assert GEMINI.parse("BeforeAgent", BASE.encode() + rb',"prompt":"\ud83d"}') == TurnStarted("s", "\ufffd")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"session_id":1}',
        (BASE + "}").encode(),
        (BASE + ',"tool_name":"t","tool_input":[]}').encode(),
        (BASE + ',"tool_name":"t","tool_input":"{}"}').encode(),
        b'{"session_id":"\xff"}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_understood_is_a_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"hook|object"):
        GEMINI.parse("BeforeTool", payload)


@given(st.sampled_from(EVENTS), st.binary(max_size=80))
def test_junk_is_never_another_error(event: str, payload: bytes) -> None:
    try:
        GEMINI.parse(event, payload)
    except ValueError:
        return


@given(st.text())
def test_a_refusal_is_one_line_that_the_shell_line_takes(reason: str) -> None:
    said = GEMINI.render("BeforeTool", Deny(reason))
    assert said.startswith(b"wal-agent:say {")
    assert said.endswith(b"}\0")
    assert said.count(b"\0") == 1
    assert b"\n" not in said
    assert json.loads(said[14:-1]) == {"decision": "deny", "reason": reason}


def test_the_other_answers() -> None:
    assert GEMINI.render("BeforeTool", Allow()) == b"wal-agent:allow\0"
    assert GEMINI.render("AfterTool", Deny("x")) == b"wal-agent:allow\0", "it ran: a refusal would replace its result"
    assert json.loads(GEMINI.render("BeforeAgent", Deny("x"))[14:-1]) == {"decision": "deny", "reason": "x"}
    stop = json.loads(GEMINI.render("BeforeTool", Deny("x", stop=True))[14:-1])
    assert stop == {"decision": "deny", "reason": "x", "continue": False, "stopReason": "x"}


def put(home: Path, run: str = "r1", skip: tuple[str, ...] = ()) -> Path:
    run_dir = home.parent / f"dir-{run}"
    run_dir.mkdir(exist_ok=True)
    (run_dir / "lock").touch()
    made = GEMINI.inject(HookSetup(run, run_dir, ("client",), skip), {"HOME": str(home)})
    assert made.env == {MARKER: run, "NODE_OPTIONS": f'--require "{run_dir}/gemini.cjs"'}
    (path,) = made.paths
    assert path == run_dir / f"extensions/wal-agent-{run}"
    assert not list(home.iterdir()), "I7: nothing of the user's changes"
    return path


def put_old(home: Path, run: str) -> Path:
    """Place the extension where earlier versions did, and macOS still does."""
    (home / ".gemini").mkdir(exist_ok=True)
    run_dir = home.parent / f"dir-{run}"
    run_dir.mkdir(exist_ok=True)
    (run_dir / "lock").touch()
    (path,) = EXTENSION.inject(HookSetup(run, run_dir, ("client",)), home / ".gemini", {}).paths
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


def test_the_folder(home: Path) -> None:
    path = put(home)
    manifest = json.loads((path / "gemini-extension.json").read_text())
    assert manifest["name"] == path.name
    assert (path / manifest["contextFileName"].replace("$" + MARKER, "r1")).exists()
    hooks = json.loads((path / "hooks/hooks.json").read_text())["hooks"]
    assert tuple(hooks) == EVENTS
    for ((group,),) in zip(hooks.values(), strict=True):
        (hook,) = group["hooks"]
        assert (hook["type"], hook["timeout"], "matcher" in group) == ("command", HOOK_TIMEOUT_MS, False)
        assert not re.search(r"\$\{(?!out#)", hook["command"]), "Gemini fills in ${...}"


def test_skipped_tools_start_no_process(home: Path) -> None:
    hooks = json.loads((put(home, skip=("read_file", "a.b")) / "hooks/hooks.json").read_text())["hooks"]
    assert {event for event, (group,) in hooks.items() if "matcher" in group} == {"BeforeTool", "AfterTool"}
    matcher = re.compile(hooks["BeforeTool"][0]["matcher"])
    tools = ("read_file", "a.b", "axb", "read_files", "xread_file", "run_shell_command")
    assert [t for t in tools if not matcher.search(t)] == ["read_file", "a.b"]


ON_A_MOUNT = """
import os, pathlib, subprocess, sys
from tests.unit.agents.test_gemini_hooks import put_old
from wal_agent.agents.hook_line import sweep_extensions
home = pathlib.Path(sys.argv[1])
extensions = home / ".gemini" / "extensions"
extensions.mkdir(parents=True)
subprocess.run(["mount", "-t", "tmpfs", "none", extensions], check=True)
put_old(home, "r1")
made = put_old(home, "r1")
print(*sorted(str(p.relative_to(extensions)) for p in extensions.rglob("*") if p.is_file()))
sweep_extensions(home / ".gemini")
print(*os.listdir(extensions), *os.listdir(home / ".gemini"))
"""


EXTENSION_FILES = (
    *(".gemini-extension-install.json", "gemini-extension.json"),
    *("hooks/hooks.json", "r1.md", "wal-agent.json"),
)


def test_extensions_on_a_mount_of_their_own(home: Path) -> None:
    """Nothing can be renamed into it (EXDEV)."""
    apart = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    words = [*apart, sys.executable, "-c", ON_A_MOUNT, str(home)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    there, left = done.stdout.splitlines() or [done.stderr, ""]
    of = "wal-agent-r1/"
    assert there.split() == [of + n for n in sorted(EXTENSION_FILES)]
    assert left == "extensions", "the dead run's is swept"


def test_the_same_run_again_replaces_its_folder(home: Path) -> None:
    put(home)
    made = put(home, skip=("x",))
    assert (made / "gemini-extension.json").exists()
    assert sorted(p.name for p in made.parent.parent.iterdir()) == ["extensions", "gemini.cjs", "lock"]


@pytest.mark.parametrize("run", ["", "a/b", "..", "x" * 65, "a b", "a$b"])
def test_a_run_that_is_no_name_is_refused(home: Path, run: str) -> None:
    with pytest.raises(ConfigError):
        GEMINI.inject(HookSetup(run, home, ("client",)), {"HOME": str(home)})


def test_paths_that_gemini_would_rewrite_are_refused(home: Path) -> None:
    with pytest.raises(ConfigError):
        GEMINI.inject(HookSetup("r", home / "$GEMINI_CWD", ("client",)), {"HOME": str(home)})


def test_a_run_folder_that_cannot_be_written_is_reported(home: Path) -> None:
    (home.parent / "dir-r1").mkdir()
    (home.parent / "dir-r1/extensions").write_text("a file")
    with pytest.raises(ConfigError, match="could not be placed"):
        put(home)


def test_the_users_node_options_are_kept(tmp_path: Path) -> None:
    run_dir = tmp_path / 'a "run"'
    run_dir.mkdir()
    made = GEMINI.inject(HookSetup("r1", run_dir, ("client",)), {"HOME": "/none", "NODE_OPTIONS": "--no-warnings"})
    script = """
        console.log(process.env.NODE_OPTIONS)
        const found = require("fs").promises.readdir("/none/.gemini/extensions")
        found.then((names) => console.log(names[0], process.env.NODE_OPTIONS))
    """
    env = {"PATH": os.environ["PATH"], "HOME": "/none", **made.env}
    done = subprocess.run(["node", "-e", script], env=env, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == made.env["NODE_OPTIONS"] == f'--no-warnings --require "{tmp_path}/a \\"run\\"/gemini.cjs"'
    place, _, options = second.rpartition(" ")
    assert os.path.normpath(f"/none/.gemini/extensions/{place}") == str(made.paths[0])
    assert options == "--no-warnings", "tools get what the user set"


def test_sweeping(home: Path) -> None:
    env = {"HOME": str(home)}
    dead, alive, elsewhere, broken = (put_old(home, run) for run in ("dead", "alive", "elsewhere", "broken"))
    (elsewhere / "wal-agent.json").write_text('{"host": "another", "lock": "/none"}')
    (broken / "wal-agent.json").write_text("{")
    users = home / ".gemini/extensions/wal-agent-of-the-user"
    users.mkdir()
    link = home / ".gemini/extensions/wal-agent-link"
    link.symlink_to(dead)
    stale, fresh = home / ".gemini/.wal-agent-x.new", home / ".gemini/.wal-agent-y.new"
    stale.mkdir()
    fresh.mkdir()
    os.utime(stale, (time.time() - 7200,) * 2)
    with (home.parent / "dir-alive/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        GEMINI.hooks.sweep(env, home)
        assert not dead.exists()
        assert all(path.exists() for path in (alive, elsewhere, broken, users, fresh))
        assert link.is_symlink()
        assert not stale.exists()
    GEMINI.hooks.sweep(env, home)
    assert not alive.exists()


def test_a_run_dir_that_is_gone_is_a_dead_run(home: Path) -> None:
    path = put_old(home, "gone")
    (home.parent / "dir-gone/lock").unlink()
    GEMINI.hooks.sweep({"HOME": str(home)}, home)
    assert not path.exists()


def test_extensions_that_are_a_link_elsewhere(home: Path) -> None:
    elsewhere = home.parent / "dotfiles/extensions"
    elsewhere.mkdir(parents=True)
    (home / ".gemini").mkdir()
    (home / ".gemini/extensions").symlink_to(elsewhere)
    put_old(home, "r1")
    assert (elsewhere / "wal-agent-r1/gemini-extension.json").exists()
    GEMINI.hooks.sweep({"HOME": str(home)}, home)
    assert [p.name for p in elsewhere.parent.rglob("*")] == ["extensions"]


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
    text = hooks.hook_line(HookSetup("run", tmp_path, program), event)
    env = {"PATH": os.environ["PATH"]} | ({hooks.MARKER: "run"} if mine else {})
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
    text = hooks.hook_line(HookSetup("run", tmp_path, ("client",)), "BeforeTool")
    first, _, _ = text.partition("\n")
    done = subprocess.run(["bash", "-c", first + "\n)("], env={"PATH": "/bin"}, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_deadlines_nest() -> None:
    for firm in (True, False):
        assert agent_line.CLIENT_SECONDS[firm] < agent_line.SHELL_SECONDS[firm] < hooks.HOOK_TIMEOUT_MS / 1000
    assert agent_line.CLIENT_SECONDS[True] > 20, "the server's own deadline for an append"
