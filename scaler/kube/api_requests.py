"""What was asked of the Kubernetes API, in RBAC's words, and what its refusal means for an operator.

Pure: paths and answers in, values out. An observer of the transport gets every `ApiRequest` once it is answered.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from scaler.documents import UNREADABLE
from scaler.errors import KubeError

Params = Mapping[str, str | int | bool]

NO_ANSWER = 0
"""The `status` of a call that got no HTTP answer: a timeout, a refused or a broken connection."""
TIMEOUT = "Timeout"
"""The `reason` of one that did not come in time; of an open watch, that it was silent for too long."""

TRANSIENT = frozenset({NO_ANSWER, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed a moment later."""

_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)"
    r"(?:/namespaces/[^/]+(?=/[^/]+))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>.+))?)?"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One HTTP request to the API, before and after it was sent."""

    method: str
    path: str
    params: Params = field(default_factory=dict)
    body: object = None
    content_type: str = ""
    status: int = NO_ANSWER
    """HTTP status; 0 where no answer came."""
    seconds: float = 0.0
    """The time until the whole answer was read; for a watch, until the stream was open."""

    @property
    def verb(self) -> str:
        """The RBAC verb. Source: Kubernetes, "Determine the request verb"."""
        if self.method in _VERBS:
            return _VERBS[self.method]
        is_collection = bool(self.resource) and not self._part("name")
        if self.method == "DELETE":
            return "deletecollection" if is_collection else "delete"
        if self.params.get("watch"):
            return "watch"
        return "list" if is_collection else "get"

    @property
    def group(self) -> str:
        return self._part("group")

    @property
    def resource(self) -> str:
        """The plural name, with the subresource if there is one: `workloads/status`.

        Empty where the path is no resource's (discovery, /version).
        """
        plural, subresource = self._part("resource"), self._part("subresource")
        return f"{plural}/{subresource}" if subresource else plural

    def _part(self, name: str) -> str:
        match = _PATH.fullmatch(self.path)
        return match[name] or "" if match else ""

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class ApiStatus(msgspec.Struct, frozen=True):
    """The `Status` object with which the API refuses a request or breaks off a watch."""

    reason: str = ""
    message: str = ""
    code: int = 0
    kind: str = ""


_status_decoder = msgspec.json.Decoder(ApiStatus)


def read_status(body: bytes | msgspec.Raw) -> ApiStatus | None:
    """The Status object in an answer; None where it holds something else (a proxy's page, plain text)."""
    try:
        status = _status_decoder.decode(body)
    except UNREADABLE:
        return None
    return status if status.kind == "Status" else None


_NOT_SERVED = "could not find the requested resource"
"""How API servers word the 404 for a path that leads to no resource, in an otherwise ordinary Status."""
_NOT_GRANTED = " cannot "
"""How authorizers word it that a user cannot do something. Admission refuses writes with 403, too: in a namespace that
is being deleted, beyond a quota, by a policy. No rule of RBAC helps there."""


def refusal(request: ApiRequest, *, server: str, status: int, body: bytes, retry_after: float = 0.0) -> KubeError:
    """The error for an HTTP status of 400 and above. Contains no parameters, headers or bodies of the request."""
    answer = read_status(body)
    said = answer.message if answer else " ".join(body[:200].decode("utf-8", "replace").split())
    reason = answer.reason if answer and answer.reason else ""
    is_served = reason == "NotFound" and _NOT_SERVED not in said
    is_by_admission = status == 403 and request.method != "GET" and bool(reason) and _NOT_GRANTED not in said
    advice = "" if is_by_admission else _advice(request, status, is_served=is_served)
    text = f"{request} at {server}: {status} {reason or 'without a Status'}: {said or 'no message'}"
    text = f"{text}; {advice}" if advice else text
    return KubeError(text, status=status, reason=reason, retry_after=retry_after)


def no_answer(request: ApiRequest, *, server: str, reason: str, what: str) -> KubeError:
    """The error for a request that got no, or no whole, answer."""
    advice = _UNANSWERED.get(reason, f"is {server} reachable from here?")
    return KubeError(f"{request} at {server}: {what}; {advice}", status=NO_ANSWER, reason=reason)


_UNANSWERED = {
    "CertificateRefused": "check certificate-authority and tls-server-name in the kubeconfig",
    "Truncated": "a proxy or the API server broke the connection off",
    "NotSent": "the credentials hold characters that do not fit an HTTP header",
}


def _advice(request: ApiRequest, status: int, *, is_served: bool) -> str:
    if status == 404:
        return (
            "it does not exist (any more)"
            if is_served
            else "the API server does not serve this path: is the CustomResourceDefinition installed?"
        )
    if status == 403:
        rule = f"verb '{request.verb}' on '{request.resource}' in API group '{request.group}'"
        return f"grant {rule} to the account that this program runs under"
    return _ADVICE.get(status, "")


_ADVICE = {
    401: "the credentials are not accepted: renew the token or certificate of the kubeconfig or service account",
    409: "it exists already, or is not any more what it was when it was read: read it again and decide again",
    410: "the resourceVersion is too old: list again",
    429: "the API server asks to slow down",
}
