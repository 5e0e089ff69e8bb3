"""Shell text as data, compared with what the real bash does with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from wal_agent.calls.shell.reader import MAX_TEXT, parse
from wal_agent.calls.shell.syntax import Simple
from wal_agent.calls.shell.wrappers import literal_commands

Shown = list[list[str | None]]


def shown(text: str) -> Shown | None:
    script = parse(text)
    return None if script is None else [[w.text for w in c.words] for c in script.commands]


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a 'b c' \"d e\" f\\ g $'h\\ti' j\"k\"'l'", [["a", "b c", "d e", "f g", "h\ti", "jkl"]]),
        ("r\\m x; r''m x; \"rm\" x; $'\\x72m' x", [["rm", "x"]] * 4),
        ("a\\\nb &\\\n& c", [["ab"], ["c"]]),
        ("a \\\n b # c\nd;#e", [["a", "b"], ["d"]]),
        ("a a#b '#' \\# # c", [["a", "a#b", "#", "#"]]),
        ('a $b "$c" ~ *.d e? [f] {g,h} {1..3} $(i) `j` <(k)', [["i"], ["j"], ["k"], ["a", *[None] * 11]]),
        ("a {} @{1} {x} x{ [", [["a", "{}", "@{1}", "{x}", "x{", "["]]),
        ('a "$(b "$(c)")" $((1 + $(d)))', [["c"], ["b", None], ["d"], ["a", None, None], [None]]),  # what d prints
        ("${x:-$(a)}", [["a"], [None]]),
        ("a | b |& c && d || e; f & g", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"], ["g"]]),
        ("if a; then b; elif c; then d; else e; fi", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("for x in a $(b); do c; done", [["b"], [], ["c"]]),
        ("for ((i=0; i<$(a); i++)); do b; done", [["a"], [], ["b"], [None]]),
        ("for ((i=0; i<3; i++)); do b; done", [[], ["b"]]),
        ("while a; do b; done; until c; do d; done", [["a"], ["b"], ["c"], ["d"]]),
        ("case $(a) in b|c*) d;; *) e;; esac", [["a"], ["d"], ["e"]]),
        ("[[ -f $(a) && b == c* || $d =~ ^e ]]", [["a"], []]),
        ("[ -f $(a) ]", [["a"], ["[", "-f", None, "]"]]),
        ("(a; b); { c; }; ! d; time e", [["a"], ["b"], ["c"], ["d"], ["time", "e"]]),
        ("f() { a; }; function g { b; }; h() (c)", [["a"], ["b"], ["c"]]),
        ("x=$(a) y=`b` c", [["a"], ["b"], ["c"]]),
        ("x=(a $(b))", [["b"], []]),
        ("export A=$(a) B", [["a"], ["export", None, "B"]]),
        ("cat <<E\n$(a) \\$(b)\nE\nc", [["a"], ["cat"], ["c"]]),
        ("cat <<'E'\n$(a) `b`\nE\nc", [["cat"], ["c"]]),
        ("cat - <<E | b && c\nx\nE\n", [["cat", "-"], ["b"], ["c"]]),
        ("a 2>b >>c <d &>e d", [["a", "d"]]),
        ("((a))", [[]]),
        ("", []),
        ("# a", []),
    ],
)
def test_every_command_of_a_text(text: str, commands: Shown | None) -> None:
    assert shown(text) == commands


@pytest.mark.parametrize(
    "text",
    [
        "a 'b",
        "a $(b",
        "if a; then b",
        "a <<E",
        "a <<E\nb",
        "cat <<E\n`a`\nE",  # the grammar does not see what runs here
        "cat -<<E\na\nE",  # nor this word
        "a <<E <<F\n1\nE\n2\nF",
        "a\0b",
        "a\r\nb",
        "a\x0bb",
        "a\u00a0b",
        "\ufeffa",
        "\ud800",
        "-c a",
        "+x a",
        "a `b \\`c\\``",
        "a $[1]",
        "a @(b)",
        "! (a",
        "select x in a; do b; done",
        "time { a; }",
        "coproc x { a; }",
        "a {fd}>b",
        "a <> b",
        "a; f() { b; }; (g() { c; }); g",
        "f; f() { a; }",
        "true && f() { a; } && f || g() { b; }",
        "x='a[$(b)]'; echo $((x))",
        "x='a[$(b)]'; [[ x -eq 1 ]]",
        "echo ${x@P}",
        "[ a > b ]",
        "then",
        "a;;b",
        "((a); (b))",
        "x" * (MAX_TEXT + 1),
        "é" * (MAX_TEXT // 2 + 1),
        "( " * 60 + "a" + " )" * 60,
        "a " + "$(b " * 60 + ")" * 60,
        "a;" * 5000,
    ],
)
def test_what_bash_may_read_in_another_way_is_not_read(text: str) -> None:
    assert parse(text) is None


def command(text: str) -> Simple:
    script = parse(text)
    assert script is not None
    return script.commands[-1]


def test_redirections_assignments_and_what_stands_on_the_input() -> None:
    c = command("A=1 B=$x a <<<'g h' 2>&1 >>f 3>$y")
    assert c.assigns == ("A", "B")
    assert [(r.op, r.fd, r.to and r.to.text) for r in c.redirects] == [
        ("<<<", None, "g h"),
        (">&", 2, "1"),
        (">>", None, "f"),
        (">", 3, None),
    ]
    assert c.input == "g h\n"
    assert command("sh <<E\na\\$b\nE").input == "a$b\n"
    assert command("sh <<-'E'\n\ta $b\n\tE").input == "a $b\n"
    assert command("sh <<E\na $b\nE").input is None
    assert command("sh 3<<E\na\nE").input is command("sh 3</dev/null").input is None
    assert command("sh </dev/null").input == command("sh </dev/null 2>&1").input == ""
    assert command("sh </dev/null <f").input is None
    assert command("echo a 'b' | sh").input == "a b\n"
    assert command("cat <<E | sh\na\nE").input == "a\n"
    assert command("echo $a | sh").input is None
    assert command("echo -e a | sh").input is None
    assert command("a | b > f").redirects[0].op == ">"


@pytest.mark.parametrize(
    ("text", "sure"),
    [
        ("a; b && c", "abc"),
        ("a || b; c", "ac"),
        ("a & b", ""),
        ("a | b; c", "c"),
        ("{ a; b; }; (c)", "ab"),
        ("if a; then b; fi; c", "c"),
        ("! a; b", "b"),
        ("a $(b); f() { c; }", "a"),
        ("a; exit; b", "a"),
        ("a; set -e; b", "a"),
    ],
)
def test_what_runs_exactly_once(text: str, sure: str) -> None:
    script = parse(text)
    assert script is not None
    assert "".join(c.words[0].text or "" for c in script.commands if c.sure and len(c.words[0].text or "") == 1) == sure


def test_in_which_subshells_a_command_runs_and_whose_output_it_reads() -> None:
    script = parse("a; (b; (c)); d $(e) | f; cat <<E | g\nx\nE\n{ h; }; k | (l)")
    assert script is not None
    commands = {str(c.words[0].text): c for c in script.commands}
    assert commands["a"].shells == commands["h"].shells == ()
    assert len(commands["b"].shells) == 1 and commands["c"].shells[:1] == commands["b"].shells
    assert len({commands[name].shells for name in "bcdefgkl"}) == 8
    fed = {name: script.commands[c.fed].words[0].text for name, c in commands.items() if c.fed >= 0}
    assert fed == {"f": "d", "g": "cat"}


def test_a_word_that_only_the_shell_knows_is_kept_as_written() -> None:
    assert [(w.text, w.source) for w in command("a '$b' \"x$c\"*").words] == [("a", ""), ("$b", ""), (None, '"x$c"*')]


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("cd a && sudo -u b env X=1 timeout -k 1 5 nice -n 2 nohup git push", [["cd", "a"], ["git", "push"]]),
        ("a 'b c'; time -p d", [["a", "b c"], ["d"]]),
        ("env -C /x a", None),
        ("sudo -i a", None),
        ("sudo --nope a", None),
        ("a $b", None),
        ("a *", None),
        ("a | b", None),
        ("for x in 1; do a; done", None),
        ("a &", None),
        ("xargs a", [["xargs", "a"]]),
        ("env", [["env"]]),
        ("", None),
        ("a 'b", None),
        ("a; echo $?", [["a"], ["echo", "$?"]]),
        ('a; echo "exit: $?"', [["a"], ["echo", '"exit: $?"']]),
        ("a; echo $?$x", None),
        ("a; b $?", None),
    ],
)
def test_literal_commands(text: str, commands: Shown | None) -> None:
    found = literal_commands(parse(text))
    assert (None if found is None else [[w.text for w in c.words] for c in found]) == commands


def test_variables_of_wrappers_are_kept() -> None:
    found = literal_commands(parse("A=1 env B=2 sudo C=3 a"))
    assert found is not None and found[0].assigns == ("A", "B", "C")


# ---- against the real bash

BITS = st.sampled_from(
    [
        *["a", "b", " ", " ", " ", "\t", "\n", ";", "&&", "||", "|", "&", "-x", "'a b'", '"c d"', "\\ e", "$'f\\ng'"],
        *["x=1", "#h", "a#b", "!", "{", "}", "{}", "[", "]", "--", "~", "*.z", "\\\\", '"\\$x"', "\\;", "é", "\\\n"],
        *["<<E\nq w\nE\n", "<<'E'\n$x `\nE\n", "<<-E\n\tr\n\tE\n", "$(b c)", "`b d`", '"$(b e)"', "$((1+2))", "${x}"],
        *["if ", "; then ", "; fi", "for x in a", "; do ", "; done", "while ", "case a in ", ") ", ";; ", " esac", "("],
        *[">f", "2>&1", "<<<w", "time ", "# c\n", "<(b)", "[[ ", " ]]", "b() ", "'", '"', "$", "`", "((", "))", "in "],
    ]
)


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with programs a and b that write down their words."""
    folder = tmp_path_factory.mktemp("recorder")
    program = folder / "a"
    program.write_text('#!/bin/sh\nprintf "%s\\0" "${0##*/}" "$@" > "$OUT.$$"\n')  # one for each: pipes run at once
    program.chmod(0o755)
    (folder / "b").symlink_to(program)
    (folder / "w").mkdir()
    return folder


def ran(text: str, folder: Path) -> Shown:
    out = folder / "out"
    env = {"PATH": str(folder), "OUT": str(out), "LC_ALL": "C.UTF-8", "HOME": "/h"}
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as all_ended, os.fdopen(writing, "wb") as held:
        subprocess.run(
            ["/bin/bash", "-c", text],
            env=env,
            cwd=folder / "w",
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=20,
            pass_fds=(writing,),
        )
        held.close()
        all_ended.read()  # also what bash did not wait for, wherever that writes
    for made in (folder / "w").iterdir():
        made.unlink()
    found = sorted(folder.glob("out.*"), key=lambda path: path.stat().st_mtime_ns)
    words: Shown = [[w.decode() for w in path.read_bytes().split(b"\0")[:-1]] for path in found]
    for path in found:
        path.unlink()
    return words


def fits(words: list[str | None], wanted: list[str | None]) -> bool:
    while wanted and wanted[0] in ("time", "-p", "--"):
        wanted = wanted[1:]
    known = wanted.index(None) if None in wanted else len(wanted)
    return words[:known] == wanted[:known] and (known < len(wanted) or len(words) == known)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["a ", "b ", "a; ", "a && ", "x=1 a ", ""]), st.lists(BITS, min_size=1, max_size=9).map("".join))
@example("a ", "b\\\nb")
@example("b ", "<<E && a\n$(b c)\nE\n")
@example("", "((a)|(b))")
def test_bash_runs_no_command_that_was_not_read(recorder: Path, first: str, rest: str) -> None:
    wanted = shown(first + rest)
    if wanted is not None:
        assert [run for run in ran(first + rest, recorder) if not any(fits(run, w) for w in wanted)] == []


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(alphabet="ab\\'\"$` \té#=~!*{}[](),.-_&|;<>%@^+", max_size=8), max_size=4), st.randoms())
def test_literal_words_are_what_bash_passes_on(recorder: Path, values: list[str], random: object) -> None:
    quotes = (
        lambda v: "'" + v.replace("'", "'\\''") + "'",
        lambda v: '"' + "".join("\\" + c if c in '"\\$`' else c for c in v) + '"',
        lambda v: "".join(f"'{c}'" if c in " \t" else "\\" + c for c in v) or "''",
        lambda v: "$'" + "".join(f"\\x{ord(c):02x}" if c in "'\\" else c for c in v) + "'",
    )
    text = "a " + " ".join(random.choice(quotes)(v) for v in [*values, "z"])  # type: ignore[attr-defined]
    assert ran(text, recorder) == [["a", *values, "z"]]
    if re.search(r"<<[^\n]*[^\0-\x7f]", text) is None:  # what looks like such a heredoc is not read
        assert shown(text) == [["a", *values, "z"]]


# ---- bounds

LONG = [
    "a|",
    "x=`>",
    "]] { ",
    "\\${",
    "x=(",
    "<<a\n",
    "((a)",
    ")",
    "$[",
    "|",
    "x() ",
    "[[ a =~ ( ",
    '"${',
    "((1 ",
    "a;",
    "(",
    "$(",
    "`",
    "<(",
    "'",
    "a\\\n",
]


@pytest.mark.parametrize("unit", LONG)
def test_no_text_takes_long(unit: str) -> None:
    began = time.process_time()
    parse((unit * MAX_TEXT)[:MAX_TEXT])
    assert time.process_time() - began < 2  # seconds; the grammar alone would take up to a minute


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=60) | st.lists(BITS, max_size=30).map("".join))
def test_total(text: str) -> None:
    parse(text)
    literal_commands(parse(text))


def test_threads_do_not_share_a_parser() -> None:
    wrong: list[object] = []

    def read(n: int) -> None:
        for i in range(50):
            found = shown(f"a {n} | b {i}")
            if found != [["a", str(n)], ["b", str(i)]]:
                wrong.append(found)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_no_character_ends_the_process() -> None:
    """The grammar's scanner reads outside a table of libc for a character like the last one here."""
    text = "¨èxo\x9f«{\U000cf98e"
    loop = (
        f"from wal_agent.calls.shell.reader import _parse_tree\n"
        f"for _ in range(200):\n  try: _parse_tree({text.encode()!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", f"{loop}  except ValueError: pass"], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo größe 😀{x", ["echo", "größe", "😀{x"]),
        ("git commit -F - <<E\nпривет\nE", ["git", "commit", "-F", "-"]),
    ],
)
def test_other_characters_are_part_of_words(text: str, words: list[str]) -> None:
    assert shown(text) == [words]


def test_heredocs_that_end_with_other_characters_are_not_read() -> None:
    assert parse("cat <<é\nè\ncat <<'Z'\né\nrm -rf x\nZ") is None
