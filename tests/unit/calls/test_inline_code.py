"""Code and queries on a command line: what is known to read is known from lists, and nothing gets around them (I1)."""

from __future__ import annotations

import builtins
import contextlib
import io
import sys
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from wal_agent.calls import inline_code
from wal_agent.calls.classify import DRAWS, WRITES_BACK, joint_effect
from wal_agent.calls.rules import match
from wal_agent.calls.shell.reader import parse
from wal_agent.calls.shell.syntax import Simple, Word


def command(*words: str) -> Simple:
    return Simple(tuple(Word(w, w) for w in words))


def python(code: str, option: str = "-c") -> str | None:
    return inline_code.classify_python(command("python3", option, code))


# ---- Python ---------------------------------------------------------------------------------------------------------

READS = [
    "print(1 + 1)",
    "import sys; print(sys.version_info[:2])",
    "import os; print(sorted(os.listdir('.')))",
    "import os\nfor root, dirs, files in os.walk('.'):\n    print(root, len(files))",
    "print(open('a.txt').read().splitlines()[0])",
    "with open('a.txt', encoding='utf-8') as f:\n    print(sum(1 for line in f))",
    "def twice(x, by=2):\n    return x * by\nprint(twice(21))",
    "import sys; print(max((len(l), l) for l in sys.stdin))",
    "x = {}\nx['a'] = 1\nx.setdefault('b', []).append(2)\nprint(x)",
    "try:\n    print(int('x'))\nexcept ValueError as e:\n    print(e)",
]
IMPORTS = [
    "import json, sys; print(json.load(sys.stdin)['a'])",
    "import re as r; print(r.findall('a', 'aa'))",
    "from collections import Counter; print(Counter('abc').most_common(1))",
    "import tomllib; print(tomllib.load(open('pyproject.toml', 'rb')))",
    "import datetime; print(datetime.datetime.now().isoformat())",
    "import urllib.parse; print(urllib.parse.quote('a b'))",
]
CHANGES = r"""
    import os; os.remove('x')
    from os import remove as r; r('x')
    import os; [os.unlink][0]('x')
    import os; f = os.system; f('x')
    import os; getattr(os, 'remove')('x')
    import os; os.path.os.remove('x')
    import glob; glob.os.remove('x')
    import re; re.enum.sys.modules['os'].remove('x')
    import sys; sys.modules['os'].remove('x')
    import sys; sys.path.insert(0, 'x'); import json
    open('x', 'w')
    open('x', mode='a')
    open('x', 'r+')
    open(*['x', 'w'])
    open('x', **{'mode': 'w'})
    open('x', opener=print)
    f = open; f('x', 'w')
    for f in [open]: f('x', 'w')
    list(map(open, ['x'], ['w']))
    print('x', file=open('x', 'w'))
    print(open('/dev/ttyS0').read())
    open(input())
    exec('x')
    print(eval('1'))
    __import__('os').remove('x')
    __builtins__.open('x', 'w')
    print(().__class__.__bases__[0].__subclasses__())
    from pathlib import Path; Path('x').unlink()
    import pathlib; pathlib.Path('x').replace('y')
    import json; json.dump({}, open('x', 'w'))
    import json; json.codecs.open('x', 'w')
    import csv; csv.writer(1)
    import shutil; shutil.rmtree('x')
    import subprocess; subprocess.run(['x'])
    import socket
    import ctypes
    import flask
    from . import x
    from os import *
    import os as print; print.remove('x')
    import os; os.environ.__class__
    import os; os.chdir('x')
    import sys; sys.stdin = open('x')
    import json; json.loads = print
    @print\ndef f(): pass
    class A: pass
    import json; json = 1
    global open
    lambda open: open('x', 'w')
    def open(*a): pass
    async def f(): pass
    del x
    ｏｐｅｎ('x', 'w')
    import ｏs; ｏs.remove('x')
    # coding: utf-7\nprint(1)
    print(1
    print(undefined)
"""


@pytest.mark.parametrize("code", READS)
def test_python_that_only_reads(code: str) -> None:
    assert python(code) == python(code, "-Ic") == "read_only"
    assert inline_code.classify_python(Simple((Word("python3", "python3"), Word("-", "-")), input=code)) == "read_only"


@pytest.mark.parametrize("code", IMPORTS)
def test_a_module_of_the_folder_may_take_the_place_of_one_of_pythons_own(code: str) -> None:
    """`-c` looks in the folder first, but for the modules that Python has inside; -I and -P do not look there."""
    assert python(code) == "idempotent"
    assert python(code, "-Ic") == python(code, "-Pc") == "read_only"


@pytest.mark.parametrize("code", [c.strip().replace("\\n", "\n") for c in CHANGES.strip().splitlines()])
def test_python_that_may_change_something_is_not_known(code: str) -> None:
    """I1."""
    assert python(code) is None and python(code, "-Ic") is None


@pytest.mark.parametrize(
    "words",
    [
        ["python3", "x.py"],
        ["python3", "-ic", "1"],
        ["python3", "-c"],
        ["python3", "-m", "json"],
        ["python3", "-X", "importtime", "-c", "1"],
        ["./python3", "-c", "1"],
        ["pythonx", "-c", "1"],
        ["python3"],
        ["python3", "-c", "#" * (inline_code.MAX_CODE + 1)],
    ],
)
def test_other_ways_to_start_python_are_not_known(words: list[str]) -> None:
    assert inline_code.classify_python(command(*words)) is None


NAMES = ["os", "sys", "json", "open", "x", "print", "eval", "len", "f", "str", "__import__", "getattr"]
ATTRIBUTES = [
    "remove",
    "path",
    "stdout",
    "write",
    "read",
    "modules",
    "load",
    "os",
    "join",
    "environ",
    "pop",
    "__class__",
]
ATOM = st.sampled_from(["'a'", "'w'", "1", "[]", *NAMES])
EXPRESSION = st.recursive(
    ATOM,
    lambda e: st.one_of(
        st.tuples(e, st.sampled_from(ATTRIBUTES)).map(lambda t: f"{t[0]}.{t[1]}"),
        st.tuples(e, st.lists(e, max_size=2)).map(lambda t: f"{t[0]}({', '.join(t[1])})"),
        st.tuples(e, e).map(lambda t: f"{t[0]}[{t[1]}]"),
        e.map(lambda a: f"[{a} for x in [1]]"),
        e.map(lambda a: f"(lambda f: {a})"),
    ),
    max_leaves=6,
)
STATEMENT = st.one_of(
    EXPRESSION,
    st.tuples(st.sampled_from(NAMES), EXPRESSION).map(lambda t: f"{t[0]} = {t[1]}"),
    st.sampled_from(["import os", "import sys", "import json", "from os import path", "import os as f", "x = 1"]),
)


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """What is done that is more than reading, by the interpreter's own audit."""
    seen: list[str] = []
    on = True

    def hook(event: str, args: tuple[object, ...]) -> None:
        if not on:
            return
        writes = event == "open" and (args[1] or "r") not in ("r", "rb")
        acts = event.startswith(("os.", "subprocess", "socket", "shutil", "ctypes")) and event not in (
            *("os.listdir", "os.scandir", "os.walk", "os.stat", "os.fwalk"),
        )
        if writes or acts or event in ("exec", "compile"):
            seen.append(event)

    sys.addaudithook(hook)
    try:
        yield seen
    finally:
        on = False


@settings(max_examples=examples(400))
@given(st.lists(STATEMENT, min_size=1, max_size=3))
def test_whatever_is_taken_for_reading_does_no_more_when_it_runs(code: list[str]) -> None:
    """Run under the interpreter's audit, where it is accepted."""
    text = "\n".join(code)
    if python(text) is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = compile(text, "x", "exec")
    with watched() as seen, contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        builtins.eval(compiled, {"__name__": "x"})
    assert [event for event in seen if event != "exec"] == []


# ---- JavaScript -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("process.version", "read_only"),
        ("1 + 2 * 3", "read_only"),
        ("console.log('a', process.arch);", "read_only"),
        ("require('./package.json').scripts['test']", "idempotent"),
        ("console.log(JSON.stringify(require('../a.json'), null, 2))", "idempotent"),
        ("Object.keys(require('./package.json').dependencies)", "idempotent"),
        ("require('./x.js')", None),
        ("require('x.json')", None),
        ("require('./a.json')('x')", None),
        ("require('./a.json').a()", None),
        ("process.exit(1)", None),
        ("process.binding('fs')", None),
        ("require('fs').rmSync('x')", None),
        ("process.version; fetch('x')", None),
        ("console.log(`${x}`)", None),
        ("console.log('a' + x)", None),
        ("console.log(", None),
        ("1 // x", None),
        ("'\\x27'", None),
        ("", None),
    ],
)
def test_javascript_in_its_closed_form(code: str, found: str | None) -> None:
    assert inline_code.classify_node(command("node", "-p", code)) == found
    assert inline_code.classify_node(command("node", "-r", "./x", "-p", code)) is None


# ---- SQL ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "select 1",
        "SELECT count(*), lower(a) FROM t WHERE b IN (1, 2) GROUP BY 2 ORDER BY 1 DESC;",
        "with x as (select a from t) select * from x join y on (x.a = y.a)",
        "select 'drop table t; -- ' || a::text from t -- a comment",
        'select "delete" from t /* one */',
        "values (1), (2)",
    ],
)
def test_a_query_of_known_functions_only_reads(text: str) -> None:
    assert match.sql_only_reads(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "select 1; drop table t",
        "select writefile('a', 'b')",
        "select load_extension('a')",
        "select pg_terminate_backend(1)",
        "select public.lower(1)",
        'select "lower"(1)',
        "select a[f(1)] from t",
        "select `a`, f(1) from t",
        "select * into u from t",
        "select * from t for update",
        "with x as (delete from t returning *) select * from x",
        "explain analyze select 1",
        "select $$ ' $$; drop table t; --'",
        "select 1 /* /* ' */ */ ; drop table x --'",
        "select 1 /* not closed",
        "select E'\\' ; drop table t; --'",
        "select :name",
        ".shell rm x",
        "\\! rm x",
        "select f (1)",
        "select f/**/(1)",
        "insert into t values (1)",
        "select 1" + " " * match.MAX_STATEMENT,
    ],
)
def test_anything_else_may_do_more(text: str) -> None:
    """I1."""
    assert not match.sql_only_reads(text)


def test_a_constant_asks_no_table_and_a_name_is_no_statement() -> None:
    assert match.is_sql_operand("select version()", "constant") and not match.is_sql_operand(
        "select * from t", "constant"
    )
    assert match.is_sql_operand("postgres://u@h/shop", "name or query") and not match.is_sql_operand(
        "vacuum", "name or query"
    )
    assert not match.is_sql_operand("shop", "query")


# ---- together -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("head -n -1 a > b && cp b a", WRITES_BACK),
        ("tac ./a > b; cat b > a", WRITES_BACK),
        ("tail -n +2 < a > b; cp b a", WRITES_BACK),
        ("sed 1d a | tee a", WRITES_BACK),
        ("cat a > b && cp b c", None),
        ("sort -u -o a a", None),
        ("test -f a || echo x > a", None),
        ("cat a; echo x > a", None),
        ("openssl rand 3 | tee k", DRAWS),
        ("shuf a > b", DRAWS),
        ("openssl rand 3", None),
        ("shuf a | head", None),
    ],
)
def test_commands_that_can_each_be_done_again(text: str, rule: object) -> None:
    script = parse(text)
    assert script is not None and joint_effect(script.commands) is rule
