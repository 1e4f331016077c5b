"""Tokens from an OpenID Connect provider, for a client with its own credentials."""

from __future__ import annotations

import base64
import json
import math
import threading
import time
from dataclasses import dataclass, field
from http.client import HTTPException, InvalidURL
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote_plus, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ...exceptions import AuthenticationError
from .errors import NotSentError

_TIMEOUT: Final = 10.0
_LONGEST_ANSWER: Final = 1 << 20
_SHARE: Final = 0.8
"""The share of a token's lifetime in which it is used for more logins."""
_SERVER_ERROR: Final = 500


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects, because credentials must only be sent to the address that the user has set."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass
class ClientCredentials:
    """Asks a token endpoint for tokens, and keeps each for most of its lifetime. May be called from several threads."""

    url: str
    client: str
    secret: str = field(repr=False)
    scope: str | None = None
    timeout: float = _TIMEOUT
    _token: str = field(default="", init=False, repr=False)
    _until: float = field(default=0.0, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __call__(self) -> str:
        """Return a token. Raise AuthenticationError if the provider refuses, NotSentError if it does not answer."""
        with self._lock:
            if time.monotonic() >= self._until:
                begun = time.monotonic()
                self._token, lifetime = self._fetch()
                self._until = begun + lifetime * _SHARE
            return self._token

    def _fetch(self) -> tuple[str, float]:
        endpoint = f"the token endpoint {_shown(self.url)}"
        try:
            with build_opener(_NoRedirect).open(self._request(), timeout=self.timeout) as answer:
                return _read(endpoint, answer.read(_LONGEST_ANSWER))
        except HTTPError as error:
            error.close()
            if error.code >= _SERVER_ERROR:
                raise NotSentError(f"{endpoint} answered with status {error.code}") from None
            raise AuthenticationError(
                f"{endpoint} refused client {self.client!r} with status {error.code}: check its id and its secret"
            ) from None
        except (URLError, OSError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise NotSentError(f"no answer from {endpoint}: {reason}") from error
        except (InvalidURL, ValueError):  # their texts, and those below, contain what was sent or received
            raise NotSentError(f"no answer from {endpoint}: its address is not a valid URL") from None
        except HTTPException:
            raise NotSentError(f"no answer from {endpoint}: its answer is not HTTP") from None

    def _request(self) -> Request:
        fields = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        login = base64.b64encode(f"{quote_plus(self.client)}:{quote_plus(self.secret)}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
        return Request(self.url, urlencode(fields).encode(), headers)  # noqa: S310 -- jaas.py allows only HTTP


def _shown(url: str) -> str:
    """Return an address for messages, without a login and a query, which may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(not shown)"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _read(endpoint: str, answer: bytes) -> tuple[str, float]:
    try:
        found = json.loads(answer)
        token, lifetime = str(found["access_token"]), float(found.get("expires_in", 0))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise AuthenticationError(f"{endpoint} did not answer with a token") from None
    return token, lifetime if math.isfinite(lifetime) else 0.0
