"""No composition of a change comes out read-only (I1), and no text makes the classifier fail or take long."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from wal_agent.calls.call import ReadCall
from wal_agent.calls.classify import classify, classify_command
from wal_agent.calls.rules.table import load_rules
from wal_agent.calls.shell.reader import parse
from wal_agent.records import Class

RULES = load_rules()

CHANGES = [
    "git push",
    "git push origin main",
    "git commit -m x",
    "git branch -D x",
    "git -C a tag v1",
    "rm -rf x",
    "rm x",
    "mv a b",
    "terraform apply",
    "curl -X POST http://x/y",
    "curl -d a=b http://x",
    "npm publish",
    "kubectl delete pod x",
    "kubectl -n a apply -f x",
    "gh pr create --fill",
    "docker rm x",
    "aws s3 rm s3://a/b",
    "psql -c 'DROP TABLE x'",
    "psql -c VACUUM",
    "kill 1",
    "tee a",
    "sed -i s/a/b/ f",
    "find . -delete",
    "python x.py",
    "make",
    "npm test",
    "./deploy.sh",
    "nosuchprogram",
    "echo a > file",
    "echo a >> file",
    "> file",
    "cat a >| b",
    "$cmd a",
    "source a",
    "PATH=. ls",
]
# None whose end is certain: behind `true ||` nothing runs.
READS = st.sampled_from(["ls", "cat a", "echo hi", "test -e a", "git status", "pwd", "cd a"])
JOINS = st.sampled_from([";", "&&", "||", "|", "&", "\n", "|&"])

Wrap = Callable[[str, str, str], str]  # the command, something that reads, an operator between them


def in_backticks(command: str) -> str:
    """An inner backtick that is not escaped would end the outer one, and make the command words of another."""
    return "`" + re.sub(r"[\\`]", r"\\\g<0>", command) + "`"


AROUND: list[Wrap] = [
    lambda c, r, j: f"{r} {j} {c}",
    lambda c, r, j: f"{c} {j} {r}",
    lambda c, r, j: f"{r} $({c})",
    lambda c, r, j: f'{r} "a $({c}) b"',
    lambda c, r, j: f"{r} {in_backticks(c)}",
    lambda c, r, j: f"{r} <({c})",
    lambda c, r, j: f"{r} >({c})",
    lambda c, r, j: f"x=$({c})",
    lambda c, r, j: f"x=$({c}) {r}",
    lambda c, r, j: f"x=(a $({c}))",
    lambda c, r, j: f"export x=$({c})",
    lambda c, r, j: f"{r} ${{x:-$({c})}}",
    lambda c, r, j: f"echo $((1 + $({c})))",
    lambda c, r, j: f"(( $({c}) ))",
    lambda c, r, j: f"[[ -n $({c}) ]]",
    lambda c, r, j: f'[ -n "$({c})" ]',
    lambda c, r, j: f"({c})",
    lambda c, r, j: f"{{ {c}; }}",
    lambda c, r, j: f"! {c}",
    lambda c, r, j: f"if {c}; then {r}; fi",
    lambda c, r, j: f"if {r}; then {r}; else {c}; fi",
    lambda c, r, j: f"for x in a $({c}); do {r}; done",
    lambda c, r, j: f"for x in a; do {c}; done",
    lambda c, r, j: f"for ((;;)); do {c}; done",
    lambda c, r, j: f"while {c}; do {r}; done",
    lambda c, r, j: f"until {r}; do {c}; done < a",
    lambda c, r, j: f"case a in a) {c};; *) {r};; esac",
    lambda c, r, j: f"case $({c}) in a) {r};; esac",
    lambda c, r, j: f"f() {{ {c}; }}; f",
    lambda c, r, j: f"function ls {{ {c}; }}; ls",
    lambda c, r, j: f"{r} <<E\n$({c})\nE\n",
    lambda c, r, j: f"{r} <<< $({c})",
    lambda c, r, j: f"sh <<'E'\n{c}\nE\n",
    lambda c, r, j: f"cat <<'E' | bash\n{c}\nE\n",
    lambda c, r, j: f"bash <<< {shlex.quote(c)}",
    lambda c, r, j: f"echo {shlex.quote(c)} | sh",
    lambda c, r, j: f"printf %s {shlex.quote(c)} | sudo sh",
    lambda c, r, j: f"bash -c {shlex.quote(c)}",
    lambda c, r, j: f"bash -lc {shlex.quote(c)}",
    lambda c, r, j: f"sh -ec {shlex.quote(c)} x",
    lambda c, r, j: f"sudo sh -c {shlex.quote(c)}",
    lambda c, r, j: f"eval {shlex.quote(c)}",
    lambda c, r, j: f"trap {shlex.quote(c)} EXIT",
    lambda c, r, j: f"ssh host {shlex.quote(c)}",
    lambda c, r, j: f"ssh -t -p 1 u@host -- {shlex.quote(c)}",
    lambda c, r, j: f"su - u -c {shlex.quote(c)}",
    lambda c, r, j: f"watch -n 1 {shlex.quote(c)}",
    lambda c, r, j: f"flock a -c {shlex.quote(c)}",
    lambda c, r, j: f"docker exec -it a sh -c {shlex.quote(c)}",
    lambda c, r, j: f"kubectl -n x exec a -- sh -c {shlex.quote(c)}",
    lambda c, r, j: f"xargs -I{{}} sh -c {shlex.quote(c)}",
    lambda c, r, j: f"find . -exec sh -c {shlex.quote(c)} \\;",
    lambda c, r, j: f"git rebase --exec {shlex.quote(c)} main",
    lambda c, r, j: f"git -c alias.x={shlex.quote('!' + c)} x",
    lambda c, r, j: f"git -c core.pager={shlex.quote(c)} log",
    lambda c, r, j: f"GIT_PAGER={shlex.quote(c)} git log",
    lambda c, r, j: f"coproc {c}",
    lambda c, r, j: f"time {c}",
    lambda c, r, j: f"{c} 2>&1 | tail -5",
    lambda c, r, j: f"{c} > /dev/null 2>&1",
    lambda c, r, j: f"  {c}   # {r}",
    lambda c, r, j: f"# {r}\n{c}",
]
# These stand in front of the words of one command, and mean nothing in front of shell text.
FRONT = [
    "sudo",
    "sudo -u x -E A=1",
    "doas",
    "env",
    "env -i A=1",
    "xargs",
    "xargs -0 -n 1",
    "nohup",
    "time",
    "time -p",
    "timeout 5",
    "timeout -k 1 5s",
    "nice -n 3",
    "ionice -c 2",
    "stdbuf -oL",
    "setsid",
    "command",
    "builtin",
    "exec",
    "exec -a ls",
    "busybox",
    "parallel",
    "flock a",
    "chroot a",
    "find . -exec",
    "docker exec a",
    "docker run a",
    "docker compose exec a",
    "kubectl exec a --",
    "tmux new -d",
    "A=1",
    "LC_ALL=C",
]


def quoted(word: str, how: int) -> str:
    """A word written in another way, as bash reads it."""
    return (
        word,
        f'"{word}"',
        f"'{word}'",
        f"$'{word}'",
        f"{word[:1]}''{word[1:]}",
        f'{word[:1]}""{word[1:]}',
        f"\\{word}",
        f"{word[:1]}\\\n{word[1:]}",
        f"$'\\x{ord(word[0]):02x}'{word[1:]}",
    )[how]


@st.composite
def changing(draw: st.DrawFn) -> str:
    """A command that changes something, behind and inside of others, up to three deep."""
    command = draw(st.sampled_from(CHANGES))
    if command.replace(" ", "").replace("-", "").isalnum() and draw(st.booleans()):
        first, _, rest = command.partition(" ")
        command = quoted(first, draw(st.integers(0, 8))) + " " + rest
    if not any(c in command for c in "=>$'") and draw(st.booleans()):
        command = f"{draw(st.sampled_from(FRONT))} {command}"
    for _ in range(draw(st.integers(0, 3))):
        command = draw(st.sampled_from(AROUND))(command, draw(READS), draw(JOINS))
        command = f" {command}" if command.startswith("(") else command  # $((make)) is arithmetic, and runs nothing
    return command


@settings(max_examples=examples(1500), deadline=None)
@given(changing())
def test_no_composition_of_a_change_is_read_only(command: str) -> None:
    found = classify_command(command, RULES)
    assert found.cls != "read_only", found


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_is_read_only_by_itself_or_inside_of_one_other(change: str) -> None:
    assert classify_command(change, RULES).cls != "read_only"
    for wrap in AROUND:
        command = wrap(change, "ls", ";")
        assert classify_command(command, RULES).cls != "read_only", command
    for front in FRONT if not any(c in change for c in "=>$'") else ():
        assert classify_command(f"{front} {change}", RULES).cls != "read_only", front


def test_most_compositions_are_read_and_not_only_given_up_on() -> None:
    """Else the tests above would say little."""
    read = [parse(wrap("git push", "ls", ";")) is not None for wrap in AROUND]
    assert sum(read) >= len(read) - 2


@pytest.mark.parametrize("wrap", range(len(AROUND)))
def test_the_same_around_what_reads_is_no_worse_than_it_must_be(wrap: int) -> None:
    """What stands around is not what made the others worse: a text that is only read stays what it is. Arithmetic is an
    exception: it may run what a command printed."""
    text = AROUND[wrap]("ls", "ls", ";")
    worse = ("find", "git", "GIT", "parallel", "flock", "coproc", "printf", "ls >(", "function ls", "echo $((", "(( $(")
    if not text.startswith(worse):
        assert classify_command(text, RULES).cls == "read_only", text


ANY = st.text(max_size=80) | st.lists(
    st.sampled_from(
        [*CHANGES, "ls", "$(", ")", "`", "'", '"', "<<E\n", "\nE\n", "{", "}", ";", "|", "\\", "$", "sudo "]
    ),
    max_size=12,
).map("".join)


@settings(max_examples=examples(600), deadline=None)
@given(ANY)
def test_every_text_has_a_class_within_a_second(text: str) -> None:
    began = time.process_time()
    assert classify_command(text, RULES).cls in get_args(Class)
    assert classify(
        ReadCall("run_shell_command", json.dumps({"command": [text, text]}).encode()), RULES
    ).cls in get_args(Class)
    assert time.process_time() - began < 1
