"""Break the code in small ways, one at a time, and see whether a unit test notices: a sample of mutants, by seed.

    scripts/mutants.py [--sample 60] [--seed 1] [--jobs 2] [--list] [PATH ...]

A mutant lives in memory only: a forked child imports the changed source in place of the module and runs the module's
mirrored unit tests (tests/unit/<room>/test_<module>*.py). If those pass, it runs all of the room's. A failed or hanging
test kills the mutant. Mutants that behave like the original are listed with the reason in equivalent_mutants.txt.

Not mutmut: it has no sample, and runs the whole suite first to see which test calls what. Not cosmic-ray: it changes
the files on disk.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import random
import re
import signal
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import accumulate, repeat
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
GOAL = 0.92  # of the mutants that are not equivalent
TARGETS = ("wal_agent/wal", "wal_agent/capture", "wal_agent/supervise/gate.py", "wal_agent/recovery/plan*")
HEAVY = {"tests/unit/supervise", "tests/unit/recovery"}  # rooms that take minutes: the mirrored tests decide alone
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
            case ast.JoinedStr():
                return None  # a message
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


def run(tests: Sequence[str], mutant: Mutant | None, timeout: float) -> tuple[str, float]:
    """Run the tests in a forked child: "passed", "failed" or "hung", and seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
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
                import pytest

                off = [f"-pno:{plugin}" for plugin in ("cacheprovider", "xdist")]
                code = int(pytest.main(["-x", "--hypothesis-seed=0", f"--basetemp={scratch}/t", *off, *tests]))
            finally:
                os._exit(code)
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() - began < timeout:
            time.sleep(0.02)
        if ended[0] == 0:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hung", timeout
    return "passed" if ended[1] == 0 else "failed", time.monotonic() - began


def suites(path: str) -> list[tuple[str, ...]]:
    """The mirrored tests of a module, and then the room's."""
    room = f"tests/unit/{Path(path).parent.relative_to('wal_agent')}"
    mirrored = tuple(str(f.relative_to(ROOT)) for f in sorted((ROOT / room).glob(f"test_{Path(path).stem}*.py")))
    if not mirrored:
        return [(room,)]
    return [mirrored] if room in HEAVY else [mirrored, (room,)]


def survives(mutant: Mutant, seconds: dict[tuple[str, ...], float]) -> bool:
    return all(run(tests, mutant, 10 + 4 * seconds[tests])[0] == "passed" for tests in suites(mutant.path))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=TARGETS, help="files or folders below wal_agent")
    parser.add_argument("--sample", type=int, default=60, help="how many mutants (0: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="only list the sample")
    given = parser.parse_args()
    os.chdir(ROOT)
    files = sorted({f for p in given.paths for q in ROOT.glob(p) for f in ([q] if q.is_file() else q.rglob("*.py"))})
    mutants = [m for f in files for m in Finder(str(f.relative_to(ROOT))).found]
    known = {line.rpartition(" | ")[0] for line in EQUIVALENT.read_text().splitlines() if not line.startswith("#")}
    chosen = random.Random(given.seed).sample(mutants, min(given.sample or len(mutants), len(mutants)))
    chosen = sorted((m for m in chosen if m.name not in known), key=lambda m: (m.path, m.begin))
    print(f"{len(mutants)} mutants in {len(files)} files; {len(chosen)} of the sample are not known as equivalent")
    if given.list:
        print(*(f"{m.path}:{m.line}: {m.what}: {m.code}" for m in chosen), sep="\n")
        return 0
    import msgspec  # noqa: F401 - before the forks, which then start faster

    seconds, survivors = dict[tuple[str, ...], float](), list[Mutant]()
    for tests in {tests for m in chosen for tests in suites(m.path)}:
        how, seconds[tests] = run(tests, None, 900)
        if how != "passed":
            sys.exit(f"The tests fail without a mutant: {' '.join(tests)}")
    with ProcessPoolExecutor(given.jobs) as pool:  # each worker has one thread, so that it can fork
        for mutant, survived in zip(chosen, pool.map(survives, chosen, repeat(seconds)), strict=True):
            survivors += [mutant] * survived
            how = "survived" if survived else "killed"
            print(f"{how:8} {mutant.path}:{mutant.line}: {mutant.what}: {mutant.code}", flush=True)
    killed = len(chosen) - len(survivors)
    print(f"{killed} of {len(chosen)} mutants killed ({killed / max(1, len(chosen)):.1%}; goal {GOAL:.0%})")
    return 0 if killed >= GOAL * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
