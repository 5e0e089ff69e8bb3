"""What a tool does to be taken for a person (I8), by processes as a run and its tools are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wal_agent.supervise.ancestry import Process, ancestry_of

RUN = "0123456789abcdef"
TRUST = f"{sys.executable} -P -m wal_agent trust --yes"
CONSENT = ".local/state/wal-agent/trusted"  # below the home folder

# A supervisor: its mark, its lock and its socket, which says who asked; then a tool that runs a command of a shell.
SUPERVISOR = """
import json, os, subprocess, sys
from pathlib import Path
from wal_agent.supervise.hook_server import HookServer
from wal_agent.supervise.machine import RunDir, runtime_dir
from wal_agent.supervise.processes import become_subreaper
run = RunDir.create(runtime_dir(os.environ), sys.argv[1])
def answer(asked):
    return json.dumps({"outside": asked.from_outside}).encode()
server = HookServer(run.socket, run.run, answer, print)
server.start()
become_subreaper()
done = subprocess.run(["sh", "-c", sys.argv[2]], env={**os.environ, "RUN_DIR": str(run.path)}, close_fds=True)
sys.exit(done.returncode)
"""
NESTED = """
import os, subprocess, sys
left = int(sys.argv[1])
words = [sys.executable, __file__, str(left - 1), *sys.argv[2:]] if left else sys.argv[2:]
sys.exit(subprocess.run(words).returncode)
"""
ASK = f"""
import os, sys
from pathlib import Path
from wal_agent.supervise.control import STATUS, ask_socket
said = ask_socket(Path(os.environ["RUN_DIR"]) / "hook.sock", {RUN!r}, STATUS, {{}})
sys.exit(79 if said == {{"outside": False}} else 0)
"""
CAN_UNSHARE = not subprocess.run(["unshare", "-Ur", "true"], check=False, capture_output=True).returncode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/wal-agent.toml").write_text('bucket = "file:///elsewhere"\n')
    (tmp_path / "nested.py").write_text(NESTED)
    (tmp_path / "ask.py").write_text(ASK)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WAL_AGENT_", "XDG_"))}
    runtime = f"/tmp/wa-p{os.getpid()}"
    return env | {"HOME": str(folder), "WAL_AGENT_RUNTIME_DIR": runtime, "PYTHONPATH": str(Path(__file__).parents[2])}


def tool(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """`command`, as a tool of a run types it."""
    env = environment(folder)
    try:
        return subprocess.run(
            [sys.executable, "-c", SUPERVISOR, RUN, command],
            cwd=folder / "project",
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        shutil.rmtree(env["WAL_AGENT_RUNTIME_DIR"], ignore_errors=True)


WAYS = {
    "plainly": TRUST,
    "below 70 processes": f"{sys.executable} ../nested.py 70 {TRUST}",
    "with the lock moved away": f"mv $RUN_DIR/lock $RUN_DIR/x; {TRUST}",
    "with another lock in its place": f"rm $RUN_DIR/lock; : >$RUN_DIR/lock; {TRUST}",
    "with the socket moved away": f"mv $RUN_DIR/hook.sock $RUN_DIR/x; {TRUST}",
    "with the folder moved away": f"mv $RUN_DIR ../away; {TRUST}",
    "by an orphan": f"(setsid sh -c '{TRUST}; echo $? >../code' &); while ! [ -s ../code ]; do sleep 0.05; done; "
    "exit $(cat ../code)",
    "in a user namespace": f"unshare -Ur {TRUST}",
    "in a pid namespace with the /proc of the run": f"unshare -Ur --pid --fork {TRUST}",
}


@pytest.mark.parametrize("command", WAYS.values(), ids=WAYS.keys())
def test_a_tool_gives_no_consent(folder: Path, command: str) -> None:
    if "unshare" in command and not CAN_UNSHARE:
        pytest.fail("no user namespaces here")
    done = tool(folder, command)
    assert done.returncode == 79, done.stderr
    assert not (folder / CONSENT).exists()


@pytest.mark.parametrize("way", ["server", "namespace"])
def test_what_leaves_the_processes_of_the_run_is_not_found(folder: Path, way: str) -> None:
    """The limit that GUARANTEES names, and the exploits above, as they look where they work: something that ran before
    types it (cron, a tmux server), and a pid namespace shows nothing of the processes around it."""
    wait = "while ! [ -s ../code ]; do sleep 0.05; done; exit $(cat ../code)"
    if way == "namespace":
        done = tool(folder, f"unshare -Ur --pid --fork --mount-proc {TRUST}")
    else:
        words = ["sh", "-c", f"while ! [ -e ../asked ]; do sleep 0.05; done; {TRUST}; echo $? >../code"]
        server = subprocess.Popen(words, cwd=folder / "project", env=environment(folder))
        done = tool(folder, f": >../asked; {wait}")
        server.wait()
    assert done.returncode == 0, done.stderr
    assert (folder / CONSENT).exists()


@pytest.mark.parametrize("depth", [0, 70])
def test_a_run_knows_its_own_tools_at_any_depth(folder: Path, depth: int) -> None:
    """So that `ack` of a tool is never recorded as a person's."""
    done = tool(folder, f"{sys.executable} ../nested.py {depth} {sys.executable} ../ask.py")
    assert done.returncode == 79, done.stderr


def test_what_is_not_known_is_no_persons() -> None:
    """A chain that does not end at the first process: a hidden process of this user, or one without end."""

    def hidden(pid: int, words: bool) -> Process | None:
        return Process(pid, os.getppid(), 5.0, pid) if pid == 5000 else None

    def endless(pid: int, words: bool) -> Process | None:
        return Process(pid, pid + 1, 5.0, pid)

    def another_number(pid: int, words: bool) -> Process | None:
        return Process(pid, pid - 1, float(10_000 - pid), pid)

    assert [ancestry_of(5000, 0, read).end for read in (hidden, endless, another_number)] == ["unknown"] * 3
