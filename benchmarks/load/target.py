"""A server under test: where it is, what it is called, and how it wants to be asked."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

# Asks for exactly as many tokens as we want to have, and for their number at the end.
IGNORE_EOS: Mapping[str, Any] = {"ignore_eos": True}
COUNT_TOKENS: Mapping[str, Any] = {"stream_options": {"include_usage": True}}


@dataclass(frozen=True, slots=True)
class Target:
    """One server.

    Attributes:
        name: What the tables call it.
        host: Name or address to connect to.
        port: Port to connect to.
        tls: Whether it is spoken to through TLS.
        base: Path in front of `/chat/completions`, without a slash at its end.
        model: Name of the model to ask for; empty until it is known.
        api_key: Bearer token; empty for none.
        extras: Request fields beyond OpenAI's plain ones that it takes.
        software: What it says it is.
    """

    name: str
    host: str
    port: int
    tls: bool = False
    base: str = "/v1"
    model: str = ""
    api_key: str = field(default="", repr=False)
    extras: Mapping[str, Any] = field(default_factory=dict)
    software: str = ""

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return f"{'https' if self.tls else 'http'}://{self._authority}{self.base}"

    @property
    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def get(self, path: str) -> bytes:
        """Return a request for a path, counted from the root of the server."""
        return self._head("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Return a request with a JSON body, for a path below the base."""
        data = json.dumps(body).encode()
        fields = f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        return self._head("POST", self.base + path, fields) + data

    def _head(self, method: str, path: str, fields: str = "") -> bytes:
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        return (
            f"{method} {path} HTTP/1.1\r\nHost: {self._authority}\r\n{key}{fields}"
            "Accept: */*\r\nConnection: close\r\n\r\n"
        ).encode()


def parse_target(text: str) -> Target:
    """Read `NAME=URL`, or a URL alone, which is then also the name.

    Raises:
        ValueError: It is no http or https URL.
    """
    name, separator, url = text.partition("=")
    if not separator or "://" in name:
        name, url = "", text
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ValueError(f"{text!r} is not NAME=URL with a plain http or https URL")
    tls = parts.scheme == "https"
    base = parts.path.rstrip("/")
    return Target(
        name=name or parts.netloc,
        host=parts.hostname,
        port=parts.port or (443 if tls else 80),
        tls=tls,
        base=base if base.endswith("/v1") else f"{base}/v1",
    )
