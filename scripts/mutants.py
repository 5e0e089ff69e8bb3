"""Break the code in small ways, one at a time, and see whether a unit test notices: a sample of mutants, by seed.

    scripts/mutants.py [--sample 60] [--seed 1] [--jobs 2] [--list] [PATH[:LINE] ...]

A first run of a room's unit tests (tests/unit/<room>) traces which test runs which line. A mutant lives in memory only:
a forked child imports the changed source in place of the module and runs the tests that run the changed line, the
fastest first. A failed or hanging test kills the mutant. Mutants that behave like the original are listed with the
reason in equivalent_mutants.txt.

Not mutmut: it has no sample, and runs the whole suite first to see which test calls what. Not cosmic-ray: it changes
the files on disk.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import accumulate, groupby
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import hypothesis  # noqa: F401 - what takes long to import, once, before the forks
import msgspec  # noqa: F401
import pytest

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
GOAL = 0.95  # of the mutants that are not equivalent
TARGETS = ("wal_agent/wal", "wal_agent/capture", "wal_agent/supervise/gate.py", "wal_agent/recovery/plan*")
HEAVY = {"tests/unit/supervise", "tests/unit/recovery"}  # rooms that take minutes: only test_<module>*.py decide
OPTIONS = (
    *("-x", "--hypothesis-seed=0", "-pno:cacheprovider", "-pno:xdist"),
    "-Wignore::pytest.PytestAssertRewriteWarning",  # hypothesis is imported already
)
Lines = dict[int, dict[str, float]]  # by line: node ids of tests, with seconds
TraceFunction = Callable[[FrameType, str, object], Any]
OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


@dataclass(frozen=True)
class Mutant:
    """The bytes `begin` to `end` of a file replaced by `new`."""

    path: str
    line: int
    begin: int
    end: int
    new: str
    what: str
    code: str  # the line as it is

    @property
    def name(self) -> str:
        return f"{self.path} | {self.code} | {self.what}"

    def source(self) -> bytes:
        text = (ROOT / self.path).read_bytes()
        return text[: self.begin] + self.new.encode() + text[self.end :]


class Finder:
    """Finds the mutants of one file. Texts, types, defaults and the limits at the top of a module are left alone."""

    def __init__(self, path: str) -> None:
        self.path, self.found = path, list[Mutant]()
        self._text = (ROOT / path).read_bytes()
        self._lines = self._text.splitlines(keepends=True)
        self._starts = [*accumulate(map(len, self._lines), initial=0)]
        self._visit(ast.parse(self._text), inside=False)

    def _visit(self, node: ast.AST, inside: bool) -> None:
        """`inside`: the node is in a function."""
        match node:
            case ast.JoinedStr() | ast.If(test=ast.Name("TYPE_CHECKING")) | ast.keyword(arg="strict"):
                return None  # a message; imports for types, which only cost time at the start; an assertion of `zip`
            case ast.FunctionDef():
                return self._visit_all(node.body, True)
            case ast.ClassDef():
                return self._visit_all(node.body, inside)
            case ast.AnnAssign():
                return self._visit_all([node.value] if node.value is not None and inside else [], inside)
            case ast.Raise():
                return self._replace(node, "pass", "raise -> pass")
            case ast.Expr(value=ast.Call()):
                self._replace(node, "pass", "call -> pass")
            case ast.Compare():
                for kind, left, right in zip(node.ops, [node.left, *node.comparators], node.comparators, strict=False):
                    self._operator(kind, left, right)
            case ast.BinOp():
                self._operator(node.op, node.left, node.right)
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    self._operator(node.op, left, right)
            case ast.UnaryOp(op=ast.Not()):
                self._add(self._span(node)[0], self._span(node.operand)[0], "", "not -> (nothing)")
            case ast.If(test=test) | ast.IfExp(test=test) if isinstance(test, ast.Name | ast.Attribute | ast.Call):
                begin, end = self._span(test)
                self._replace(test, f"(not {self._text[begin:end].decode()})", "negated")
            case ast.Constant(value=bool(value)) if inside:
                self._replace(node, str(not value), f"{value} -> {not value}")
            case ast.Constant(value=int(value)) if inside:
                self._replace(node, str(value + 1), f"{value} -> {value + 1}")
            case ast.Continue():
                self._replace(node, "break", "continue -> break")
            case ast.Break():
                self._replace(node, "continue", "break -> continue")
        return self._visit_all(ast.iter_child_nodes(node), inside)

    def _visit_all(self, nodes: Iterable[ast.AST], inside: bool) -> None:
        for node in nodes:
            self._visit(node, inside)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _replace(self, node: ast.expr | ast.stmt, new: str, what: str) -> None:
        self._add(*self._span(node), new, what)

    def _operator(self, kind: ast.AST, left: ast.expr, right: ast.expr) -> None:
        pattern, new = OPERATORS.get(type(kind), ("", ""))
        begin, end = self._span(left)[1], self._span(right)[0]
        word = rf"(?<!\w){pattern}(?!\w)" if new[:1].isalpha() else pattern
        if pattern and (match := re.search(word.encode(), self._text[begin:end])):
            self._add(begin + match.start(), begin + match.end(), new, f"{match[0].decode()} -> {new}")

    def _add(self, begin: int, end: int, new: str, what: str) -> None:
        line = bisect_right(self._starts, begin)
        self.found.append(Mutant(self.path, line, begin, end, new, what, self._lines[line - 1].decode().strip()))


class Loader(SourceFileLoader):
    """Imports the changed source in the place of one module."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._code = compile(source, path, "exec", dont_inherit=True)

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


class Tracer:
    """A pytest plugin: which lines of the traced files each test runs, in all threads, and how long it takes."""

    def __init__(self, files: frozenset[str]) -> None:
        self.tests = dict[str, tuple[float, list[tuple[str, int]]]]()  # by node id: seconds and lines
        self._files, self._lines = files, set[tuple[str, int]]()

    def _call(self, frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, arg: object) -> TraceFunction:
        self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._lines, self._began = set(), time.monotonic()
        threading.settrace(self._call)
        sys.settrace(self._call)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)
        threading.settrace(None)
        self.tests[nodeid] = time.monotonic() - self._began, sorted(self._lines)


class Selection:
    """A pytest plugin: only the given tests, in the given order."""

    def __init__(self, names: Sequence[str]) -> None:
        self._place = {name: n for n, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self._place), key=lambda item: self._place[item.nodeid])


def run(files: Sequence[str], mutant: Mutant | None, plugin: Tracer | Selection, timeout: float) -> tuple[str, bytes]:
    """Run tests in a forked child: "passed", "failed" or "hung", and what the tracer saw, as JSON."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        traced = Path(scratch, "traced.json")
        if (pid := os.fork()) == 0:
            code = 9
            try:
                os.setsid()
                signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
                for fd in (1, 2):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
                os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = scratch
                if mutant is not None:
                    name = mutant.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
                    sys.meta_path.insert(0, Loader(name, str(ROOT / mutant.path), mutant.source()))
                code = int(pytest.main([*OPTIONS, f"--basetemp={scratch}/t", *files], plugins=[plugin]))
                if isinstance(plugin, Tracer):
                    traced.write_bytes(json.dumps(plugin.tests).encode())
            finally:
                os._exit(code)
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() - began < timeout:
            time.sleep(0.02)
        if ended[0] == 0:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hung", b""
        return "passed" if ended[1] == 0 else "failed", traced.read_bytes() if traced.exists() else b""


def suite(path: str) -> tuple[str, ...]:
    """The tests that may decide on the mutants of a module."""
    room = f"tests/unit/{Path(path).parent.relative_to('wal_agent')}"
    mirrored = sorted((ROOT / room).glob(f"test_{Path(path).stem}*.py"))
    return tuple(str(f.relative_to(ROOT)) for f in mirrored) if room in HEAVY and mirrored else (room,)


def trace(paths: Iterable[str]) -> dict[str, Lines]:
    """For each module: by line, the tests that run it, and by 0, all tests of its suite.

    Raises SystemExit: a test fails without a mutant."""
    found = dict[str, Lines]()
    for tests, modules in groupby(sorted(paths, key=suite), key=suite):
        files = {str(ROOT / path): found.setdefault(path, {0: {}}) for path in modules}
        how, data = run(tests, None, Tracer(frozenset(files)), 900)
        if how != "passed":
            sys.exit(f"The tests fail without a mutant: {' '.join(tests)}")
        for name, (seconds, lines) in json.loads(data).items():
            for lines_of in files.values():
                lines_of[0][name] = seconds
            for file, line in lines:
                files[file].setdefault(line, {})[name] = seconds
    return found


def survives(mutant: Mutant, lines: Lines) -> bool:
    last = mutant.line + (ROOT / mutant.path).read_bytes()[mutant.begin : mutant.end].count(b"\n")
    running = {test: s for line in range(mutant.line, last + 1) for test, s in lines.get(line, {}).items()}
    running = running or lines[0]  # runs at the import, in another process, or never
    names = sorted(running, key=lambda name: running[name])
    files = sorted({name.partition("::")[0] for name in names})
    return run(files, mutant, Selection(names), 10 + 4 * sum(running.values()))[0] == "passed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=TARGETS, help="files or folders below wal_agent, or FILE:LINE")
    parser.add_argument("--sample", type=int, default=60, help="how many mutants (0: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="only list the sample")
    given = parser.parse_args()
    os.chdir(ROOT)
    named = [path.partition(":") for path in given.paths]
    lines = {(path, int(line)) for path, colon, line in named if colon}
    roots = [found for path, _, _ in named for found in ROOT.glob(path)]
    files = sorted({f for root in roots for f in ([root] if root.is_file() else root.rglob("*.py"))})
    mutants = [m for f in files for m in Finder(str(f.relative_to(ROOT))).found]
    mutants = [m for m in mutants if not lines or (m.path, m.line) in lines]
    known = {line.rpartition(" | ")[0] for line in EQUIVALENT.read_text().splitlines() if not line.startswith("#")}
    chosen = random.Random(given.seed).sample(mutants, min(given.sample or len(mutants), len(mutants)))
    chosen = sorted((m for m in chosen if m.name not in known), key=lambda m: (m.path, m.begin))
    print(f"{len(mutants)} mutants in {len(files)} files; {len(chosen)} of the sample are not known as equivalent")
    if given.list:
        print(*(f"{m.path}:{m.line}: {m.what}: {m.code}" for m in chosen), sep="\n")
        return 0
    traced, survivors = trace({m.path for m in chosen}), list[Mutant]()
    with ProcessPoolExecutor(given.jobs) as pool:  # each worker has one thread, so that it can fork
        results = pool.map(survives, chosen, [traced[m.path] for m in chosen])
        for mutant, survived in zip(chosen, results, strict=True):
            survivors += [mutant] * survived
            how = "survived" if survived else "killed"
            print(f"{how:8} {mutant.path}:{mutant.line}: {mutant.what}: {mutant.code}", flush=True)
    killed = len(chosen) - len(survivors)
    print(f"{killed} of {len(chosen)} mutants killed ({killed / max(1, len(chosen)):.1%}; goal {GOAL:.0%})")
    return 0 if killed >= GOAL * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
