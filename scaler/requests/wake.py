"""`POST /wake/NAMESPACE/NAME`: whoever may patch ScaledObjects there resumes a workload, by a bearer token.

| the request, or its workload                            | answer                                              |
|---------------------------------------------------------|-----------------------------------------------------|
| no token, or one that authenticates nobody              | 401                                                 |
| more than REQUESTS_PER_MINUTE of one user               | 429, with `Retry-After`                             |
| its user may not patch `scaledobjects.keda.sh` there    | 403                                                 |
| no such ScaledObject, or none of this scaler            | 404                                                 |
| has finished, or runs                                   | 409                                                 |
| is resumed already                                      | 202, nothing is written                             |
| any other: suspended, about to be, or not known         | 202, annotations `idlegpu.io/wake` and `asked-by`   |
| the API does not answer                                 | 503                                                 |

Laws:

* The API server says who asks and what they may do; nothing is said of a workload before that.
* Of what is scaled without KEDA it is the ScalableWorkload that has to be allowed, and is written to. A refusal names
  both kinds, whichever it is.
* There are no cookies, and no browser adds the header by itself, so no page of others can ask in a user's name.
* What it writes is what the owner could have written. A body is not read.
* Any replica does it: a wake-up needs no leader.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus

import structlog
from aiohttp import web

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.decision.candidate import candidate_state
from scaler.decision.decision import Decision
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.describe import prevailing
from scaler.decision.reasons import CandidateState
from scaler.errors import KubeError, QueryError
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.resources import SCALED_OBJECT, Resource
from scaler.kube.reviews import AccessReviews, AuthenticatedUser, ResourceAttributes, TokenReviews
from scaler.kube.writes import PatchApi
from scaler.targets.target_state import WakeCause
from scaler.targets.workloads import ASKED_BY, WAKE_ANNOTATION, Asker, wake_time

log = structlog.get_logger(__name__)

PATH = "/wake"
REQUESTS_PER_MINUTE = 30
_MOST_USERS = 1000
_BEARER = "bearer "
_ABOUT_TO_STOP = frozenset({CandidateState.SUSPENDED, CandidateState.SUSPENDING, CandidateState.GRANTED})
_BY_KEDA = "KEDA scales it to 1 at once with an external-push trigger, else at its next poll"
_DIRECTLY = "the leader scales it to 1"
_WRITTEN_ON = "scaledobjects.keda.sh (scalableworkloads.idlegpu.io, where no KEDA scales them)"


class WakeRequests:
    """Requests by HTTP that resume a workload, to any replica."""

    def __init__(
        self,
        api: PatchApi,
        tokens: TokenReviews,
        access: AccessReviews,
        scaled_object: Callable[[str, str], ScaledObject | None],
        decisions: DecisionCache,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._api = api
        self._tokens = tokens
        self._access = access
        self._scaled_object = scaled_object
        self._decisions = decisions
        self._clock = clock
        self._rates = _Rates(clock)

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        return [web.post(f"{PATH}/{{namespace}}/{{name}}", self._wake)]

    async def _wake(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        try:
            SCALED_OBJECT.path(namespace, name)
            user = await self._user(
                request.headers.get("Authorization", ""), self._resource(namespace, name), namespace
            )
            message = await self._ask(user, namespace, name)
        except QueryError as error:
            return _refusal(error.status, str(error))
        except KubeError as error:
            return _failure(error)
        answer = {"namespace": namespace, "name": name, "askedBy": user.name, "message": message}
        return web.json_response(answer, status=HTTPStatus.ACCEPTED)

    def _resource(self, namespace: str, name: str) -> Resource:
        """What is written on."""
        found = self._scaled_object(namespace, name)
        return SCALED_OBJECT if found is None else found.resource

    async def _user(self, authorization: str, resource: Resource, namespace: str) -> AuthenticatedUser:
        """Who may write on such objects of the namespace. Raises: QueryError, KubeError."""
        is_bearer = authorization.lower().startswith(_BEARER)
        user = await self._tokens.user_of(authorization[len(_BEARER) :].strip()) if is_bearer else None
        if user is None:
            message = "a token is needed that the Kubernetes API accepts: Authorization: Bearer TOKEN"
            raise QueryError(message, status=HTTPStatus.UNAUTHORIZED)
        if not self._rates.permit(user.name):
            message = f"{user.name} may ask {REQUESTS_PER_MINUTE} times a minute"
            raise QueryError(message, status=HTTPStatus.TOO_MANY_REQUESTS)
        asked = ResourceAttributes(verb="patch", group=resource.group, resource=resource.plural, namespace=namespace)
        if not await self._access.may(user, asked):
            message = f"{user.name} may not patch {_WRITTEN_ON} in namespace {namespace}"
            raise QueryError(message, status=HTTPStatus.FORBIDDEN)
        return user

    async def _ask(self, user: AuthenticatedUser, namespace: str, name: str) -> str:
        """What happens next. Raises: QueryError, KubeError."""
        found, decision = self._scaled_object(namespace, name), self._decision(namespace, name)
        if found is None:
            raise QueryError(f"there is no ScaledObject {namespace}/{name}", status=HTTPStatus.NOT_FOUND)
        state = candidate_state(decision) if decision is not None else CandidateState.UNKNOWN
        if state is CandidateState.WAKING:
            return f"it is resumed already: {decision.answer.message if decision is not None else ''}"
        if state is not CandidateState.UNKNOWN and state not in _ABOUT_TO_STOP:
            runs = "it has finished" if state is None else f"it runs ({state}); what shall stay is kept by keep-for"
            raise QueryError(runs, status=HTTPStatus.CONFLICT)
        annotations = wake_annotations(decision, by=str(Asker(user.name, WakeCause.HTTP)), now=self._clock.now())
        body = {"metadata": {"uid": found.metadata.uid, "annotations": annotations}}
        await self._api.patch(found.resource.path(namespace, name), body)
        log.info("wake-up requested", namespace=namespace, name=name, user=user.name)
        by = _BY_KEDA if found.resource == SCALED_OBJECT else _DIRECTLY
        return f"wake-up requested; {by}; then it waits for its quota"

    def _decision(self, namespace: str, name: str) -> Decision | None:
        """The decision; None where it is not known. Raises: QueryError where no trigger is of this scaler."""
        evaluation = self._decisions.evaluation
        if evaluation is None:
            return None
        entry = evaluation.entries.get((namespace, name))
        if entry is None and self._scaled_object(namespace, name) is not None:
            message = f"ScaledObject {namespace}/{name} has no trigger that this scaler has evaluated"
            raise QueryError(message, status=HTTPStatus.NOT_FOUND)
        return prevailing(list(entry.triggers.values())) if entry is not None else None


def wake_annotations(decision: Decision | None, *, by: str, now: datetime) -> Mapping[str, str]:
    """The request, with its time, so that it does not outlive the suspension that it is about.

    One that is about to be suspended is suspended later than that, so its request has no time.
    """
    is_at_zero = decision is None or decision.target.desired_replicas == 0
    return {WAKE_ANNOTATION: wake_time(now) if is_at_zero else "true", ASKED_BY: by}


def _failure(error: KubeError) -> web.Response:
    """What the API refused of us is for the operator's eyes, and in the log."""
    if error.reason == "InvalidName":
        return _refusal(HTTPStatus.BAD_REQUEST, "not the names of a namespace and a ScaledObject")
    if error.is_absent:
        return _refusal(HTTPStatus.NOT_FOUND, "there is no such ScaledObject any more")
    log.warning("wake-up not carried out", error=str(error))
    return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the cluster did not accept it; try again later")


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status, headers=_HEADERS.get(status, {}))


_HEADERS: Mapping[int, Mapping[str, str]] = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
    HTTPStatus.TOO_MANY_REQUESTS: {"Retry-After": "10"},
}


class _Rates:
    """How many requests users have left: each of theirs takes one, and they come back with the time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._full_at: dict[str, float] = {}
        """When each user has all of them again, of the last ones who asked."""

    def permit(self, user: str) -> bool:
        """Whether the user may ask now, which counts."""
        now = self._clock.monotonic()
        full_at = max(self._full_at.pop(user, now), now)
        permits = full_at + 60 / REQUESTS_PER_MINUTE <= now + 60
        if len(self._full_at) >= _MOST_USERS:
            del self._full_at[next(iter(self._full_at))]
        self._full_at[user] = full_at + (60 / REQUESTS_PER_MINUTE if permits else 0)
        return permits
