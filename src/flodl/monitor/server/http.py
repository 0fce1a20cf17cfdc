"""As much of HTTP as the page needs: GET requests, one answer each, and who may ask."""

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

MOST_HEADER_BYTES = 16384
# An address may begin with the token: /t/TOKEN/api/history. So every path can be put after what was printed.
TOKEN_FOLDER = "t/"
# More than any run has steps, and few enough to be read as a number at no cost.
_MOST_DIGITS = 18

_ALWAYS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
# What is not the page itself has nothing to run and nothing to load.
_NOTHING = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"


class UnusableNumberError(ValueError):
    """A number in an address cannot be used; the text goes to whoever asked."""


@dataclass(frozen=True)
class Request:
    """One request: its method, path, query and headers (by their names in lower case)."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str] = field(default_factory=dict)

    def whole(self, name: str, default: int) -> int:
        """Read a whole number from the query.

        >>> Request("GET", "/api/state", {"rank": "2"}).whole("rank", 0)
        2
        """
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
            raise UnusableNumberError(f"{name}={text} is not usable: give a whole number, as in {name}=2.")
        return int(text)

    def number(self, name: str) -> float | None:
        """Read any number from the query, if it is there."""
        text = self.query.get(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise UnusableNumberError(f"{name}={text} is not usable: give a number, as in {name}=100.")
        return value


@dataclass(frozen=True)
class Answer:
    """One answer, whole."""

    status: HTTPStatus
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self, *, with_body: bool = True) -> bytes:
        """Give the answer as it goes over the wire."""
        headers = {
            "Content-Type": self.content_type,
            "Content-Length": str(len(self.body)),
            "Connection": "close",
            "Content-Security-Policy": _NOTHING,
            **_ALWAYS,
            **self.headers,
        }
        return head(self.status, headers) + (self.body if with_body else b"")


def head(status: HTTPStatus, headers: Mapping[str, str]) -> bytes:
    """Give the status line and the headers."""
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        *(f"{key}: {value}" for key, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def stream_head() -> bytes:
    """Give the head of an answer that goes on: a stream of events."""
    kind = {"Content-Type": "text/event-stream; charset=utf-8", "Connection": "keep-alive"}
    return head(HTTPStatus.OK, {**kind, "X-Accel-Buffering": "no", **_ALWAYS})


def json_answer(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """Answer with data."""
    return Answer(status, dumps(value), "application/json")


def refusal(status: HTTPStatus, why: str) -> Answer:
    """Say no, and why."""
    return Answer(status, f"{why}\n".encode())


def parse(text: bytes) -> Request | None:
    """Read a request; what is not one gives nothing.

    >>> parse(b"GET /api/history?rank=2 HTTP/1.1\\r\\nHost: localhost:3000\\r\\n\\r\\n")
    Request(method='GET', path='/api/history', query={'rank': '2'}, headers={'host': 'localhost:3000'})
    >>> parse(b"GET /t/a%26b/ HTTP/1.1\\r\\n\\r\\n")
    Request(method='GET', path='/', query={'token': 'a&b'}, headers={})

    Without the slash after the token, the path is empty.
    """
    first, *rest = text.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        return None
    headers = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    try:
        parts = urlsplit(words[1])
        query = dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=32))
    except ValueError:
        return None
    path = parts.path
    if path.startswith(f"/{TOKEN_FOLDER}"):
        token, slash, path = path[1 + len(TOKEN_FOLDER) :].partition("/")
        query["token"], path = unquote(token), slash + path
    return Request(words[0], path, query, headers)


def names_this_machine(host: str) -> bool:
    """Say whether a Host header names the loopback address.

    A page on the web can point a name of its own at 127.0.0.1; its requests carry that name, and are refused.

    >>> [names_this_machine(host) for host in ("localhost:3000", "[::1]:3000", "evil.example:3000")]
    [True, True, False]
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name)


def is_loopback(address: str) -> bool:
    """Say whether an address can be reached from this machine alone."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def knows_token(request: Request, token: str, cookie: str) -> bool:
    """Say whether a request carries the token: in the address, as a bearer, or in the page's cookie."""
    given = [request.query.get("token", "")]
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        # Headers are read as latin-1; what was sent is UTF-8.
        given.append(bearer.strip().encode("latin-1").decode("utf-8", "replace"))
    try:
        morsel = SimpleCookie(request.headers.get("cookie", "")).get(cookie)
        given.append(unquote(morsel.value) if morsel else "")
    except CookieError:
        pass
    return any(hmac.compare_digest(word.encode(), token.encode()) for word in given)
