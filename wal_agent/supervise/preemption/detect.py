"""On which cloud's machine is this, and where is its metadata server? Nothing is asked over the network to tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from wal_agent.plainfile import read_plain
from wal_agent.supervise.preemption.data import Cloud, Server

DMI = Path("/sys/class/dmi/id")
LINK_LOCAL = "169.254.169.254"  # of both clouds; the number, so that no name is looked up
_MOST = 4096


def detect_cloud(dmi: Path = DMI) -> Cloud | None:
    """What the firmware says (documented by both clouds as the way to tell)."""
    if _says(dmi, "product_name") in ("Google Compute Engine", "Google"):
        return "gcp"
    if _says(dmi, "sys_vendor") == "Amazon EC2" or _says(dmi, "board_asset_tag").startswith("i-"):
        return "aws"
    return None


def metadata_server(cloud: Cloud, env: Mapping[str, str]) -> Server | None:
    """The cloud's metadata server, or the one that its own variable names for its own programs. None: switched off by
    that cloud's variable, or named by something that is no address."""
    if cloud == "gcp":
        return _server("http://" + env.get("GCE_METADATA_HOST", "") if env.get("GCE_METADATA_HOST") else "")
    if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    return _server(env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", ""))


def _server(url: str) -> Server | None:
    if not url:
        return Server(LINK_LOCAL)
    try:
        found = urlsplit(url)
        return Server(found.hostname, found.port or 80) if found.scheme == "http" and found.hostname else None
    except ValueError:
        return None


def _says(dmi: Path, name: str) -> str:
    return (read_plain(dmi / name, _MOST) or b"").decode("ascii", "replace").strip()
