"""Every command that the product prints: the command line takes it, and it names its job where a person reads it.

The commands are read from the code: all strings but docstrings, with a word in place of each value.
"""

from __future__ import annotations

import ast
import contextvars
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from tests.unit.cli.shelf import KEYS, Run, full
from wal_agent.cli.commands import COMMANDS, app
from wal_agent.config import Settings
from wal_agent.text import JOB_VERBS, MEANT, name_job

PACKAGE = Path(__file__).parents[3] / "wal_agent"
VALUE = re.compile("⟨([^⟩]*)⟩")
OPTIONS = re.compile(r"options|bucket_option|bucket_words|\bat\b|\bjob\b")  # names of values that are options
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
        if isinstance(node, ast.JoinedStr) and id(node) not in skipped:
            parts = (v.value if isinstance(v, ast.Constant) else f"⟨{ast.unparse(v.value)}⟩" for v in node.values)  # type: ignore[attr-defined]
            yield node.lineno, "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def _commands() -> Iterator[Printed]:
    """From `wal-agent VERB` to the end of the sentence, of the code span or of the line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name in ("help.py", "display.py"):  # the examples of `--help`, which test_docs reads; patterns
            continue
        if "wal-agent " not in (source := path.read_text()):
            continue
        for line, text in _strings(ast.parse(source)):
            for found in re.finditer(r"(?:For example: |Use: )?wal-agent ([a-z-]+)(?:⟨[^⟩]*⟩|[^`\n;⟨]|⟨)*", text):
                if found[1] in COMMANDS:
                    cut = re.split(r"(?<=[^.])[.,)](?: |$)|\?|: | \(| or `|, or | for each", found[0])[0]
                    yield Printed(f"{path.relative_to(PACKAGE)}:{line}", cut.strip().rstrip(".,)'\""))


def _filled(text: str) -> list[str]:
    """The words, with values in place: nothing for options, a word of the right kind for others."""

    def value(found: re.Match[str]) -> str:
        return "" if OPTIONS.search(found[1]) and "quote" not in found[1] else "7"

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
    """A command typed in another folder, or on another machine, would mean another job, or begin one."""
    bare = []
    for each in printed():
        path = each.where.partition(":")[0]
        verb = each.text.partition("wal-agent ")[2].split()[0]
        named = "--job" in each.text or any(OPTIONS.search(name) for name in VALUE.findall(each.text))
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


@pytest.mark.parametrize(("source", "shown"), [("flag", " --encryption-key-file /k"), ("own", "")])
def test_a_job_is_named_with_the_key_that_was_typed(source: Any, shown: str) -> None:
    settings = Settings(job="j", bucket="s3://b", encryption_key_file="/k", sources={"encryption_key_file": source})
    assert settings.job_options == f"--job j --bucket s3://b{shown}"
