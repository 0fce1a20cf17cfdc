"""The part of HTTP that the page needs: parse GET requests, write responses, check access."""

from __future__ import annotations

import hmac
import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ..journal import dumps

MAX_HEADER_BYTES = 16384
# A path may start with the token (/t/TOKEN/api/history), so that paths can be appended to the printed URL.
TOKEN_PREFIX = "t/"
# More than any run has steps, and few enough to convert cheaply.
_MAX_DIGITS = 18
_MAX_SHOWN = 60

_COMMON_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
# Only the page itself may run scripts or load anything.
_STRICT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"


class BadParameterError(ValueError):
    """A query parameter is invalid; the text is sent to the client."""


@dataclass(frozen=True)
class Request:
    """One request; the names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str] = field(default_factory=dict)

    def integer(self, name: str, default: int) -> int:
        """Return a non-negative integer from the query.

        >>> Request("GET", "/api/state", {"rank": "2"}).integer("rank", 0)
        2
        """
        text = self.query.get(name)
        return default if text is None else _to_integer(name, text)

    def last_event_id(self) -> int | None:
        """Return the number in the `Last-Event-ID` header, which a browser sends when it reconnects."""
        text = self.headers.get("last-event-id", "")
        return _to_integer("Last-Event-ID", text) if text else None

    def number(self, name: str) -> float | None:
        """Return a number from the query, or None if it is absent."""
        text = self.query.get(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise BadParameterError(f"{name}={_shown(text)} is invalid. Pass a number, as in {name}=100.")
        return value


def _to_integer(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise BadParameterError(f"{name}={_shown(text)} is invalid. Pass an integer, as in {name}=2.")
    return int(text)


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


@dataclass(frozen=True)
class Response:
    """One complete response."""

    status: HTTPStatus
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self, *, with_body: bool = True) -> bytes:
        """Return the response as bytes."""
        headers = {
            "Content-Type": self.content_type,
            "Content-Length": str(len(self.body)),
            "Connection": "close",
            "Content-Security-Policy": _STRICT_POLICY,
            **_COMMON_HEADERS,
            **self.headers,
        }
        return head(self.status, headers) + (self.body if with_body else b"")


def head(status: HTTPStatus, headers: Mapping[str, str]) -> bytes:
    """Return the status line and the headers."""
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        *(f"{key}: {value}" for key, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def stream_head() -> bytes:
    """Return the head of an event stream."""
    kind = {"Content-Type": "text/event-stream; charset=utf-8", "Connection": "keep-alive"}
    return head(HTTPStatus.OK, {**kind, "X-Accel-Buffering": "no", **_COMMON_HEADERS})


def json_response(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a response with JSON data."""
    return Response(status, dumps(value), "application/json")


def error_response(status: HTTPStatus, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error with its reason as text."""
    return Response(status, f"{reason}\n".encode(errors="replace"), headers=headers or {})


def parse(text: bytes) -> Request | None:
    """Parse a request, or return None if it is invalid.

    >>> parse(b"GET /api/history?rank=2 HTTP/1.1\\r\\nHost: localhost:3000\\r\\n\\r\\n")
    Request(method='GET', path='/api/history', query={'rank': '2'}, headers={'host': 'localhost:3000'})
    >>> parse(b"GET /t/a%26b/ HTTP/1.1\\r\\n\\r\\n")
    Request(method='GET', path='/', query={'token': 'a&b'}, headers={})

    Without a slash after the token, the path is empty.
    """
    first, *rest = text.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        return None
    headers: dict[str, str] = {}
    for line in rest:
        name, colon, value = line.partition(":")
        name = name.strip().lower()
        if name == "host" and name in headers:
            return None  # which of them is meant is ambiguous
        if colon:
            headers[name] = value.strip()
    # Not urlsplit: it would take //name for the name of a host.
    path, _, query_text = words[1].partition("#")[0].partition("?")
    try:
        query = dict(parse_qsl(query_text, keep_blank_values=True, max_num_fields=32))
    except ValueError:
        return None
    if path.startswith(f"/{TOKEN_PREFIX}"):
        token, slash, path = path[1 + len(TOKEN_PREFIX) :].partition("/")
        query["token"], path = unquote(token), slash + path
    return Request(words[0], path, query, headers)


def is_local_host(host: str) -> bool:
    """Return whether a Host header names the loopback address.

    A website can point its own domain at 127.0.0.1 (DNS rebinding); its requests carry that name and are
    rejected.

    >>> [is_local_host(host) for host in ("localhost:3000", "[::1]:3000", "evil.example:3000")]
    [True, True, False]
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name)


def is_loopback(address: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def has_token(request: Request, token: str, cookie: str) -> bool:
    """Return whether a request carries the token: in the URL, as a bearer token, or in the page's cookie."""
    candidates = [request.query.get("token", "")]
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        # Headers are decoded as latin-1, but clients send UTF-8.
        candidates.append(bearer.strip().encode("latin-1").decode("utf-8", "replace"))
    try:
        morsel = SimpleCookie(request.headers.get("cookie", "")).get(cookie)
        candidates.append(unquote(morsel.value) if morsel else "")
    except CookieError:
        pass
    return any(hmac.compare_digest(word.encode(), token.encode()) for word in candidates)
