"""Find keys of known formats: private keys in PEM, tokens of known issuers, JWTs.

key_formats.json has the formats of gitleaks' public rule set (scripts/update_key_formats.py). The table here has what
that set lacks, and what it knows more narrowly: of one length, or with a threshold of entropy.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache, partial
from importlib.resources import files
from math import log2

from wal_agent.redact.find import MARK, Hit, at_edge, compiled, replace_each

_BEGIN = r"(-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----)"
_BODY = r"((?:[A-Za-z0-9+/=\s\\:,.()\"']|-(?!----))*+)"
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


_W = r"[0-9A-Za-z]"
_B = r"[0-9A-Za-z_-]"  # base64url, without padding
_D = r"[0-9A-Za-z_.=-]"
_S = r"[0-9A-Za-z+/_-]"  # both base64 alphabets
_END = r"(?![0-9A-Za-z])"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

# (what follows, the beginnings that it follows). A count without an upper end is possessive: nothing is tried twice.
_FORMATS: tuple[tuple[str, str], ...] = (
    # Clouds: AWS, Bedrock, Google, Alibaba, Tencent, DigitalOcean, Cloudflare, Heroku, Fly.io
    (rf"[0-9A-Z]{{16}}{_END}", "AKIA ASIA AROA AIDA ABIA ACCA"),
    (rf"{_S}{{100,}}+={{0,2}}", "ABSK fm1r_ fm1a_ fm2_"),
    (rf"{_S}{{20,}}+={{0,2}}", "bedrock-api-key-"),
    (rf"{_B}{{35}}", "AIza"),
    (rf"{_D}{{20,}}+", "ya29. 1//0 GOCSPX-"),
    (rf"{_W}{{12,24}}{_END}", "LTAI"),
    (rf"{_W}{{32}}{_END}", "AKID"),
    (r"[0-9a-f]{60,}+", "dop_v1_ doo_v1_ dor_v1_"),
    (r"[0-9a-f]{24}-[0-9a-f]{140,}+", "v1.0-"),
    (rf"{_B}{{30,}}+", "cfut_ cfat_ HRKU- fo1_"),
    # Code: GitHub, GitLab, Atlassian, SonarQube, Sourcegraph
    (rf"{_D}{{20,}}+", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_"),
    (rf"{_D}{{20,}}+", "glpat- gldt- glrt- glrtr- glcbt- glptt- glft- glimt- glagent- gloas- glsoat- glffct- glwt-"),
    (rf"{_B}{{20,}}+", "GR1348941 ATBB"),
    (rf"{_D}{{40,}}+", "ATATT3 ATCTT3"),
    (r"[0-9a-f]{40,}+", "sqp_ squ_ sqa_ sgp_"),
    # Packages: npm, PyPI, RubyGems, NuGet, Clojars, crates.io, Docker Hub, Artifactory
    (rf"{_W}{{30,}}+", "npm_"),
    (rf"{_B}{{40,}}+", "pypi-"),
    (rf"[0-9a-z]{{43}}{_END}", "oy2"),
    (rf"(?=[A-Za-z]{{0,31}}[0-9]){_W}{{32}}{_END}", "cio"),
    (rf"{_B}{{20,}}+", "dckr_pat_ dckr_oat_"),
    (rf"{_W}{{69,}}+", "AKCp"),
    (rf"{_W}{{59,}}+", "cmVmd"),
    # CI and hosting: CircleCI, Buildkite, Netlify, Vercel, Render, Pulumi, Terraform's modules, Tailscale, Contentful
    (rf"{_B}{{30,}}+", "CCIPAT_ CCIPRJ_ vercel_blob_rw_ tskey- CFPAT-"),
    (rf"{_W}{{24,}}+", "bkua_ nfp_ vcp_ vca_ vck_ rnd_"),
    # Models: OpenAI, Anthropic, OpenRouter, DeepSeek and others; Groq, Replicate, Perplexity, xAI, Hugging Face, ...
    (
        rf"(?=[A-Za-z_-]{{0,80}}[0-9])(?:(?=[0-9a-z_-]{{0,80}}[A-Z])|(?=(?:[0-9a-z]{{2,12}}-){{0,3}}[0-9a-z]{{20}}))"
        rf"{_B}{{20,}}+",
        "sk-",
    ),
    (_UUID, "sk-lf- pk-lf-"),
    (rf"{_W}{{20,}}+", "gsk_ r8_ pplx- xai- fw_"),
    (rf"{_B}{{24,}}+", "tgp_v1_ pcsk_ lsv2_pt_ lsv2_sk_ nvapi-"),
    (rf"{_W}{{30,}}+", "hf_ api_org_"),
    (rf"[0-9a-f]{{48}}{_END}", "sk_"),  # ElevenLabs
    # Data: Databricks, PlanetScale, Supabase, Neon, MongoDB Atlas, Airtable
    (rf"[0-9a-f]{{32}}(?:-[0-9]{{1,2}})?{_END}", "dapi dkea dose"),
    (rf"{_D}{{20,}}+", "pscale_tkn_ pscale_pw_ pscale_oauth_"),
    (rf"{_B}{{20,}}+", "sbp_ sb_secret_ mdb_sa_sk_"),
    (r"[0-9a-z]{60,}+", "napi_"),
    (rf"(?=[A-Za-z]{{0,40}}[0-9]){_W}{{12,}}+", "npg_"),
    # Money and shops: Stripe, Square, Shopify, Shippo, Razorpay, Plaid, Braintree, Flutterwave
    (rf"{_W}{{10,}}+", "sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_ rzp_live_ rzp_test_"),
    (r"[0-9A-Za-z+/=_-]{20,}+", "whsec_"),
    (rf"{_B}{{22,}}+", "sq0atp- sq0csp- sq0idp- EAAA EAAC EAAM"),
    (_UUID, "access-production- access-sandbox- access-development- pat-na1- pat-eu1-"),
    (r"[0-9a-z]{16}\$[0-9a-f]{32}", "access_token$production$ access_token$sandbox$"),
    # Messages: Slack, Telegram (below), SendGrid, Mailgun, Mailchimp (below), Brevo, Twilio, Resend
    (rf"{_B}{{10,}}+", "xoxa- xoxb- xoxc- xoxd- xoxe- xoxe.xoxb- xoxe.xoxp- xoxo- xoxp- xoxr- xoxs- xapp-"),
    (rf"{_B}{{16,}}+\.{_B}{{16,}}+", "SG."),
    (rf"[0-9a-f]{{64}}-{_W}{{16}}", "xsmtpsib-"),
    (rf"[0-9a-f]{{32}}{_END}", "SK"),
    (rf"{_W}{{8}}_{_W}{{24}}{_END}", "re_"),
    # Watching: New Relic, Grafana, Sentry, Honeycomb, PostHog, Dynatrace, Datadog
    (rf"{_B}{{20,}}+", "NRAK- NRJS- NRII- NRRA- NRSP- hcaik_ hcbik_ hcxik_ phx_ ddapp_ ddpat_"),
    (r"[0-9A-Za-z+/_-]{32,}+={0,3}", "glc_ eyJrIjoi"),
    (r"[0-9A-Za-z+/_=-]{40,}+", "sntrys_ sntryu_"),
    (rf"{_W}{{24}}\.{_W}{{64}}", "dt0c01. dt0s01. dt0s02. dt0s16."),
    # Work: Linear, Notion, Figma, Postman, Typeform, Frame.io, ReadMe, LaunchDarkly
    (rf"{_W}{{32,}}+", "lin_api_ lin_oauth_ secret_ ntn_"),
    (rf"{_B}{{36,}}+", "figd_ figdr_ figo_ figor_ tfp_ fio-u-"),
    (rf"{_W}{{32,}}+", "PMAT-"),
    (_UUID, "sdk- mob-"),
    # Secrets' own stores: Vault, Terraform Cloud (below), Doppler, 1Password, Infisical, age
    (rf"{_D}{{20,}}+", "hvs. hvb. hvr."),
    (rf"(?=[A-Za-z]{{0,23}}[0-9]){_W}{{24}}{_END}(?!\.[0-9A-Za-z])", "s. b."),
    (rf"(?:[0-9a-z_-]{{1,35}}\.)?{_W}{{40,}}+", "dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit."),
    (r"[0-9A-Za-z+/=_-]{60,}+", "ops_eyJ"),
    (r"[0-9A-Z]{6}-(?:[0-9A-Z]{11}|[0-9A-Z]{6}-[0-9A-Z]{5})(?:-[0-9A-Z]{5}){3}", "A3-"),
    (r"[0-9A-Z]{50,}+", "AGE-SECRET-KEY-1 AGE-PLUGIN-"),
    (rf"{_B}{{43}}(?![0-9A-Za-z_-])", "sha256~"),  # OpenShift
)

_OTHERS: tuple[tuple[str, str], ...] = (
    (rf"sk\.eyJ{_B}{{20,}}+\.{_B}{{16,}}+", "sk.eyJ"),  # Mapbox
    (rf"(?<!-)key-[0-9a-f]{{32}}{_END}", "key-"),  # Mailgun; `cache-key-` begins none
)
_JWT = rf"(?P<found>eyJ{_B}{{8,}}+\.eyJ{_B}{{4,}}+\.{_B}*+)|{_B}*+"  # what is none is passed over in one step

# Formats that begin with anything, by what stands in their middle.
_AROUND: tuple[tuple[str, str], ...] = (
    (":A", rf"[0-9]{{5,16}}:A{_B}{{34}}(?![0-9A-Za-z_-])"),  # Telegram
    (
        "Q~",
        r"[0-9A-Za-z_~.-]{3}[0-9]Q~[0-9A-Za-z_~.-]{31,34}",
    ),  # Azure
    (".atlasv1.", rf"{_W}{{14}}\.atlasv1\.[0-9A-Za-z_=-]{{60,}}+"),  # Terraform Cloud
    ("-us", rf"[0-9a-f]{{32}}-us[0-9]{{1,2}}{_END}"),  # Mailchimp
    (".", rf"[MNO]{_B}{{22,27}}\.{_B}{{6,7}}\.{_B}{{27,40}}(?![0-9A-Za-z_-])"),  # Discord
    ("-", r"[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}(?![0-9A-Za-z-])"),  # Mailgun
)


def redact_keys(text: str) -> str:
    """The text without the keys whose own shape tells what they are."""
    for regex, start in _RULES:
        if start in text:
            text = replace_each(text, {start: partial(_key, compiled(regex))})
    for start, regex, entropy in _public_formats():
        if start in text:
            text = replace_each(text, {start: partial(_key, compiled(regex), entropy=entropy)})
    for middle, regex in _AROUND:
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


_RULES = (
    *((re.escape(start) + after, start) for after, starts in _FORMATS for start in starts.split()),
    *_OTHERS,
)
