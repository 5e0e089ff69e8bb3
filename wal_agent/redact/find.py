"""Find secrets in text and replace them, in a whole text or in the ends of one that is cut.

Names that say "secret": the values of assignments in shells, code, JSON, YAML, TOML, XML, and of options.

Formats: private keys in PEM, tokens of known issuers, JWTs. key_formats.json has the formats of gitleaks' public rule
set (scripts/update_key_formats.py). issuers.toml has what that set lacks, and what it knows more narrowly: of one
length, or with a threshold of entropy.

Context: credentials in URLs, headers, command lines and password files, whatever they look like.

Random words: long, and mixed of small letters, capitals and digits. Keys of issuers that no rule knows look so. Hashes,
UUIDs and ids in hex or base32 have one case; names and paths have words in them; digests in base64 say what they are; a
file's or a host's name has a dot.
"""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.resources import files
from itertools import pairwise
from math import log2

import msgspec

MARK = "[redacted]"

# From, to, and what to put there; nothing between `to` and `to` is what a look-up gives that wants to go on from there.
Hit = tuple[int, int, str]
Look = Callable[[str, int], Hit | None]

# A key may stand behind an escape that ends with a letter or a digit.
_ESCAPE = re.compile(r"(?:\\[nrtbfv0]|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|%[0-9A-Fa-f]{2}|\x1b\[[0-9;]{0,9}m)\Z")
_DIGEST = re.compile(r"(?:sha-?[0-9]{1,3}|md5|h1)[-=:]\Z", re.IGNORECASE)  # what follows is of chance, and is no key
_WORD_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


@cache
def compiled(regex: str, flags: int = 0) -> re.Pattern[str]:
    """Compiled when it is first needed: most texts need few of the patterns, and a start of the program none."""
    return re.compile(regex, flags)


def at_edge(text: str, at: int) -> bool:
    """Whether a word may begin here."""
    if at == 0 or text[at - 1] not in _WORD_CHARS:
        return at == 0 or text[at - 1] not in "-=:" or _DIGEST.search(text[max(0, at - 8) : at]) is None
    return _ESCAPE.search(text[max(0, at - 12) : at]) is not None


def lower_same_length(text: str) -> str:
    """In small letters, of the same length."""
    low = text.lower()
    return low if len(low) == len(text) else text.replace("\u0130", "I").lower()  # the one letter that grows


def replace_each(text: str, looks: Mapping[str, Look], low: bool = False) -> str:
    """The text with what is found at the places of each beginning by its look. With `low` the beginnings are in small
    letters, and stand for capitals too."""
    within = lower_same_length(text) if low else text
    for beginning, look in looks.items():
        if (at := within.find(beginning)) < 0:
            continue
        parts: list[str] = []
        done = 0
        while at >= 0:
            hit = look(text, at)
            if hit is not None and hit[0] >= done:
                parts += (text[done : hit[0]], hit[2])
                done = hit[1]
            at = within.find(beginning, max(at + 1, done))
        if done:
            text = "".join((*parts, text[done:]))
            within = lower_same_length(text) if low else text
    return text


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


def is_harmless(value: str) -> bool:
    return value.startswith(MARK) or compiled(_HARMLESS, re.DOTALL).fullmatch(value) is not None


# What source code says where a file of settings would have the secret itself.
_CALLED = r"[A-Za-z_][A-Za-z0-9_.]*"
_DOTTED = r"[A-Za-z_]+(?:(?:\.|->|::|\?\.)[A-Za-z_]+)+[;!]?"
_OF_WORDS = r"_{0,2}[A-Za-z]+(?:_[A-Za-z]+)+|_?[a-z]+(?:[A-Z][a-z]+)+|(?:[A-Z][a-z]+){2,}"
_SAYS_SO = r"(?i)\w{0,40}(?:pass|secret|token|key|cred|auth|cookie|hash)\w{0,20}"


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


_BEGIN = r"(-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----)"
_BODY = r"((?>(?:[A-Za-z0-9+/=\s\\:,.()\"']|-(?!----))*))"
_PEM_END = r"-----END (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\ \t\r\n"
_LINE = 16  # characters of a body that are taken for one


def redact_private_keys(text: str) -> str:
    """The text without the bodies of private keys."""
    if "PRIVATE KEY" not in text:
        return text
    whole = compiled(f"{_BEGIN}(?!-){_BODY}({_PEM_END})?")
    return _headless(whole.sub(_without, text))


def _without(m: re.Match[str]) -> str:
    return f"{m[1]} {MARK} {m[3] or ''}".rstrip() if m[2].strip("\\nr \t\r\n\"'") else m[0]


def _headless(text: str) -> str:
    """Bodies that stand before an end without a beginning."""
    parts: list[str] = []
    done = 0
    for m in compiled(_PEM_END).finditer(text):
        before = text[done : m.start()]
        kept = before.rstrip(_LETTERS)
        body = before[len(kept) :]
        if len(body.strip()) >= _LINE and not kept.endswith(("-----", MARK)):
            # The first word may be of the line before: only what is in base64 goes, from the first long word on.
            first = compiled(rf"[A-Za-z0-9+/=]{{{_LINE},}}").search(body)
            if first:
                before = f"{kept}{body[: first.start()]}{MARK} "
        parts += (before, m[0])
        done = m.end()
    return "".join((*parts, text[done:])) if parts else text


_B = r"[0-9A-Za-z_-]"  # base64url, without padding
_JWT = rf"(?P<found>eyJ{_B}{{8,}}+\.eyJ{_B}{{4,}}+\.{_B}*+)|{_B}*+"  # what is none is passed over in one step
_MAILGUN = (r"(?<!-)key-[0-9a-f]{32}(?![0-9A-Za-z])", "key-")  # `cache-key-` begins none


class IssuerFormats(msgspec.Struct, frozen=True):
    """The content of issuers.toml. `keys`: patterns and what a key begins with; `around`: what stands in the middle of
    a key, and patterns; `services`: schemes of URLs, and the length of the `longest`."""

    keys: tuple[tuple[str, str], ...]
    around: tuple[tuple[str, str], ...]
    services: frozenset[str]
    longest: int


@cache
def _issuer_formats() -> IssuerFormats:
    rows = tomllib.loads(files("wal_agent.redact").joinpath("issuers.toml").read_text("utf-8"))

    def pattern(text: str) -> str:
        return re.sub("<([A-Z]+)>", lambda m: rows["parts"][m[1]], text)

    keys = ((re.escape(start) + pattern(after), start) for after, all in rows["keys"] for start in all.split())
    around = tuple((middle, pattern(whole)) for middle, whole in rows["around"])
    services = frozenset(rows["services"].split())
    return IssuerFormats((*keys, _MAILGUN), around, services, max(map(len, services)))


def redact_keys(text: str) -> str:
    """The text without the keys whose own shape tells what they are."""
    for regex, start in _issuer_formats().keys:
        if start in text:
            text = replace_each(text, {start: partial(_key, compiled(regex))})
    for start, regex, entropy in _public_formats():
        if start in text:
            text = replace_each(text, {start: partial(_key, compiled(regex), entropy=entropy)})
    for middle, regex in _issuer_formats().around:
        if middle in text:
            text = compiled(regex).sub(_at_edge, text)
    return replace_each(text, {"eyJ": _jwt})


def _at_edge(m: re.Match[str]) -> str:
    """Tried here, since a pattern that begins with it is much slower."""
    return MARK if at_edge(m.string, m.start()) else m[0]


def _key(regex: re.Pattern[str], text: str, at: int, entropy: float = 0.0) -> Hit | None:
    m = regex.match(text, at) if at_edge(text, at) else None
    return (at, m.end(), MARK) if m and (not entropy or _entropy(m[0]) > entropy) else None


def _entropy(text: str) -> float:
    """Shannon's, in bits a character, as gitleaks counts it."""
    return -sum(n / len(text) * log2(n / len(text)) for n in Counter(text).values())


@cache
def _public_formats() -> list[tuple[str, str, float]]:
    """What a key begins with, its pattern, and the entropy that it has at least."""
    rows = json.loads(files("wal_agent.redact").joinpath("key_formats.json").read_bytes())["formats"]
    return [(start, row["regex"], row.get("entropy", 0.0)) for row in rows for start in row["starts"]]


def _jwt(text: str, at: int) -> Hit | None:
    if not at_edge(text, at) or (m := compiled(_JWT).match(text, at)) is None:
        return None
    return (at, m.end(), MARK) if m["found"] else (m.end(), m.end(), "")


# scheme://user:password@host and scheme://token@host; a short user name before @ stays (git@, user@).
_USER = r"://([^\s/:@'\"<>?#\\`]{0,200})(?::([^\s/'\"<>\\`]{1,500}))?@"
_SLASHED = (
    r"://([^\s/:@'\"<>?#\\`]{0,200}):(?![0-9]{1,5}(?:[/?#]|\Z))([^\s@'\"<>\\`]{1,500}+)@"  # none of it can be a port
)
_TOKEN_LENGTH = 16

_REST = r"[^\s\"'<>`,\\]{1,2000}+"
_HOOKS = (
    ("hooks.slack.com/", r"(?:services|workflows|triggers)/"),
    ("discord.com/api/", r"(?:v[0-9]+/)?webhooks/"),
    ("discordapp.com/api/", r"(?:v[0-9]+/)?webhooks/"),
    ("webhook.office.com/", r"webhookb2/"),
    ("api.telegram.org/", r"(?:file/)?bot"),
    ("chat.googleapis.com/", r"v1/spaces/[^\s/]{1,60}/messages\?"),
    ("hooks.zapier.com/", r"hooks/catch/"),
    ("maker.ifttt.com/", r"trigger/"),
    ("logic.azure.com", r"[^\s\"'<>`?]{0,300}\?"),
)

_HEADERS = (
    "authorization", "x-api-key", "x-goog-api-key", "x-auth-token", "api-key", "private-token", "cookie", "job-token",
)  # fmt: skip
_HEADER = (
    r"(?:authorization|x-api-key|x-goog-api-key|x-auth-token|api-key|private-token|cookie2?|job-token)"
    r"(?:(?:\\{0,7}[\"'])?\s{0,8}:\s{0,8}"
    r"|(?P<call>\\{0,7}[\"']\]?[ \t]{0,4}[,=][ \t]{0,4})(?=\\{0,7}[\"']))"
    r"(?:\\{0,7}[\"'])?(?:(?:bearer|basic|token|digest|negotiate|apikey|bot|"
    r"aws4-hmac-sha256|splunk|sso-key|key|genie-?key)[ \t=]{1,8})?(?P<first>[^\s\"'\\`]{1,4000}+)"
)
_HEADER_VALUE = r"[^\n\"'\\`]{1,4000}"
_BEARER = r"(?:bearer|basic)(?:\s{1,8}|%20)(?=[^\s\"']{0,80}[0-9=])([A-Za-z0-9_.~+/=-]{12,}+)"

# On the line of a program: the option whose value is secret, up to the value.
_COLON = r"[ \t](?:-[A-Za-z]{0,8}?[uU]|--user|--proxy-user)[ \t=]{0,8}[\"']?[^\s:\"'/]{0,200}:([^\s\"']{1,500})"
_GLUED = r"[ \t]-p(?![ \t])[\"']?([^\s\"']{1,500})"
_SHORT = r"[ \t]-{0}[ \t]{{0,8}}([\"'][^\"'\n]{{1,500}}[\"']|[^\s\"'-][^\s\"']{{0,500}})"
_P, _A, _SHORT_W = (_SHORT.format(letter) for letter in "paw")
_PROGRAMS: tuple[tuple[str, str], ...] = (
    ("curl", _COLON),
    ("wget", _COLON),
    ("http ", r"[ \t](?:-a|--auth)[ \t=]{1,8}[\"']?[^\s:\"']{0,200}:([^\s\"']{1,500})"),
    ("sshpass", _P),
    ("mysql", _GLUED),
    ("mariadb", _GLUED),
    ("mongo", _P),
    (" login", _P),
    ("redis-cli", _A),
    ("ldap", _SHORT_W),
    ("7z", _GLUED),
    (
        "openssl",
        r"[ \t](?:-passin|-passout|-pass|-k|-K)[ \t]{1,8}[\"']?(?!env:|file:|fd:|stdin)(?:pass:)?([^\s\"']{1,500})",
    ),
    ("--password-stdin", ""),
)
_PIPED = (
    r"\b(?:echo|printf)[ \t]{1,8}(?:-[a-zA-Z]{1,3}[ \t]{1,8}){0,3}"
    r"([\"'][^\"'\n|]{1,500}[\"']|[^\s\"'|]{1,500})(?=[ \t]*\|)"
)
_TO_STDIN = ("--password-stdin", "--with-token", "sudo -S", "--passphrase-fd 0", "chpasswd")

# host:port:database:user:password (.pgpass), and login NAME password WORD (.netrc).
_PGPASS = r"(?m)^([\w.*-]{1,253}:(?:[0-9]{4,5}|\*):[A-Za-z_*][^\s:]{0,63}:[A-Za-z_*][^\s:]{0,63}:)([^\s:][^\s]{0,500})$"
_NETRC = r"(?i)(\blogin\s{1,40}\S{1,200}\s{1,40}(?:password|account)\s{1,40})([^\s\"']{1,500})"


def redact_credentials(text: str) -> str:
    """The text without what stands where credentials stand."""
    if "://" in text:
        text = replace_each(text, {"://": _url})
    text = replace_each(text, {host: partial(_hook, host, path) for host, path in _HOOKS}, low=True)
    text = replace_each(text, dict.fromkeys(_HEADERS, _header), low=True)
    text = replace_each(text, {"bearer": _bearer, "basic": _bearer}, low=True)
    for program, option in _PROGRAMS:
        if option and program in text:
            text = _on_lines(text, program, option)
    if any(word in text for word in _TO_STDIN):
        text = compiled(_PIPED).sub(_last, text)
    if "password" in text:
        text = compiled(_NETRC).sub(_last, text)
    return compiled(_PGPASS).sub(_last, text) if ":" in text and compiled(r":(?:[0-9]{4,5}|\*):").search(text) else text


def _last(m: re.Match[str]) -> str:
    """The match with its last group replaced."""
    n = m.re.groups
    return m[0] if is_harmless(m[n]) else f"{m.string[m.start() : m.start(n)]}{MARK}{m.string[m.end(n) : m.end()]}"


def _url(text: str, at: int) -> Hit | None:
    start, known = at, _issuer_formats()
    while start > max(0, at - known.longest - 1) and text[start - 1].isalnum():
        start -= 1
    if text[start:at].lower() in known.services:
        rest = compiled(_REST).match(text, at + 3)
        return (at + 3, rest.end(), MARK) if rest and rest[0][0] not in "${<[" else None
    if text.find("@", at, at + 710) < 0:
        return None
    if (m := compiled(_USER).match(text, at) or compiled(_SLASHED).match(text, at)) is None:
        return None
    if m[2] is None:
        return (m.start(1), m.end(1), MARK) if len(m[1]) >= _TOKEN_LENGTH else None
    if m[2] in ("x-oauth-basic", "") and len(m[1]) >= _TOKEN_LENGTH:
        return m.start(1), m.end(1), MARK
    return None if is_harmless(m[2]) else (m.start(2), m.end(2), MARK)


def _hook(host: str, path: str, text: str, at: int) -> Hit | None:
    m = compiled(f"({path})({_REST})", re.IGNORECASE).match(text, at + len(host))
    return (m.start(2), m.end(2), MARK) if m else None


def _header(text: str, at: int) -> Hit | None:
    if text[at] in "cC" and text.find("=", at, at + 200) < 0:
        return None  # a cookie is NAME=VALUE
    if (m := compiled(_HEADER, re.IGNORECASE).match(text, at)) is None:
        return None
    if m["call"] and not text[max(0, at - 20) : at].rstrip("\"'\\proxyPROXY-").endswith(("(", "[")):
        return None  # a list of words, not `set("Authorization", "...")`
    first, start = m["first"], m.start("first")
    more = compiled(r"[ \t]{1,40}[^\s\"'\\`]").match(text, m.end()) is not None
    if is_code(first, "") or (more and is_harmless(first.rstrip(",;"))):
        return None
    value = compiled(_HEADER_VALUE).match(text, start)
    if value is None or (text[at] in "cC" and "=" not in value[0]) or is_harmless(value[0].strip()):
        return None
    return start, value.end(), MARK


def _bearer(text: str, at: int) -> Hit | None:
    m = compiled(_BEARER, re.IGNORECASE).match(text, at)
    return (m.start(1), m.end(1), MARK) if m else None


def _on_lines(text: str, program: str, option: str) -> str:
    """Secret options behind a program's name, on its line and on the lines that continue it."""

    def look(text: str, at: int) -> Hit:
        end = _end_of_line(text, at)
        line = text[at:end]
        return at, end, compiled(option).sub(_last, line)

    return replace_each(text, {program: look})


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    while end > 0 and text[end - 1] == "\\":
        end = text.find("\n", end + 1)
    return end if end >= 0 else len(text)


_LEAST = 20
_RANDOM_WORD = (
    rf"(?:(?<![0-9A-Za-z_+/.~@%\\$#=-])|(?<==)|(?<=%[0-9A-F]{{2}})|(?<=\x1b\[[0-9]m)|(?<=\x1b\[[0-9]{{2}}m)|(?<=\\[nrt]))"
    rf"[0-9A-Za-z_+/-]{{{_LEAST},}}+={{0,2}}"
    r"(?![0-9A-Za-z_+/@(\[~-]|\\(?![nrt\"'])|\.[0-9A-Za-z]|%(?![0-9A-F]{2}))"
)
# What a digest, an id or public data says of itself, in the word or before it.
_SAYS = (
    r"(?:sha-?[0-9]{1,3}|md5|blake\w{1,3}|crc32c?|h1|hash|digest|checksum|fingerprint|integrity|etag|nonce|cursor|"
    r"(?<![A-Za-z])(?:id|ids|uid|uuid|guid|sid|cid)|[a-z](?:Id|ID|Uid|Hash)|base64|mappings|revision|version|build|"
    r"ssh-[a-z0-9]{3,10}|"
    r"ecdsa-[a-z0-9-]{1,30}|certificate-authority-data|caBundle)\\?[\"']?[\])]?[ \t]{0,4}[-:=,~]?[ \t]{0,4}\\?[\"']?\Z"
)
_OWN = (
    r"(?:sha\d{1,3}|md5|blake\w{1,3}|toolu|srvtoolu|call|fc|msg|req|resp|rs|run|step|thread|asst|chatcmpl|cmpl|gen|batch|"
    r"file|evt|cus|pi|ch|in|sub|prod|price|seti|pm|txn|session|job|index|chunk|vendor|main|app|style|polyfills)[_-]|"
    r"_Z|_R|AAAA[BCE]|iVBORw0KGgo|/9j/|R0lGOD|UklGR|PHN2Zy|JVBERi|LS0tLS1CRUdJTiBD|LS0tLS1CRUdJTiBQVUJM|H4sI|UEsDB"
)
_HEX = r"(?:0x)?[0-9a-fA-F_+/=-]+[uUlL]{0,3}"
_PUBLIC = r"-----BEGIN (?!(?:[A-Z0-9]{1,20} ){0,3}PRIVATE)[A-Z0-9 ]{1,40}-----[A-Za-z0-9+/=\s\\:,.()]*+"


def redact_random_words(text: str) -> str:
    """Redact the words that look random."""
    public = [m.span() for m in compiled(_PUBLIC).finditer(text)] if "-----BEGIN " in text else []

    def put(m: re.Match[str]) -> str:
        if not looks_random(m[0]) or compiled(_OWN).match(m[0]):
            return m[0]
        if compiled(_SAYS, re.IGNORECASE).search(text[max(0, m.start() - 48) : m.start()]):
            return m[0]
        n = bisect_right(public, (m.start(), len(text)))
        return m[0] if n and m.start() < public[n - 1][1] else MARK

    return compiled(_RANDOM_WORD).sub(put, text)


def looks_random(word: str) -> bool:
    """Whether no person, and no digest in hex, would be written so."""
    if compiled(_HEX).fullmatch(word):
        return False
    parts = word.rstrip("=").split("/")
    if len(parts) > 1 and (len(word) < 32 or any(_is_plain(part) for part in parts if len(part) > 2)):
        return False
    return _turns(word) or any(_turns(part) for part in re.split("[-_]", word) if _LEAST <= len(part) < len(word))


def _turns(word: str) -> bool:
    """Whether small letters, capitals and digits change so often that they make no words."""
    kinds = [1 if c.islower() else 2 if c.isupper() else 3 for c in word if c.isalnum()]
    pairs = list(pairwise(kinds))
    if len(kinds) < _LEAST or len(set(kinds)) < 3 or len(set(word)) < min(len(word), 30) // 2:
        return False
    numbers = (kinds[0] == 3) + sum(a != 3 and b == 3 for a, b in pairs)
    least = 0.5 if len(kinds) < 28 else 0.45 if len(kinds) < 36 else 0.4
    return numbers >= 2 and sum(a != b for a, b in pairs) >= least * len(pairs)


def _is_plain(part: str) -> bool:
    """A part of a path: of one kind of letters, or a capital and small ones."""
    return part.islower() or part.isupper() or part.isdigit() or part[1:].islower()


_ROUNDS = 4  # a mark may uncover what stood beside it; one more round finds nothing as a rule


def redact(text: str) -> str:
    """The text without the secrets that are recognised in it."""
    for _ in range(_ROUNDS):
        before, text = (
            text,
            redact_random_words(redact_named_values(redact_keys(redact_credentials(redact_private_keys(text))))),
        )
        if text == before:
            break
    return text


MARGIN = 8_000  # characters beyond the cut that are looked at: more than the longest key, a private one in PEM, has


def redact_head(text: str, most: int) -> str:
    """At most `most` characters of the redacted text's beginning; the time does not grow with the rest of it."""
    if len(text) <= most + MARGIN:
        return redact(text)[:most]
    return redact(text[: most + MARGIN])[:-MARGIN][:most]


def redact_ends(text: str, most: int) -> str:
    """At most `most` characters of the redacted text, half of them from its beginning and half from its end, with "…"
    for what lies between them; the time does not grow with that."""
    half = max(0, most - 1) // 2
    if len(text) <= most + 2 * MARGIN:
        whole = redact(text)
        if len(whole) <= most:
            return whole
        head, tail = whole[:half], whole
    else:
        head, tail = redact_head(text, half), redact(text[-half - MARGIN :])[MARGIN:]
    return f"{head}…{tail[max(0, len(tail) - half) :]}"[:most]
