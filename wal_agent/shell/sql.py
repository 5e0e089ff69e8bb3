"""Whether the text of one SQL statement only reads, as far as its words show. Pure.

A statement is taken apart into tokens; each word in front of a "(" must be a function or a keyword that is listed, so
one that writes (writefile, load_extension, nextval) or one of the user's own makes it unknown.
What a view does is not in the words: who uses this says what that means for it.
"""

from __future__ import annotations

import re
from typing import Final

MAX_STATEMENT: Final = 8 << 10  # characters
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*(?:\n|\Z)|/\*(?:(?!\*/|/\*).)*\*/)
    |(?P<comment>/\*)
    |(?P<text>'(?:[^']|'')*')|(?P<name>"(?:[^"]|"")*")
    |(?P<word>[A-Za-z_][\w$]*)|(?P<number>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)
    |(?P<cast>::)|(?P<mark>[-+*/<>=~!@\#%^&|?(),.;])""",
    re.VERBOSE | re.DOTALL,
)
_BEGINS: Final = frozenset({"select", "with", "values", "explain", "show", "table"})
_NEVER_TEXT: Final = """
    insert update delete into create drop alter truncate grant revoke copy call do merge vacuum reindex refresh comment
    set begin commit rollback replace attach detach load lock listen notify unlisten analyze analyse cluster discard
    execute prepare deallocate declare fetch move reset security import savepoint release abort share
    nowait checkpoint reassign
"""
_NEVER: Final = frozenset(_NEVER_TEXT.split())
_BEFORE_TEXT: Final = """
    in values as over exists any all some and or not on using where select when then else case by from join like having
    filter within union except intersect limit offset distinct between is partition materialized lateral with ilike
    left right inner outer cross natural full recursive group order row array
"""
_FUNCTION_TEXT: Final = """
    count sum avg min max total group_concat string_agg array_agg json_agg jsonb_agg json_group_array json_group_object
    abs round floor ceil ceiling trunc power sqrt mod sign
    lower upper length char_length octet_length substr substring trim ltrim rtrim instr position strpos
    concat concat_ws left right lpad rpad split_part initcap printf format hex quote unicode char
    coalesce nullif ifnull iif greatest least cast typeof
    date time datetime julianday strftime unixepoch now date_trunc date_part extract age to_char to_date to_timestamp
    row_number rank dense_rank ntile lag lead first_value last_value percentile_cont percentile_disc
    json_extract json json_array_length json_each json_tree json_type jsonb_array_elements json_array_elements
    jsonb_object_keys unnest generate_series array_length cardinality
    pg_size_pretty pg_total_relation_size pg_relation_size pg_table_size pg_database_size pg_get_viewdef
    pg_get_indexdef pg_get_constraintdef pg_get_functiondef current_database current_schema current_user version
    sqlite_version to_regclass format_type obj_description col_description
    varchar numeric decimal char character int integer timestamp interval
    pragma_table_info pragma_index_list pragma_foreign_key_list
"""
_BEFORE: Final = frozenset((_BEFORE_TEXT + _FUNCTION_TEXT).split())
_PLACES: Final = frozenset({"from", "join", "table"})
_NAME: Final = re.compile(r"[\w.:/@?=&%+-]+")  # of a database or a host


def is_operand(text: str, what: str) -> bool:
    """Whether an operand is what a rule of the data asks for: "query" a statement that only reads, "constant" one that
    asks no table either; "name or ..." also the name of a database."""
    kind = what.removeprefix("name or ")
    if kind != what and _NAME.fullmatch(text) and text.lower() not in _NEVER:
        return True
    return only_reads(text, tables=kind == "query")


def only_reads(text: str, tables: bool = True) -> bool:
    """Whether `text` is one statement that asks, and calls nothing that is not known to read."""
    tokens = _tokens(text)
    if tokens is None or not tokens:
        return False
    if tokens[-1] == ("mark", ";"):
        tokens.pop()
    words = [value for kind, value in tokens if kind == "word"]
    if not tokens or tokens[0][0] != "word" or tokens[0][1] not in _BEGINS or not _NEVER.isdisjoint(words):
        return False
    if not tables and not _PLACES.isdisjoint(words):
        return False
    for i, (kind, value) in enumerate(tokens):
        if (kind, value) in (("mark", ";"), ("mark", ":")):
            return False
        if kind != "mark" or value != "(" or i == 0:
            continue
        before_kind, before = tokens[i - 1]
        if before_kind == "name" or (before_kind == "word" and before not in _BEFORE):
            return False
        if before_kind == "word" and i > 1 and tokens[i - 2] == ("mark", "."):
            return False  # another schema's function
    return True


def _tokens(text: str) -> list[tuple[str, str]] | None:
    """(kind, value in lower case) without spaces and comments; None where a character is none of them."""
    if len(text) > MAX_STATEMENT or "\\" in text or "$" in text or "\0" in text:
        return None
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        m = _TOKEN.match(text, at)
        if m is None or m.end() == at:
            return None
        at = m.end()
        if m.lastgroup == "comment":
            return None  # one that is not closed, or has another one inside: databases differ in where it ends
        if m.lastgroup not in (None, "space"):
            found.append((str(m.lastgroup), m[0].lower()))
    return found
