"""Do KEDA's calls get through to this scaler? Every different call is made once, from here."""

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from ipaddress import ip_address

from scaler.doctor.calls.call_credentials import PARAMETERS, CallCredentials, split_address
from scaler.doctor.calls.probe import CallFault, CallProblem, CallResult, ScalerCall, probe
from scaler.doctor.calls.trigger_authentication import AuthenticatedTrigger
from scaler.doctor.findings import Finding, Severity, Subject, Topic, Unread
from scaler.errors import ConfigurationError
from scaler.tls.certificates import certificates_in, is_loopback, is_renewal_overdue
from scaler.tls.material import second

CallKey = tuple[str, CallCredentials]
"""`scalerAddress`, and how it is called."""
CallResults = Mapping[CallKey, CallResult | Unread]

_AT_ONCE = 8
_LABELS_OF_SHORT_NAMES = 2
"""`scaler` and `scaler.gpus` are names that only pods can resolve."""
_IGNORED_KEYS = (*PARAMETERS, "tlsCertFile")
_PAGE = "see docs/tls.md"


# ----------------------------------------------------------------------------------------------------- making the calls


def parse_connect_to(text: str) -> tuple[str, int] | None:
    """The address at which the scaler is reached; None for an empty text. Raises: ConfigurationError."""
    if not text:
        return None
    try:
        return split_address(text)
    except ValueError as error:
        raise ConfigurationError(f"--connect-to {error}; write for example localhost:9090") from None


async def check_calls(
    triggers: Sequence[AuthenticatedTrigger], connect_to: tuple[str, int] | None, now: datetime
) -> CallResults:
    slots, calls = asyncio.Semaphore(_AT_ONCE), _calls_of(triggers)

    async def one(call: CallKey, trigger: AuthenticatedTrigger) -> CallResult | Unread:
        async with slots:
            return await _result(call, trigger, connect_to, now)

    results = await asyncio.gather(*(one(call, found[0]) for call, found in calls.items()))
    return dict(zip(calls, results, strict=True))


async def _result(
    call: CallKey, trigger: AuthenticatedTrigger, connect_to: tuple[str, int] | None, now: datetime
) -> CallResult | Unread:
    address, credentials = call
    host, port = split_address(address)
    if connect_to is None and _is_of_the_cluster(host) and "KUBERNETES_SERVICE_HOST" not in os.environ:
        return Unread(f"{host} is a name within the cluster, and cannot be resolved from here")
    return await probe(
        ScalerCall(
            host=host,
            at=connect_to or (host, port),
            credentials=credentials,
            namespace=trigger.namespace,
            name=trigger.name,
            metadata=trigger.metadata,
        ),
        now,
    )


def _is_of_the_cluster(host: str) -> bool:
    """Whether only pods can resolve the name: a Service's, with or without `svc` and the cluster's domain."""
    try:
        ip_address(host)
    except ValueError:
        labels = host.removesuffix(".").split(".")
        return host != "localhost" and (len(labels) <= _LABELS_OF_SHORT_NAMES or "svc" in labels)
    return False


def _calls_of(triggers: Sequence[AuthenticatedTrigger]) -> dict[CallKey, list[AuthenticatedTrigger]]:
    """Triggers by what they call with, without those whose credentials are not known."""
    found = defaultdict[CallKey, list[AuthenticatedTrigger]](list)
    for trigger in triggers:
        if trigger.unread is None and _host(trigger.address):
            found[trigger.address, trigger.credentials].append(trigger)
    return dict(found)


def _host(address: str) -> str:
    """Empty for what is no address, which is a finding about the ScaledObject."""
    try:
        return split_address(address)[0]
    except ValueError:
        return ""


# ------------------------------------------------------------------------------------------------------------- triggers


def tls_findings(triggers: Sequence[AuthenticatedTrigger], results: CallResults, now: datetime) -> Iterator[Finding]:
    for trigger in triggers:
        yield from _of_trigger(trigger)
    calls = _calls_of(triggers)
    for address in dict.fromkeys(address for address, _ in calls):
        yield from _of_address(address, {how: found for (at, how), found in calls.items() if at == address})
    for call in calls:
        yield from _of_call(call, results.get(call, Unread("it was not called")), now)


def _of_trigger(trigger: AuthenticatedTrigger) -> Iterator[Finding]:
    about = Subject(Topic.TLS, f"ScaledObject {trigger.namespace}/{trigger.name}")
    if trigger.unread:
        what = f"how KEDA calls for it is not known: {trigger.unread.reason}"
        do = "correct authenticationRef of the trigger: KEDA builds no scaler"
        yield about.fail("NotRead", what, do) if trigger.unread.is_absent else about.warn("NotRead", what)
        return
    yield from _of_metadata(about, trigger)
    if trigger.missing:
        what = f"there is no {', nor '.join(trigger.missing)}: KEDA calls without it"
        yield about.fail("Missing", what, "create it, or correct the TriggerAuthentication")
    yield from _of_parameters(about, trigger)


def _of_metadata(about: Subject, trigger: AuthenticatedTrigger) -> Iterator[Finding]:
    ignored, encrypted = [key for key in _IGNORED_KEYS if key in trigger.metadata], trigger.credentials.encrypted
    if ignored:
        so = "" if encrypted else ", and so it calls without TLS"
        yield about.finding(
            Severity.WARN if encrypted else Severity.FAIL,
            "IgnoredByKEDA",
            f"{', '.join(ignored)} in the trigger's metadata: KEDA reads no such key there{so}",
            f"put the PEM itself into a Secret, and name it in a TriggerAuthentication; {_PAGE}",
        )
    if not trigger.credentials.verifies:
        accepts = "unsafeSsl lets KEDA accept any certificate: another server can answer, and suspend workloads"
        alone = "unsafeSsl does not turn TLS on by itself: KEDA calls without TLS"
        do = "remove unsafeSsl, and give the authority as caCert in a TriggerAuthentication"
        yield about.warn("CertificateNotVerified", accepts if encrypted else alone, do)


def _of_parameters(about: Subject, trigger: AuthenticatedTrigger) -> Iterator[Finding]:
    authorities, certificate, key = (trigger.parameters.get(name, b"") for name in PARAMETERS)
    if bool(certificate) != bool(key):
        has, lacks = PARAMETERS[1:] if certificate else PARAMETERS[:0:-1]
        what = f"there is {has} and no {lacks}: KEDA presents no certificate"
        yield about.fail("IncompleteKeyPair", what, f"give {lacks}, too")
    if authorities and not _is_pem(authorities):
        what = "caCert holds no certificate in PEM (-----BEGIN CERTIFICATE-----): KEDA trusts no authority by it"
        yield about.fail("NotPem", what, "put the content of ca.crt there, neither a path nor base64 of it")


def _is_pem(text: bytes) -> bool:
    try:
        return bool(certificates_in(text))
    except ValueError:
        return False


# ------------------------------------------------------------------------------------------------------------ addresses


def _of_address(
    address: str, by_credentials: Mapping[CallCredentials, Sequence[AuthenticatedTrigger]]
) -> Iterator[Finding]:
    about = Subject(Topic.TLS, f"scalerAddress {address}")
    if not all(each.encrypted for each in by_credentials) and not is_loopback(_host(address)):
        what = "KEDA calls it without TLS: traffic is neither encrypted nor authenticated"
        yield about.warn("TLSOff", what, f"set grpc.tls of the settings, and enableTLS in the triggers; {_PAGE}")
    if len(by_credentials) > 1:
        counts = Counter({_words(how): len(triggers) for how, triggers in by_credentials.items()})
        yield about.warn(
            "DifferentCredentials",
            f"ScaledObjects call it in {len(by_credentials)} ways "
            f"({', '.join(f'{n} {how}' for how, n in counts.items())}); "
            "KEDA before 2.20 keeps one connection per address, so that the first one decides for all",
            "give all of them the same enableTLS, unsafeSsl, caCert, tlsClientCert and tlsClientKey",
        )


def _words(credentials: CallCredentials) -> str:
    if not credentials.encrypted:
        return "without TLS"
    certificate = " and a certificate" if credentials.has_certificate else ""
    return f"with TLS{certificate}{'' if credentials.verifies else ', unverified'}"


# ---------------------------------------------------------------------------------------------------------------- calls


def _of_call(call: CallKey, result: CallResult | Unread, now: datetime) -> Iterator[Finding]:
    address, credentials = call
    about = Subject(Topic.TLS, f"scalerAddress {address}")
    if isinstance(result, Unread):
        if credentials.encrypted:
            yield about.warn("NotTested", result.reason, _FROM_ELSEWHERE)
        return
    for fault in result.faults:
        yield about.fail(str(fault.problem), fault.what, _what_to_do(fault, _host(address), credentials, result))
    if result.faults:
        return
    certificate = result.certificate
    until = f", by a certificate that is valid until {second(certificate.not_after)}" if certificate else ""
    if certificate and is_renewal_overdue(certificate, now):
        what = f"its certificate is valid until {second(certificate.not_after)} only, and was not renewed"
        yield about.warn("RenewalOverdue", what, "see why its issuer does not renew it")
    yield about.ok("Reached", f"KEDA gets through {_words(credentials)}{until}")


_FROM_ELSEWHERE = (
    "run doctor in the cluster, or: kubectl port-forward service/idle-gpu-scaler 9090 & "
    "idle-gpu-scaler doctor --connect-to localhost:9090"
)

_TO_DO: Mapping[CallProblem, str] = {
    CallProblem.NOT_REACHED: "see whether its pods are ready, and whether a NetworkPolicy is in the way",
    CallProblem.NAME_MISMATCH: "issue one with {host} among its dnsNames (Go does not look at common names), or write "
    "a scalerAddress that it is for",
    CallProblem.EXPIRED: "renew it, and check the clocks; a running scaler takes new files by itself, and its log says "
    "where it could not",
    CallProblem.NOT_A_SCALER: "write the address of the scaler's gRPC port, past proxies that speak HTTP/1.1 only",
    CallProblem.CLIENT_REFUSED: "give tlsClientCert and tlsClientKey in the trigger's TriggerAuthentication: a pair "
    "that is valid now, of an authority in grpc.tls.clientCaFile, with a name in grpc.tls.clientNames if that is set",
}


def _what_to_do(fault: CallFault, host: str, credentials: CallCredentials, result: CallResult) -> str:
    match fault.problem:
        case CallProblem.TLS_MISMATCH if credentials.encrypted:
            return "set grpc.tls of the scaler's settings, or call it without TLS: without enableTLS and caCert"
        case CallProblem.TLS_MISMATCH:
            return 'set enableTLS: "true" in the trigger, and caCert in its TriggerAuthentication'
        case CallProblem.NOT_TRUSTED if result.certificate and not result.certificate.is_for_servers:
            return "issue another one, for servers"
        case CallProblem.NOT_TRUSTED:
            return _which_authority(credentials, result)
    return _TO_DO[fault.problem].format(host=host)


def _which_authority(credentials: CallCredentials, result: CallResult) -> str:
    has = (
        "caCert has another one" if credentials.authorities_pem else "without caCert only those of the system are known"
    )
    itself = result.certificate is not None and result.certificate.is_self_issued
    where = "the certificate itself" if itself else "its authority's, ca.crt"
    return f"{has}: put {where} into caCert of the TriggerAuthentication; {_PAGE}"
