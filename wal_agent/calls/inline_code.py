"""Read code on a command line or as input (`python3 -c CODE`, `python3 - <<'EOF'`, `node -p CODE`), and find out
whether it only reads. Pure.

Python is read by its own parser; of JavaScript only expressions that print constants of node or a value of a JSON file
are known. What is not in reading.toml, nor here, may do anything.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Final, Literal

from wal_agent.calls.rules.match import is_live_file, reading_names
from wal_agent.calls.shell.syntax import Simple

MAX_CODE = 16 << 10  # characters
_PROGRAM: Final = re.compile(r"(?:/usr/(?:local/)?bin/)?python(?:3(?:\.\d+)?)?")
_COOKIE: Final = re.compile(r"^\s*#.*coding[:=]", re.MULTILINE)  # another encoding is other code
_PYTHON_OPTIONS: Final = re.compile(r"-[IPsSEBuq]*[c]?")
_MAX_NODE_CODE: Final = 2000  # characters
_TEXT: Final = r"""(?:'[^'"`\\\n]*+'|"[^'"`\\\n]*+")"""
_NUMBER: Final = r"\d++(?>(?:\.\d++)?)"
_NAME: Final = r"[A-Za-z_]\w*+(?>(?:\.[A-Za-z_]\w*+)*)"
_FILE: Final = r"\.{1,2}/[\w./@-]+\.json"
_CONSTANT: Final = r"process\.(?:versions?+|platform|arch|argv)(?>(?:\.[A-Za-z_]\w*+)*)"

Reads = Literal["read_only", "idempotent"]
_NODE_OPTIONS: Final = frozenset({"-p", "-e", "-pe", "--print", "--eval"})
_VALUE: Final = (
    rf"(?:{_TEXT}|{_NUMBER}|{_CONSTANT}|require\s*\(\s*(?:'{_FILE}'|\"{_FILE}\")\s*\))"
    rf"(?>(?:\s*\.\s*{_NAME}|\s*\[\s*(?:{_TEXT}|{_NUMBER})\s*\])*)"
)
_SUM: Final = rf"(?:null|{_VALUE}(?>(?:\s*[-+*/]\s*{_VALUE})*))"
_SHOWN: Final = (
    rf"(?:(?:JSON\.stringify|Object\.(?:keys|values|entries))\s*\(\s*{_SUM}(?>(?:\s*,\s*{_SUM})*)\s*\)|{_SUM})"
)

_PLAIN: Final = (
    *(ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.With, ast.Pass),
    *(ast.Break, ast.Continue, ast.Try, ast.ExceptHandler, ast.Assert, ast.Return, ast.Raise, ast.FunctionDef),
    *(ast.BoolOp, ast.NamedExpr, ast.BinOp, ast.UnaryOp, ast.Lambda, ast.IfExp, ast.Dict, ast.Set, ast.ListComp),
    *(ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Compare, ast.FormattedValue, ast.JoinedStr, ast.Constant),
    *(ast.Subscript, ast.Starred, ast.List, ast.Tuple, ast.Slice, ast.comprehension, ast.arguments, ast.arg),
    *(ast.keyword, ast.withitem, ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.Yield),
)


def classify_code(c: Simple) -> Reads | None:
    return classify_python(c) or classify_node(c)


def classify_python(c: Simple) -> Reads | None:
    """What a command that gives Python its code changes at worst, if that is known: "idempotent" where a module of the
    folder may take the place of one of Python's own; None for all else."""
    found = _code(c)
    if found is None or len(found[0]) > MAX_CODE or _COOKIE.search(found[0]):
        return None
    code, isolated = found
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
        seen = _CodeReader(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError, _UnknownCode):
        return None
    return "idempotent" if seen.shadowed and not isolated else "read_only"


def _code(c: Simple) -> tuple[str, bool] | None:
    """The code, and whether Python looks for modules outside of the folder only."""
    texts = [w.text for w in c.words]
    if not texts or texts[0] is None or _PROGRAM.fullmatch(texts[0]) is None:
        return None
    isolated = False
    for i, text in enumerate(texts[1:], 1):
        if text == "-" or text is None or _PYTHON_OPTIONS.fullmatch(text) is None:
            return (c.input, isolated) if text == "-" and c.input is not None else None
        isolated = isolated or "I" in text or "P" in text
        if text.endswith("c"):
            code = texts[i + 1] if i + 1 < len(texts) else None
            return None if code is None else (code, isolated)
    return None if c.input is None else (c.input, isolated)


class _UnknownCode(Exception):
    """There is something in the code that is in no list."""


class _CodeReader:
    """Walks a tree; raises _UnknownCode at the first thing that is in no list."""

    def __init__(self, tree: ast.Module) -> None:
        self.shadowed = False
        self._names = reading_names().python
        self._modules: dict[str, str] = {}  # by the name that the code has for it
        self._bound: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._bind(node.id)
            elif isinstance(node, ast.arg):
                self._bind(node.arg)
            elif isinstance(node, ast.FunctionDef):
                if node.decorator_list:
                    raise _UnknownCode
                self._bind(node.name)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                self._bind(node.name)
        if self._modules.keys() & self._bound:
            raise _UnknownCode  # a name that is now a module and now something else
        todo: list[ast.AST] = [tree]
        while todo:
            todo += self._children(todo.pop())

    def _bind(self, name: str) -> None:
        if name.startswith("__") or name in ("open", "print"):
            raise _UnknownCode
        self._bound.add(name)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            used = self._known(module)
            for alias in node.names:
                if node.level or alias.name not in used or f"{module}.{alias.name}" in self._names.modules:
                    raise _UnknownCode
                self._bind(alias.asname or alias.name)
            return
        for alias in node.names:
            self._known(alias.name)
            if "." in alias.name and alias.asname is None:
                self._modules[alias.name.partition(".")[0]] = alias.name.partition(".")[0]
            else:
                self._modules[alias.asname or alias.name] = alias.name

    def _known(self, module: str) -> frozenset[str]:
        if module in self._names.modules:
            return self._names.modules[module]
        if f"*{module}" not in self._names.modules:
            raise _UnknownCode
        self.shadowed = True
        return self._names.modules[f"*{module}"]

    def _children(self, node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.Name):
            known = node.id in self._bound or node.id in self._names.builtins or node.id == "__name__"
            if isinstance(node.ctx, ast.Del) or not (known or isinstance(node.ctx, ast.Store)):
                raise _UnknownCode
            return
        if isinstance(node, ast.Attribute):
            yield from self._attribute(node)
            return
        if isinstance(node, ast.Call):
            yield from self._call(node)
            return
        if not isinstance(node, _PLAIN):
            raise _UnknownCode
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and not isinstance(node.value, ast.Name):
            raise _UnknownCode
        yield from ast.iter_child_nodes(node)

    def _attribute(self, node: ast.Attribute) -> Iterator[ast.AST]:
        if not isinstance(node.ctx, ast.Load):
            raise _UnknownCode
        module = self._module(node.value)
        if module is None:
            if node.attr not in self._names.attributes:
                raise _UnknownCode
            yield node.value
        elif node.attr not in self._names.modules.get(module, self._names.modules.get(f"*{module}", frozenset())):
            raise _UnknownCode

    def _module(self, node: ast.expr) -> str | None:
        """The module that an expression names."""
        if isinstance(node, ast.Name):
            return self._modules.get(node.id)
        if isinstance(node, ast.Attribute) and (above := self._module(node.value)) is not None:
            name = f"{above}.{node.attr}"
            return name if name in self._names.modules or f"*{name}" in self._names.modules else None
        return None

    def _call(self, node: ast.Call) -> Iterator[ast.AST]:
        func = node.func
        if isinstance(func, ast.Name) and func.id == "open":
            _check_open(node)
        elif isinstance(func, ast.Attribute) and self._is_stream(func):
            pass  # sys.stdout.write
        elif isinstance(func, ast.Name | ast.Attribute | ast.Call | ast.Lambda):
            yield func
        else:
            raise _UnknownCode
        yield from node.args
        yield from node.keywords

    def _is_stream(self, func: ast.Attribute) -> bool:
        of = func.value
        known = isinstance(of, ast.Attribute) and self._module(of.value) == "sys" and of.attr in ("stdout", "stderr")
        return known and func.attr in ("write", "flush")


def _check_open(node: ast.Call) -> None:
    """Allow `open` only for reading a plain file whose name is literal."""
    words = {k.arg: k.value for k in node.keywords}
    if not node.args or len(node.args) > 2 or words.keys() - {"mode", "encoding", "errors", "newline"}:
        raise _UnknownCode
    name, mode = node.args[0], node.args[1] if len(node.args) > 1 else words.get("mode", ast.Constant("r"))
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str) or is_live_file(name.value):
        raise _UnknownCode
    if not isinstance(mode, ast.Constant) or mode.value not in ("r", "rb", "rt"):
        raise _UnknownCode


@cache  # and not at import: it takes 20 ms to compile, and few runs see such code
def _only_prints() -> re.Pattern[str]:
    return re.compile(rf"\s*(?:console\.log\s*\(\s*{_SHOWN}(?>(?:\s*,\s*{_SHOWN})*)\s*\)|{_SHOWN})\s*;?\s*", re.ASCII)


def classify_node(c: Simple) -> Reads | None:
    """As `classify_python`: "idempotent" where a module of the folder may take the place of the JSON file."""
    texts = [w.text for w in c.words]
    if len(texts) != 3 or texts[0] not in ("node", "nodejs", "/usr/bin/node") or texts[1] not in _NODE_OPTIONS:
        return None
    code = texts[2]
    if code is None or len(code) > _MAX_NODE_CODE or is_live_file(code) or _only_prints().fullmatch(code) is None:
        return None
    return "idempotent" if re.search(r"(?<![\w.])require\b", re.sub(_TEXT, "", code)) else "read_only"
