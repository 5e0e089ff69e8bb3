"""Redact the values of names that say "secret": assignments in shells, code, JSON, YAML, TOML, XML, and options.

Some values are no secret, whatever name they have: words, numbers, places to fill in, names in source code.
"""

from __future__ import annotations

import re
from functools import partial

from wal_agent.redact.hits import MARK, Hit, compiled, replace_each

_Q = r"\\{0,7}[\"']"  # a quote, escaped as often as JSON is inside JSON

# What a name ends with, by how the ending begins; before some of them only certain words may stand.
_ENDINGS: tuple[tuple[str, str], ...] = (
    ("passw", r"pass(?:word|wd)s?"),
    ("passp", r"passphrase"),
    ("passc", r"passcode"),
    ("pass", r"pass(?![A-Za-z])"),
    ("pwd", r"pwd"),
    ("secret", r"secret"),
    ("token", r"token"),
    ("auth", rf"auth(?:(?<=[_-]auth)|(?={_Q}\s{{0,4}}:\s{{0,4}}{_Q}[A-Za-z0-9+/=]{{16,}}))"),
    ("credential", r"credentials?"),
    ("key", r"key(?:[_-]?id|[_-]data|_base)?"),
    ("signature", r"signature"),
    ("sig", r"sig(?==)"),
)
# Looked up as ends of the text before, which is quicker than a pattern that must end there.
_BEFORE_KEY = (
    "api", "app", "access", "secret", "private", "priv", "signing", "encryption", "encrypt", "auth", "account",
    "shared", "master", "storage", "service", "client", "deploy", "license", "application", "ssh", "subscription",
    "webhook", "hmac", "jwt", "session", "admin", "agent", "function", "functions", "host", "ingest", "aes",
    "cipher", "crypto", "crypt", "publishable", "restricted", "management", "write", "sas", "cosmos", "integration",
)  # fmt: skip
_JOINTS = ("_", ".", " ", "-")
_BEFORE = {
    "signature": ("x-amz-", "x-goog-", "x-hub-", "access"),
    "sig": ("?", "&", ";", "u0026"),
}
_APART = ("pass", "pwd")  # not the end of a longer word: bypass, compass

_SEPARATOR = (
    rf"(?P<sep>(?:{_Q})?\]?(?:[ \t]{{0,4}}:[ \t]{{0,4}}[A-Za-z_][\w.]{{0,30}}(?:\[[\w., |]{{0,30}}\])?"
    rf"(?:[ \t]?\|[ \t]?\w{{1,20}}){{0,2}}"
    rf"[ \t]{{0,4}}=(?!=)[ \t]{{0,4}}|[ \t]{{0,20}}(?::=|=>|=(?!=)|:|\?=|\+=(?=[ \t]*[\"']))[ \t]{{0,20}})"
    rf"|(?:{_Q})?,?\s{{0,40}}(?:{_Q})?[Vv]alue(?:{_Q})?[ \t]{{0,4}}[:=][ \t]{{0,4}}"
    rf"|>(?=[^<>\n]{{1,500}}</)"
    rf"|(?P<space>(?:{_Q})?,?[ \t]{{1,8}}|{_Q},\s{{1,40}})(?!-))"
)
_NAMED_VALUE = (
    rf"(?P<prefix>[bBrRfFuU]{{0,2}}(?P<quote>{_Q}|`(?![^`\n]{{0,400}}[ $])))"
    rf"(?P<in>(?>(?:(?!(?P=quote))(?:\\.|[^\n])){{1,1000}}))(?=(?P=quote))"
    r"|[|>][+-]?[ \t]*\n(?P<block>(?>(?:[ \t]{1,80}[^\s][^\n]{0,400}+(?:\n|\Z)){1,40}))"
    r"|(?P<bare>[^\s\"'`,;&|<>(){}\[\]\\]{1,4000})"
)
_NAMED_RULES = tuple(
    (begins, rf"(?i:{ending})[0-9]{{0,2}}{_SEPARATOR}(?:{_NAMED_VALUE})") for begins, ending in _ENDINGS
)  # made once: the name of a compiled pattern is looked up by its text
_BACKWARDS = r"[\w.-]{0,63}"
_SET = (
    r"(?:\b(?:ENV|setenv|set[ \t]+-{1,2}[\w-]{1,20})|"
    r"\b(?:git|npm|pnpm|yarn|pip|poetry|aws|composer)[ \t]+(?:config|configure)"
    r"(?>(?:[ \t]+-{1,2}[\w-]{1,20})*)(?:[ \t]+set)?)"
    r"[ \t]+[\w.:/@-]{0,80}\Z"
)
_SHELL_REST = r"[^\s\"'`;&|<>)\\]{1,4000}"

_HARMLESS = (
    r"[\"']?(?:\$|\$[A-Za-z_][A-Za-z0-9_]*|\$\$?\{.*|\$\(.*|\{+[^{}]*\}+|<[^>]*>|%[A-Za-z0-9_]+%|\*+|(?i:x){3,}|\.{2,}|"
    r"[0-9]{1,7}|.{0,2}|\#[0-9a-fA-F]{3,8}|https?://[^\s?@]{0,500}|[\^~<>=v]{0,3}[0-9]{1,9}(?:\.[0-9]{1,9}){1,3}(?:[-+.][a-z0-9.]{1,20})?|(?:~|\.{1,2})?(?:/[A-Za-z0-9_.@-]{1,40}){2,}/?|(?i:true|false|null|none|nil|undefined|yes|no|on|off|"
    r"required|optional|missing|invalid|expired|empty|unset|write|read|inherit|"
    r"typeof|new|await|async|function|lambda|void|self|this|import|return|if|else|not|the|this|is|are|was|for|from|with|"
    r"and|must|should|may|can|your|cannot|could|has|had|expected|got|basic|bearer)|(?:os|process\.env|env|secrets|"
    r"self|this|config|settings|var|local|data|module)\.\S*|\[redacted\].*)?[\"']?"
)
_TYPES = (
    r"(?i:str|string|int|integer|number|bool|boolean|bytes|any|object|dict|list|void|char|unknown|"
    r"secretstr|final)[?;!]?"
)
# What source code says where a file of settings would have the secret itself.
_CALLED = r"[A-Za-z_][A-Za-z0-9_.]*"
_DOTTED = r"[A-Za-z_]+(?:(?:\.|->|::|\?\.)[A-Za-z_]+)+[;!]?"
_OF_WORDS = r"_{0,2}[A-Za-z]+(?:_[A-Za-z]+)+|_?[a-z]+(?:[A-Z][a-z]+)+|(?:[A-Z][a-z]+){2,}"
_SAYS_SO = r"(?i)\w{0,40}(?:pass|secret|token|key|cred|auth|cookie|hash)\w{0,20}"


def redact_named_values(text: str) -> str:
    """The text without the values of names that say that they are secret."""
    return replace_each(text, {begins: partial(_assigned, begins, regex) for begins, regex in _NAMED_RULES}, low=True)


def _may_follow(begins: str, before: str) -> bool:
    """Whether a name that ends so, behind `before` in small letters, says "secret"."""
    if begins == "key":
        return before.endswith(_BEFORE_KEY) or (before.endswith(_JOINTS) and before[:-1].endswith(_BEFORE_KEY))
    return begins not in _BEFORE or before.endswith(_BEFORE[begins])


def _assigned(begins: str, assigned: str, text: str, at: int) -> Hit | None:
    before = text[max(0, at - 24) : at]
    if begins in _APART and before[-1:].isalpha() and not (before[-1].islower() and text[at].isupper()):
        return None
    if before.endswith("${") or _no_secret(begins, before, text[at : at + 4]):
        return None
    if not _may_follow(begins, before.lower()):
        return None
    m = compiled(assigned).match(text, at)
    if m is None or (m["space"] is not None and not _takes_a_word(text, at)):
        return None
    value = m["in"] or m["bare"]
    if m["space"] is not None and value is not None and value.startswith("-"):
        return None  # the next option
    if m["block"] is not None:
        return (m.start("block"), m.end("block"), f"  {MARK}\n") if m["block"].strip() != MARK else None
    if (bare := m["bare"]) is None:
        return None if is_harmless(m["in"]) or is_code_inside(m) else (m.start("in"), m.end("in"), MARK)
    start, end = m.start("bare"), m.end("bare")
    if m["sep"] and text[at : m.start("sep")].lower() == bare.lower():
        return None  # password=password
    if bare.isalpha() and (
        before.endswith(("self.", "this.", "self._")) or (begins == "pass" and before[-1:] not in ("_", "-", "."))
    ):
        return None
    spaced = m["sep"][-1:] in (" ", "\t")
    if is_harmless(bare) or (
        m["space"] is None and m["sep"] != ">" and (spaced or _in_code(text, at)) and is_code(bare, text[end : end + 1])
    ):
        return None
    if spaced and "=" in m["sep"] and bare.isalpha() and compiled(r"\s*(?:=|,)|.*\b(?:self|this)\.").match(text, end):
        return None
    if begins == "credential" and bare.isalpha():
        return None  # what follows is prose
    if text[at].isupper() and m["sep"].endswith("=") and (rest := compiled(_SHELL_REST).match(text, start)):
        end = rest.end()  # X_TOKEN=a,b(c
    return start, end, MARK


def _no_secret(begins: str, before: str, ending: str) -> bool:
    """PWD is the working folder, and an accesskey (in one word) is a key on the keyboard."""
    if begins == "pwd":
        return (
            ending[:3] == "PWD" and not (before[-1:].isalnum() or (before.endswith("_") and before[:-1]))
        ) or before.endswith("OLD")
    return begins == "key" and before.lower().endswith("access") and ending[0] == "k"


def is_code_inside(m: re.Match[str]) -> bool:
    """An f-string of nothing but names, or a format's place."""
    return "f" in m["prefix"].lower() and "{" in m["in"]


def _in_code(text: str, at: int) -> bool:
    """Whether the assignment may be one of source code: not X_TOKEN=, --token=, ?token= or &token=."""
    start = at
    while start > max(0, at - 60) and (text[start - 1].isalnum() or text[start - 1] in "_.-"):
        start -= 1
    return not (text[start : at + 3].isupper() or text[start] == "-" or text[max(0, start - 1) : start] in ("?", "&"))


def _takes_a_word(text: str, at: int) -> bool:
    """Whether the name is an option's, or set by a command, so that the next word is its value."""
    before = text[max(0, at - 100) : at]
    backwards = compiled(_BACKWARDS).match(before[::-1])
    if backwards and backwards[0].endswith("-") and backwards.end() < 63:
        return True
    return any(word in before for word in ("ENV", "set", "config")) and compiled(_SET).search(before) is not None


def is_harmless(value: str) -> bool:
    return value.startswith(MARK) or compiled(_HARMLESS, re.DOTALL).fullmatch(value) is not None


def is_code(value: str, follows: str) -> bool:
    """Whether a bare value is the name of something: `read(` of a call, `self.token`, `user_password`, `str`."""
    return (
        (follows in ("(", "[", "{") and compiled(_CALLED).fullmatch(value) is not None)
        or compiled(_TYPES).fullmatch(value) is not None
        or compiled(_DOTTED).fullmatch(value) is not None
        or compiled(_OF_WORDS).fullmatch(value) is not None
        or (
            compiled(_SAYS_SO).fullmatch(value) is not None
            and value.isidentifier()
            and not any(c.isdigit() for c in value)
        )
    )
