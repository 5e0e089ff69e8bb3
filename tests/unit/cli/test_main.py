"""cli/main.py: where errors become one line and the documented exit code. stdout is for --json and --help alone."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from tests.unit.cli.shelf import EVIL, KEYS, LAST, SECRET, Run, full
from wal_agent import __version__, errors
from wal_agent.cli import checkpoint, commands, fleet, rewrite, rules, steps
from wal_agent.cli.commands import COMMANDS as TABLE
from wal_agent.cli.commands import EVERYDAY, GROUPS, app
from wal_agent.cli.help import EXAMPLES
from wal_agent.operate import dry_run
from wal_agent.text import ABOVE, say, why_it_failed

ROOT = Path(__file__).parents[3]
COMMANDS = list(TABLE)

# ---- exit codes


ERRORS = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.WalAgentError)]
PROMISED = {
    "WalAgentError": 70,
    "UsageError": 64,
    "BucketError": 70,
    "NotFound": 70,
    "Conflict": 70,
    "Unavailable": 69,
    "Unmounted": 69,
    "Denied": 77,
    "Damaged": 73,
    "Newer": 78,
    "LeaseHeld": 75,
    "FolderInUse": 75,
    "NoJob": 1,
    "Exhausted": 75,
    "Fenced": 76,
    "ConfigError": 78,
    "Misconfigured": 78,
    "Unreadable": 78,
    "NotThisJob": 78,
    "PersonNeeded": 79,
    "NotYourJob": 79,
    "CrashLoop": 80,
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.__name__)
def test_each_error_is_one_line_and_its_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: type[errors.WalAgentError]
) -> None:
    """The codes are promises to scripts and to schedulers (OPERATIONS.md)."""

    def failing(prog_name: str, standalone_mode: bool) -> int:
        raise error(f"It {EVIL}broke.", "Mend it.")

    monkeypatch.setattr(commands, "app", failing)
    assert run() == (PROMISED[error.__name__], "", "wal-agent: It ?[2J?31m?broke. Mend it.\n")


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), typer.Abort()], ids=repr)
def test_an_interrupted_command_says_nothing(run: Run, monkeypatch: pytest.MonkeyPatch, raised: BaseException) -> None:
    def failing(prog_name: str, standalone_mode: bool) -> int:
        raise raised

    monkeypatch.setattr(commands, "app", failing)
    assert run() == (130, "", "")


def test_a_bug_is_one_line_that_names_a_private_report(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def failing(prog_name: str, standalone_mode: bool) -> int:
        raise RuntimeError(f"password={SECRET}")

    monkeypatch.setattr(commands, "app", failing)
    code, out, err = run()
    (report,) = (tmp_path / "home" / ".local" / "state" / "wal-agent" / "reports").iterdir()
    assert (code, out, err.count("\n")) == (70, "", 1)
    assert "RuntimeError" in err and str(report) in err and SECRET not in err + report.read_text()
    assert report.stat().st_mode & 0o777 == 0o600


# ---- the command line


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(run: Run, command: str) -> None:
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "") and out.startswith("Usage: wal-agent " + command)
    assert run(command, "-h") == (0, out, "")


@pytest.mark.parametrize("group", [(), ("fleet",), ("rules",)])
def test_help_cuts_no_sentence(run: Run, group: tuple[str, ...]) -> None:
    code, out, _ = run(*group, "--help")
    assert code == 0 and "..." not in out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (("run", "gemni"), "gemini?"),
        (("statu",), "'status'"),
        (("status", "--wach"), "--watch"),
        (("log", "--agent", "claud"), "claude?"),
    ],
)
def test_a_misspelt_word_gets_the_one_that_was_meant(run: Run, args: tuple[str, ...], meant: str) -> None:
    code, _, err = run(*args)
    assert code == 64 and meant in err


def test_an_unknown_cli_is_led_to_generic(run: Run) -> None:
    code, _, err = run("run", "mycli")
    assert code == 64 and "wal-agent run generic -- COMMAND" in err


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("run c", "claude codex copilot"),
        ("doctor g", "gemini generic"),
        ("drill g", "gemini generic"),
        ("demo --agent cl", "claude"),
        ("configure-hooks --agent q", "qwen"),
        ("status --agent p", "pi"),
        ("run gemini --durability s", "sync"),
        ("fleet w", "watch"),
        ("statu", "status"),
    ],
)
def test_the_shell_completes(tmp_path: Path, typed: str, names: str) -> None:
    count = str(len(typed.split()))
    asked = {"_WAL_AGENT_COMPLETE": "complete_bash", "COMP_WORDS": f"wal-agent {typed}", "COMP_CWORD": count}
    script = "import sys; sys.argv = ['wal-agent']; from wal_agent.cli.main import main; main()"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), **asked}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=tmp_path, capture_output=True, check=True, timeout=60
    )
    assert done.stdout.decode().split() == names.split()


def test_the_version(run: Run) -> None:
    assert run("--version") == (0, f"{__version__}\n", "")


def test_nothing_asked_is_the_help_on_stderr(run: Run) -> None:
    code, out, err = run()
    assert (code, out) == (64, "") and err.startswith("Usage: wal-agent") and all(c in err for c in COMMANDS)


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["status", "--nonsense"],
        ["run"],
        ["run", "nonsense"],
        ["run", "gemini", "--ttl", "0"],
        ["run", "gemini", "--fresh", "--continue"],
        ["status", "--agent", "nonsense"],
        ["log", "--agent", "nonsense"],
        ["recover", "--dry-run", "--agent", "nonsense"],
        ["ack", "1", "--done", "--agent", "nonsense"],
        ["ack", "1x", "--done"],
        ["ack", "1"],
        ["ack", "1", "--done", "--not-done"],
        ["ack", "1", "--done", "--job", "none"],
        ["log", "-n", "-1"],
        ["status", "--job", "../x"],
        ["status", "--job", "--handoff"],
        ["run", "codex", "--job", "--handoff=gemini"],
        ["stats", "--job", "-x"],
        ["doctor", "--forget", "--job", "-x"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_64_and_one_line(run: Run, args: list[str]) -> None:
    code, out, err = run(*args)
    assert (code, out, err.count("\n")) == (64, "", 1) and err.startswith("wal-agent: ")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ("nonsense", "No such command 'nonsense'. See: wal-agent --help"),
        ("claude -p x", "claude is an agent, not a command. Did you mean: wal-agent run claude? See: wal-agent --help"),
        ("fleet nonsense", "No such command 'nonsense'. See: wal-agent fleet --help"),
        ("run", "Missing argument 'AGENT'. See: wal-agent run --help"),
        (
            "run gemini --yolo",
            "No such option: --yolo. Put the agent's options after `--`: wal-agent run gemini -- --yolo "
            "(see: wal-agent run --help)",
        ),
        ("pause --for", "Option '--for' requires an argument. See: wal-agent pause --help"),
        ("status --jsn", "No such option: --jsn. Did you mean --json? See: wal-agent status --help"),
        ("log -n x", "--number must be a number (got x). See: wal-agent log --help"),
        ("log -n -1", "--number must be at least 0 (got -1). See: wal-agent log --help"),
        (
            "drill gemini --point later",
            "There is no kill point later. Possible: before, between, after, thinking, recovery, wrapper, machine, "
            "sigterm, background, esc, queued",
        ),
        ("drill gemini --rounds 5000", "--rounds must be 1 to 1000 (got 5000). See: wal-agent drill --help"),
        (
            "status gemni",
            "Got unexpected extra argument(s) (gemni). An agent is named with --agent NAME, a job with --job NAME. "
            "(see: wal-agent status --help)",
        ),
        ("agents gemni", "Got unexpected extra argument(s) (gemni). See: wal-agent agents --help"),
    ],
)
def test_a_wrong_command_line_leads_to_the_right_page(run: Run, args: str, says: str) -> None:
    assert run(*args.split()) == (64, "", f"wal-agent: {says}\n")


def test_a_stored_job_with_a_name_like_an_option_is_still_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a typed --job is checked: WAL_AGENT_JOB still names such a job."""
    monkeypatch.setenv("WAL_AGENT_JOB", "-x")
    assert "There is no job -x in " in run("status")[2]


def test_a_project_file_that_is_wrong_is_78(run: Run) -> None:
    Path("wal-agent.toml").write_text("nonsense = 1\n")
    code, out, err = run("status")
    assert (code, out, err.count("\n")) == (78, "", 1) and "wal-agent.toml" in err


# ---- looking at a job


def test_people_read_on_stderr_and_scripts_on_stdout(run: Run, tmp_path: Path) -> None:
    shelf = full(tmp_path / "b", host=f"vm{EVIL}")
    where = ["--bucket", shelf.url, "--job", "shop"]
    for command in (("status",), ("log", "-n", "0")):
        code, out, err = run(*command, *where)
        assert (code, err) == (0, "") and "vm?[2J?31m?" in out
        assert not any(c in out for c in EVIL if not c.isprintable()) and SECRET not in out
        code, out, err = run(*command, *where, "--json")
        assert (code, err) == (0, "") and out.isascii() and SECRET not in out
        assert [json.loads(line) for line in out.splitlines()]


def test_the_log_is_cut_at_its_old_end(run: Run, tmp_path: Path) -> None:
    where = ["--bucket", full(tmp_path / "b").url, "--job", "shop"]
    assert [json.loads(x)["record"] for x in run("log", *where, "--json", "-n", "2")[1].splitlines()] == [
        LAST - 1,
        LAST,
    ]
    assert len(run("log", *where, "--json", "-n", "0")[1].splitlines()) == LAST
    _, shown, unread = run("log", *where, "-n", "2")
    assert [line.split()[0] for line in shown.splitlines()] == [str(LAST), str(LAST - 1)]
    assert unread.startswith(f"Only records {LAST - 1} to {LAST} were read") and unread.endswith(
        f"{' '.join(where[:2])} -n 0\n"
    )
    assert "Only records" not in run("log", *where, "-n", "0")[2]
    told = [json.loads(x)["type"] for x in run("log", *where, "--crashes", "--json")[1].splitlines()]
    assert told == ["opening", "recovery", "run_ended"]


def test_the_prompt_of_a_dry_run_has_a_heading(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It speaks to an agent, of what the start will have done by then."""
    monkeypatch.setattr(
        dry_run, "foresee_start", lambda *_: dry_run.ForeseenStart("a plan", ["  row"], "1 process was ended now.")
    )
    assert run("recover", "--dry-run", "--agent", "gemini")[1].splitlines() == [
        "a plan (nothing was changed)",
        "  row",
        "",
        "The agent would read:",
        "",
        "1 process was ended now.",
    ]


def test_a_held_job_is_75_and_a_damaged_one_73(run: Run, tmp_path: Path) -> None:
    shelf = full(tmp_path / "b")
    where = ["--bucket", shelf.url, "--job", "shop"]
    code, out, err = run("ack", "2", "--done", *where)
    assert (code, out) == (75, "") and "running on vm-1" in err
    bucket = shelf.bucket
    bucket.put(KEYS.lease, b"junk", if_version=bucket.get(KEYS.lease).version)
    code, out, err = run("status", *where)
    assert (code, out, err.count("\n")) == (73, "", 1) and "damaged" in err


# ---- as a process


def process(tmp_path: Path, *args: str, shell: str = '"$@"', stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    argv = ["sh", "-c", shell, "sh", sys.executable, "-m", "wal_agent", *args]
    return subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=stdout, stderr=subprocess.PIPE)


def test_a_reader_that_goes_away_is_no_news(tmp_path: Path) -> None:
    """`wal-agent log --json | head -1`, for a log that fits the pipe's buffer and for one that does not; other commands
    and help too."""
    shelf = full(tmp_path / "b")
    at = ("--bucket", shelf.url, "--job", "shop")
    for words in (
        ("log", "--json", "-n", "1", *at),
        ("log", "--json", "-n", "0", *at),
        ("log", "-n", "1", *at),
        ("status", *at),
        ("list", "--json", *at[:2]),
        ("agents",),
        ("log", "--help"),
    ):
        read, write = os.pipe()
        os.close(read)
        command = process(tmp_path, *words, stdout=write)
        os.close(write)
        _, err = command.communicate(timeout=60)
        assert (command.returncode, err) == (0, b""), words


def test_a_real_process_exits_with_the_promised_codes(tmp_path: Path) -> None:
    """Codes pass through the real entry, also when stderr is closed; nothing goes to stdout instead."""
    full(tmp_path / "b")
    held = process(tmp_path, "ack", "2", "--done", "--bucket", (tmp_path / "b").as_uri(), "--job", "shop")
    out, err = held.communicate(timeout=60)
    assert (held.returncode, out) == (75, b"") and err.startswith(b"wal-agent: job shop is running on vm-1")
    folder = (tmp_path / "gone").as_posix()
    lost = process(tmp_path, "list", shell=f'mkdir {folder}; cd {folder}; rmdir {folder}; "$@"')
    out, err = lost.communicate(timeout=60)
    assert (lost.returncode, out, err.count(b"\n")) == (64, b"", 1)
    closed = process(tmp_path, "run", "nonsense", shell='"$@" 2>&-')
    assert closed.communicate(timeout=60)[0] == b"" and closed.returncode == 64


def test_exit_codes_are_read_where_a_parent_ignored_its_childrens_ends(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    parent = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    shell = f'cd work; exec {shlex.quote(sys.executable)} -c {shlex.quote(parent)} "$@"'
    run = process(tmp_path, "run", "generic", "--", "sh", "-c", "exit 5", shell=shell)
    run.communicate(timeout=120)
    assert run.returncode == 5


def test_an_agent_runs_where_all_standard_files_are_closed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    words = ("run", "generic", "--", "touch", "ran")
    run = process(tmp_path, *words, shell='cd work; exec "$@" <&- >&- 2>&-')
    run.communicate(timeout=120)
    assert (run.returncode, (tmp_path / "work" / "ran").exists()) == (0, True)


@pytest.mark.parametrize("words", sorted(EXAMPLES))
def test_the_examples_of_the_help_are_commands(words: str) -> None:
    """Parsed as they would be typed, and not run."""
    root: Any = typer.main.get_command(app)
    for example in EXAMPLES[words]:
        name, *args = shlex.split(example)
        command, context = root, root.make_context(name, list(args))
        while hasattr(command, "commands") and (context._protected_args or context.args):
            _, command, args = command.resolve_command(context, [*context._protected_args, *context.args])
            context = command.make_context(command.name, args, parent=context)
        assert context.command_path == f"wal-agent {words}"


def test_each_command_has_examples_that_its_help_shows_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    commands = {name for name, entry in TABLE.items() if not entry.where.endswith(":app")}
    commands.add("checkpoint")  # a group, and a command by itself
    for name, group in (
        ("rules", rules.app),
        ("fleet", fleet.app),
        ("checkpoint", checkpoint.app),
        ("state", steps.app),
        ("trace", rewrite.app),
    ):
        commands |= {f"{name} {c.name}" for c in group.registered_commands}
    assert commands == set(EXAMPLES)
    for words in ("", "fleet", "rules", "state", "trace"):  # groups: the first example of a command
        assert re.search(r"^Examples:\n(  wal-agent .+\n)+", run(*words.split(), "--help")[1], re.MULTILINE), words
    for words in ("run", "fleet watch", "ack"):
        out = run(*words.split(), "--help")[1]
        assert all(f"  {example}\n" in out for example in EXAMPLES[words])
    headings = re.findall(r"^([A-Z][^\n]*):$", run("run", "--help")[1], re.MULTILINE)
    assert headings[:5] == ["Arguments", "Which job", "This start", "Crashes and hangs", "Saving"]
    assert "--on-ambiguity ask|halt|resume" in run("run", "--help")[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("claude", "--handoff"), "--handoff needs the job's name."),
        (("claude", "--from-agent", "claude"), "--from-agent names claude itself."),
        (("claude", "--from-agent", "clod"), "clod"),
        (("claude", "--handoff", "--job", "j", "--fresh"), "use only one of them"),
        (("generic", "--handoff", "--job", "j"), "No job can be handed to generic"),
        (("claude", "--on-quota", "handoff:codex"), "--on-quota handoff works with --restart only."),
        (("claude", "--restart", "--on-quota", "handoff:claude"), "No job of claude can be handed to claude."),
        (("claude", "--restart", "--on-quota", "handoff:clod"), "clod"),
        (("claude", "--restart", "--on-quota", "handoff:../x"), "must be wait, or handoff"),
    ],
)
def test_a_handoff_that_cannot_be_is_refused_before_anything_runs(run: Run, words: tuple[str, ...], says: str) -> None:
    code, out, err = run("run", *words)
    assert (code, out) == (64, "") and says in err


@pytest.mark.parametrize(
    ("words", "folder", "code"),
    [
        (("run", "generic", "--", "echo", "\udcff"), "shop", 64),
        (("run", "generic", "--", "true"), "\udcff", 78),
        (("run", "generic", "--bucket", "file:///tmp/\udcff", "--", "true"), "shop", 78),
        (("list", "--bucket", "/proc/self/\udcff"), "shop", 0),  # becomes %FF in a URL
        (("status", "--bucket", "s3://\udcff"), "shop", 78),
    ],
)
def test_what_no_log_can_hold_is_refused(
    words: tuple[str, ...], folder: str, code: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are not UTF-8: the line is printable, and the bucket stays as it is."""
    (tmp_path / folder).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / folder)
    found, out, err = run(*words)
    assert (found, out) == (code, "") and err.encode()
    assert not (tmp_path / "home/.local/state/wal-agent/bucket").exists()


def test_a_message_of_another_wal_agent_has_the_name_once(capsys: pytest.CaptureFixture[str]) -> None:
    """As `task` passes on what its child said."""
    say("wal-agent: the bucket is away")
    assert capsys.readouterr().err == "wal-agent: the bucket is away\n"


def test_a_failed_task_prints_why_and_no_warnings_of_its_agent() -> None:
    warned = "Warning: 256-color support not detected.\nLoaded cached credentials.\n"
    why = ["wal-agent: gemini: exit code 41.", "wal-agent: a person is needed."]
    assert why_it_failed(warned + "wal-agent: job j, saved to b\n" + "\n".join(why)) == why
    above = f"wal-agent: gemini ended before its session began {ABOVE}."
    assert why_it_failed(f"{warned}Not here.\n{above}\n") == ["Not here.", above]
    assert why_it_failed(f"{warned}Please set an Auth method.\n\n") == ["Please set an Auth method."]


@pytest.mark.parametrize(
    ("words", "says"),
    [("help", "Usage: wal-agent"), ("help status", "Usage: wal-agent status"), ("version", __version__)],
)
def test_help_and_version_are_commands_too(run: Run, words: str, says: str) -> None:
    code, out, err = run(*words.split())
    assert code == 0 and says in out, err


def test_the_first_help_has_twelve_commands_with_a_sentence_and_the_others_by_name(run: Run) -> None:
    others = [name for names in GROUPS.values() for name in names.split()]
    assert len(EVERYDAY) == 12 and sorted([*EVERYDAY, *others]) == sorted(TABLE)
    out = run("--help")[1].partition("Commands:")[2]
    assert all(re.search(rf"(?<![\w-]){name}(?![\w-])", out) for name in TABLE)
