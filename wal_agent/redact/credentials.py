"""Redact what stands where credentials do, whatever it looks like: URLs, headers, command lines, password files."""

from __future__ import annotations

import re
from functools import partial

from wal_agent.redact.hits import MARK, Hit, compiled, replace_each
from wal_agent.redact.keys import issuer_formats
from wal_agent.redact.named_values import is_code, is_harmless

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
    start, known = at, issuer_formats()
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
