"""Every command that the product prints: the command line takes it, and it names its job where a person reads it.

The commands are read from the code: all strings but docstrings, with a word in place of each value.
"""

from __future__ import annotations

import ast
import contextvars
import functools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from tests.unit.bucket.test_encrypted_bucket import RIGHT, open_job
from tests.unit.cli.shelf import KEYS, Run, commit, full, records
from wal_agent.agents import AGENTS
from wal_agent.bucket.file import FileBucket
from wal_agent.cli.commands import COMMANDS, app
from wal_agent.cli.main import main
from wal_agent.config import Settings, Source
from wal_agent.text import JOB_VERBS, MEANT, name_job
from wal_agent.wal.job import close_job

PACKAGE = Path(__file__).parents[3] / "wal_agent"
VALUE = re.compile("⟨([^⟩]*)⟩")
OPTIONS, BUCKET = "⟨options⟩", "⟨bucket⟩"  # in a command that text.command makes
FOR_AGENTS = {  # in a tool of a run, which knows its job
    "agents/session_files.py",
    "conversation/checkpoint.py",
    "wording/messages.py",
    "conversation/rewrite.py",
    "conversation/tasks.py",
    "supervise/steps.py",
    "messages/requests.py",
}
NO_JOB = re.compile(
    r"--kept|--help|-->|For example|recall \||recover --dry-run$|state put STEP"
)  # of a folder; for a run
COMPLETED = {  # errors, which cli/main.py completes with name_job, and a note, which cli/effects.py completes
    "wording/messages.py",
    "supervise/gate.py",
    "supervise/hook_selftest.py",
    "recovery/undo.py",
    "supervise/restart.py",
    "supervise/rewrite.py",
    "wal/damage.py",
}
MAKERS = ("command", "job_command")  # of text.py
TYPED = ("require_person", "person_needed")  # they are given what was typed


class Printed(NamedTuple):
    where: str
    text: str


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    skipped = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TYPED:
            skipped.update(id(each) for each in node.args)  # what was typed, not what to type
        for each in getattr(node, "body", []) if isinstance(getattr(node, "body", None), list) else []:
            if isinstance(each, ast.Expr):
                skipped.add(id(each.value))
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(value) for value in node.values)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(inner) for value in node.values for inner in ast.walk(value))
            yield node.lineno, _text(node)
        elif (call := _maker(node)) is not None:
            skipped.update(id(inner) for inner in ast.walk(node))
            yield call.lineno, _text(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _maker(node: ast.AST) -> ast.Call | None:
    """The node, where it makes a command of words that stand there."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS and node.args:
        return node if isinstance(node.args[0], ast.Constant | ast.JoinedStr | ast.IfExp) else None
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "facts.command":
        return node
    return None


def _text(node: ast.AST) -> str:
    """What the node says, with ⟨a name⟩ in place of each value, and each made command as it is made."""
    if (call := _maker(node)) is not None:
        verbs = call.args if ast.unparse(call.func) == "facts.command" else call.args[:1]
        of_bucket = ast.unparse(call.func) == "command" and re.search("bucket|here", ast.unparse(call.args[1]))
        named = BUCKET if of_bucket else OPTIONS
        more = call.args[2:] if ast.unparse(call.func) == "command" else []
        return " ".join(["wal-agent", *map(_text, verbs), named, *map(_text, more)])
    match node:
        case ast.JoinedStr(values=values):
            return "".join(map(_text, values))
        case ast.FormattedValue(value=value):
            return _text(value)
        case ast.Constant(value=value):
            return str(value)
        case ast.IfExp(body=body) if isinstance(body, ast.JoinedStr):
            return _text(body)
        case _:
            return f"⟨{ast.unparse(node)}⟩"


def _commands() -> Iterator[Printed]:
    """From `wal-agent VERB` to the end of the sentence, of the code span or of the line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name in ("help.py", "display.py"):  # the examples of `--help`, which test_docs reads; patterns
            continue
        if path.name == "text.py" or not re.search("wal-agent |command\\(", source := path.read_text()):
            continue
        for line, text in _strings(ast.parse(source)):
            for found in re.finditer(r"(?:For example: |Use: )?wal-agent ([a-z-]+)(?:⟨[^⟩]*⟩|[^`\n;⟨]|⟨)*", text):
                if found[1] in COMMANDS:
                    cut = re.split(r"(?<=[^.])[.,)](?: |$)|\?|: | \(| or `|, or | for each", found[0])[0]
                    yield Printed(f"{path.relative_to(PACKAGE)}:{line}", cut.strip().rstrip(".,)'\""))


def _filled(text: str) -> list[str]:
    """The words, with values in place: nothing for options, a word of the right kind for others."""

    def value(found: re.Match[str]) -> str:
        return "" if found[0] in (OPTIONS, BUCKET) else "7"

    text = VALUE.sub(value, text).replace("...", "")
    return shlex.split(text) if text.count('"') % 2 == 0 else text.split()


def _command_of(words: list[str]) -> tuple[Any, list[str]]:
    command, rest = typer.main.get_command(app), words
    while hasattr(command, "commands") and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


@functools.cache
def printed() -> list[Printed]:
    return [each for each in _commands() if len(each.text.split()) > 2 or VALUE.search(each.text)]


def test_the_options_of_a_printed_command_exist() -> None:
    wrong = []
    for each in printed():
        command, rest = _command_of(_filled(each.text.partition("wal-agent ")[2]))
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        before = rest[: rest.index("--")] if "--" in rest else rest
        if not {word.partition("=")[0] for word in before if re.match("--[a-z]", word)} <= known:
            wrong.append(each)
    assert wrong == [] and len(printed()) > 100


def test_a_printed_command_names_its_job() -> None:
    """A command typed in another folder, or on another machine, would mean another job, or begin one. `command` of
    text.py is the only maker of what names it."""
    bare = []
    for each in printed():
        path = each.where.partition(":")[0]
        verb = each.text.partition("wal-agent ")[2].split()[0]
        named = OPTIONS in each.text or BUCKET in each.text or re.search("--job (?:NAME|JOB)", each.text)
        template = NO_JOB.search(each.text)
        if re.fullmatch(JOB_VERBS, verb) and not (named or template or path in FOR_AGENTS | COMPLETED):
            bare.append(each)
    assert bare == []


def test_the_verbs_that_mean_a_job_are_those_that_take_one() -> None:
    root: Any = typer.main.get_command(app)
    takes = set()
    for name in COMMANDS:
        command = root.commands[name]
        inner = [command, *getattr(command, "commands", {}).values()]
        if any("--job" in option.opts for each in inner for option in each.params):
            takes.add(name)
    begin = {
        "acp",
        "rename",
        "run",
        "task",
        "doctor",
        "stats",
        "publish",
        "reply",
        "settle",
        "step",
    }  # anew, or of any job, or in a run
    assert set(JOB_VERBS.split("|")) == takes - begin


@pytest.mark.parametrize(
    ("said", "whole"),
    [
        ("See: wal-agent log --crashes", "See: wal-agent log --job j --crashes"),
        ("Settle: wal-agent ack 3 --done (or --not-done)", "Settle: wal-agent ack --job j 3 --done (or --not-done)"),
        ("Look with `wal-agent trace list`, then go on.", "Look with `wal-agent trace list --job j`, then go on."),
        ("See: wal-agent status --job other", "See: wal-agent status --job other"),
        ("Try: wal-agent doctor gemini", "Try: wal-agent doctor gemini"),
    ],
)
def test_a_hint_names_the_job_that_the_command_is_about(said: str, whole: str) -> None:
    about = contextvars.copy_context()
    about.run(MEANT.set, "--job j")
    assert about.run(name_job, said) == whole
    assert name_job(said) == said


@pytest.mark.parametrize("command", [("diff",), ("state", "list"), ("status",)])
def test_an_error_of_a_command_names_job_and_bucket(tmp_path: Path, run: Run, command: tuple[str, ...]) -> None:
    """What finds a log damaged knows no job, and the command is pasted in any folder."""
    shelf = full(tmp_path / "b")
    lost = sorted(entry.key for entry in shelf.bucket.list(KEYS.log))[3]
    shelf.bucket.delete(lost)
    shelf.bucket.put(lost, b"junk")
    code, _, err = run(*command, "--job", "shop", "--bucket", shelf.url)
    assert code == 73 and f"`wal-agent restore --job shop --bucket {shelf.url} --at " in err


@pytest.mark.parametrize("source", ["flag", "environment", "own", "file"])
def test_a_job_is_named_with_all_that_is_no_default(source: Any) -> None:
    sources = {"bucket": source, "encryption_key_file": source}
    settings = Settings(job="j", bucket="s3://b", encryption_key_file="/k", sources=sources)
    assert settings.job_options == "--job j --bucket s3://b --encryption-key-file /k"
    assert Settings(job="j", bucket="file:///b", sources={"bucket": "default"}).job_options == "--job j"


WORDS = {"ack": "2", "unlock": "1", "trace": "1", "run": "gemini", "rm": "shop", "log": "shop"}  # for each value
WRONG = (69, 70, 77, 78)  # not reached, not read
LEADS_NOWHERE = re.compile(  # a person fills it in; it is about this folder, not a job
    r"\b(?:AGENT|COMMAND|RECORD|JOB|FILE|PROMPT|SCRIPT|ARGS)\b|run⟨|"
    r"\||--kept|--help|-->|rules|recover --dry-run$|-- |--$|run ⟨[^⟩]*⟩$"
)
OF_A_BUCKET = re.compile(r"wal-agent (?:list|fleet ls|stats)\b")
NO_JOBS = re.compile(
    r"wal-agent (?:acp|agents|task|trust|uninstall|doctor|notify|configure-hooks|drill|fleet (?:claim|watch))\b"
)


def _as_pasted(each: Printed, options: str) -> str:
    """The command of the job `shop`, as the product makes it."""
    verb = each.text.partition("wal-agent ")[2].split()[0]
    bucket = options.partition("--job shop ")[2]
    if verb in ("list", "fleet"):  # they read no log
        bucket = bucket.partition(" --encryption")[0]

    def value(found: re.Match[str]) -> str:
        if found[0] in (OPTIONS, BUCKET):
            return bucket if found[0] == BUCKET else options
        return WORDS.get(verb, "7")

    return name_job(VALUE.sub(value, each.text))


def test_each_printed_command_means_its_job_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pasted in another folder by a user with another HOME, each means the job that it was printed about, can read it,
    and begins none."""
    secret = tmp_path / "key"
    secret.touch(mode=0o600)
    secret.write_text(RIGHT.secret.hex())
    job = open_job(FileBucket(tmp_path / "kept"), RIGHT)
    for record in records():
        job.writer.append(record)
        commit(job)
    close_job(job, "released")
    at = tmp_path / "at"
    sources: dict[str, Source] = {"bucket": "environment", "encryption_key_file": "own"}
    url = (at / "b").as_uri()
    options = Settings(job="shop", bucket=url, encryption_key_file=str(secret), sources=sources).job_options
    about = contextvars.copy_context()
    about.run(MEANT.set, options)
    commands = {
        about.run(_as_pasted, each, options): each.where
        for each in printed()
        if each.where.partition(":")[0] not in FOR_AGENTS
        and not LEADS_NOWHERE.search(each.text)
        and not NO_JOBS.search(each.text)
    }
    monkeypatch.setattr("wal_agent.supervise.restart.run_with_restarts", lambda asked, screen: 0)
    monkeypatch.setattr(AGENTS["gemini"], "locate", lambda env: None)
    for name in [n for n in os.environ if n.startswith(("WAL_AGENT_", "XDG_"))]:
        monkeypatch.delenv(name)
    lost = []
    for pasted, where in commands.items():
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(tmp_path / "kept", at / "b")
        (at / "elsewhere").mkdir()
        monkeypatch.chdir(at / "elsewhere")
        monkeypatch.setenv("HOME", str(at / "home"))
        monkeypatch.setattr(sys, "argv", shlex.split(pasted))
        here = contextvars.copy_context()
        with pytest.raises(SystemExit) as ended:
            here.run(main)
        said = capsys.readouterr()
        jobs = [str(each.relative_to(at)) for each in at.rglob("lease.json=")]
        meant = (url in said.out or "shop" in said.out) if OF_A_BUCKET.match(pasted) else here.get(MEANT) == options
        if ended.value.code in WRONG or not meant or jobs != ["b/shop/lease.json="]:
            lost.append((where, pasted, ended.value.code, said.err, jobs))
    assert lost == [] and len(commands) > 30


def test_the_default_bucket_is_not_named(run: Run) -> None:
    """At a terminal it would stand in each hint."""
    for command in (["list"], ["list", "--here"], ["stats"], ["status"]):
        _, out, err = run(*command)
        assert "wal-agent run AGENT" in out + err and "--bucket" not in out + err, command
