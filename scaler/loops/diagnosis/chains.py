"""Do KEDA's calls get through, and is it us whom they reach? What was seen of connections → findings.

| found                             | which means                                                                  |
|-----------------------------------|------------------------------------------------------------------------------|
| keys in the metadata              | KEDA reads them in a TriggerAuthentication only, and calls in the clear      |
| something missing                 | KEDA goes without what is not there                                          |
| TLS on one side only              | no call gets through                                                         |
| a name, a time, an authority      | Go refuses the server's certificate                                          |
| hung up on, or turned away        | the server refuses the client's                                              |
| several ways to the same address  | KEDA before 2.20 keeps one connection per address: whoever is first decides |

Pure: what was seen in, findings out.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from ipaddress import ip_address

from scaler.core.certificates import certificates_in, is_nearly_over
from scaler.loops.diagnosis.callers import Caller
from scaler.loops.diagnosis.findings import Finding, Severity, Topic, Unread
from scaler.tls.calling import PARAMETERS, Terms, split_address
from scaler.tls.material import second
from scaler.tls.probe import Examined, Fault, Obstacle

Way = tuple[str, Terms]
"""`scalerAddress`, and how it is called."""
Seen = Mapping[Way, Examined | Unread]

_OUR_KEYS = (*PARAMETERS, "tlsCertFile")
_PAGE = "see docs/tls.md"


def ways_of(callers: Sequence[Caller]) -> dict[Way, list[Caller]]:
    """Every way in which this scaler is called, and by whom; not of those of whom it is not known."""
    found = defaultdict[Way, list[Caller]](list)
    for caller in callers:
        if caller.unread is None and _host(caller.address):
            found[caller.address, caller.terms].append(caller)
    return dict(found)


def _host(address: str) -> str:
    """Empty for what is no address, which is told elsewhere."""
    try:
        return split_address(address)[0]
    except ValueError:
        return ""


def chain_findings(callers: Sequence[Caller], seen: Seen, now: datetime) -> Iterator[Finding]:
    """What there is to say about the ways in which KEDA calls."""
    for caller in callers:
        yield from _of_caller(caller)
    ways = ways_of(callers)
    for address in dict.fromkeys(address for address, _ in ways):
        yield from _of_address(address, {terms: found for (at, terms), found in ways.items() if at == address})
    for way in ways:
        yield from _of_way(way, seen.get(way, _NOT_LOOKED_AT), now)


_NOT_LOOKED_AT = Unread("nobody has looked")


# -------------------------------------------------------------------------------------------------------------- callers


def _of_caller(caller: Caller) -> Iterator[Finding]:
    finding = partial(Finding, topic=Topic.TLS, where=f"ScaledObject {caller.namespace}/{caller.name}")
    if caller.unread:
        what = f"how KEDA calls for it is not known: {caller.unread.reason}"
        do = "" if not caller.unread.is_absent else "mend authenticationRef of the trigger: KEDA builds no scaler"
        severity = Severity.FAIL if caller.unread.is_absent else Severity.WARN
        yield finding(severity=severity, check="NotRead", what=what, do=do)
        return
    yield from _of_keys(finding, caller)
    if caller.missing:
        yield finding(
            severity=Severity.FAIL,
            check="Missing",
            what=f"there is no {', nor '.join(caller.missing)}: KEDA calls without it",
            do="create it, or mend the TriggerAuthentication",
        )
    yield from _of_parameters(finding, caller)


def _of_keys(finding: "partial[Finding]", caller: Caller) -> Iterator[Finding]:
    idle = [key for key in _OUR_KEYS if key in caller.metadata]
    if idle:
        so = "" if caller.terms.encrypted else ", and so it calls in the clear"
        yield finding(
            severity=Severity.WARN if caller.terms.encrypted else Severity.FAIL,
            check="NotReadThere",
            what=f"{', '.join(idle)} in the trigger's metadata: KEDA reads no such key there{so}",
            do=f"put the PEM itself into a Secret, and name it in a TriggerAuthentication; {_PAGE}",
        )
    if not caller.terms.verifies:
        what = (
            "unsafeSsl lets KEDA take whoever answers for the scaler, who can then suspend workloads"
            if caller.terms.encrypted
            else "unsafeSsl does not turn TLS on by itself: KEDA calls in the clear"
        )
        do = "take unsafeSsl away, and give the authority as caCert in a TriggerAuthentication"
        yield finding(severity=Severity.WARN, check="Unsafe", what=what, do=do)


def _of_parameters(finding: "partial[Finding]", caller: Caller) -> Iterator[Finding]:
    authorities, certificate, key = (caller.parameters.get(name, b"") for name in PARAMETERS)
    if bool(certificate) != bool(key):
        has, lacks = PARAMETERS[1:] if certificate else PARAMETERS[:0:-1]
        yield finding(
            severity=Severity.FAIL,
            check="HalfAPair",
            what=f"there is {has} and no {lacks}: KEDA shows no certificate",
            do=f"give {lacks}, too",
        )
    if authorities and not _is_pem(authorities):
        yield finding(
            severity=Severity.FAIL,
            check="NotPem",
            what="caCert holds no certificate in PEM (-----BEGIN CERTIFICATE-----): KEDA knows no authority by it",
            do="put the content of ca.crt there, neither a path nor base64 of it",
        )


def _is_pem(text: bytes) -> bool:
    try:
        return bool(certificates_in(text))
    except ValueError:
        return False


# ------------------------------------------------------------------------------------------------------------ addresses


def _of_address(address: str, ways: Mapping[Terms, Sequence[Caller]]) -> Iterator[Finding]:
    finding = partial(Finding, topic=Topic.TLS, where=f"scalerAddress {address}")
    clear = sum(len(callers) for terms, callers in ways.items() if not terms.encrypted)
    if clear and not _is_local(_host(address)):
        yield finding(
            severity=Severity.WARN,
            check="InTheClear",
            what="KEDA calls it without TLS: whoever is on the network between them can answer in its place",
            do=f"set grpc.tls of the settings, and enableTLS in the triggers; {_PAGE}",
        )
    if len(ways) > 1:
        told = Counter({_words(terms): len(callers) for terms, callers in ways.items()})
        yield finding(
            severity=Severity.WARN,
            check="SeveralWays",
            what=f"ScaledObjects call it in {len(ways)} ways ({', '.join(f'{n} {how}' for how, n in told.items())}); "
            "KEDA before 2.20 keeps one connection per address, so that whoever is first decides for all",
            do="let all of them have the same enableTLS, unsafeSsl, caCert, tlsClientCert and tlsClientKey",
        )


def _words(terms: Terms) -> str:
    if not terms.encrypted:
        return "in the clear"
    return f"with TLS{' and a certificate' if terms.has_certificate else ''}{'' if terms.verifies else ', unverified'}"


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# ---------------------------------------------------------------------------------------------------------- connections


def _of_way(way: Way, seen: Examined | Unread, now: datetime) -> Iterator[Finding]:
    address, terms = way
    finding = partial(Finding, topic=Topic.TLS, where=f"scalerAddress {address}")
    if isinstance(seen, Unread):
        if terms.encrypted:
            yield finding(severity=Severity.WARN, check="NotTested", what=seen.reason, do=_FROM_ELSEWHERE)
        return
    for fault in seen.faults:
        severity = Severity.WARN if fault.obstacle is Obstacle.NOT_REACHED else Severity.FAIL
        do = _what_to_do(fault, _host(address), terms, seen)
        yield finding(severity=severity, check=str(fault.obstacle), what=fault.what, do=do)
    if seen.faults:
        return
    if seen.leaf and is_nearly_over(seen.leaf, now):
        what = f"its certificate is good until {second(seen.leaf.not_after)} only, and was not renewed"
        yield finding(severity=Severity.WARN, check="EndsSoon", what=what, do="see why its issuer does not renew it")
    until = f", by a certificate that is good until {second(seen.leaf.not_after)}" if seen.leaf else ""
    yield finding(severity=Severity.OK, check="Reached", what=f"KEDA gets through {_words(terms)}{until}")


_FROM_ELSEWHERE = (
    "run doctor in the cluster, or: kubectl port-forward service/idle-gpu-scaler 9090 & "
    "idle-gpu-scaler doctor --connect-to localhost:9090"
)

_TO_DO: Mapping[Obstacle, str] = {
    Obstacle.NOT_REACHED: "see whether its pods are ready, and whether a NetworkPolicy is in the way",
    Obstacle.NO_TLS: "set grpc.tls of the scaler's settings, or call it in the clear: without enableTLS and caCert",
    Obstacle.ONLY_TLS: 'set enableTLS: "true" in the trigger, and caCert in its TriggerAuthentication',
    Obstacle.NO_NAMES: "issue one with {host} among its dnsNames: Go does not look at common names",
    Obstacle.WRONG_NAME: "issue one with {host} among its dnsNames, or write a scalerAddress that it is for",
    Obstacle.EXPIRED: "renew it; a running scaler takes new files by itself, and its log says where it could not",
    Obstacle.NOT_YET_VALID: "set the clocks right of these machines and of whoever issues it, or wait",
    Obstacle.NOT_TRUSTED: "issue another one, for servers and with an algorithm of these days",
    Obstacle.NO_GRPC: "write the address of the scaler's gRPC port, past proxies that speak HTTP/1.1 only",
    Obstacle.UNUSABLE_PAIR: "mend both in the Secret that the TriggerAuthentication names: KEDA builds no scaler",
    Obstacle.CERTIFICATE_WANTED: "give tlsClientCert and tlsClientKey in the trigger's TriggerAuthentication",
    Obstacle.CERTIFICATE_REFUSED: "present one that is good now and of an authority in grpc.tls.clientCaFile",
    Obstacle.IDENTITY_REFUSED: "add its name to grpc.tls.clientNames of the settings, or present another certificate",
}


def _what_to_do(fault: Fault, host: str, terms: Terms, seen: Examined) -> str:
    if fault.obstacle is not Obstacle.UNKNOWN_AUTHORITY:
        return _TO_DO[fault.obstacle].format(host=host)
    known = "caCert has another one" if terms.authorities_pem else "without caCert only those of the system are known"
    where = "the certificate itself" if seen.leaf and seen.leaf.is_self_issued else "its authority's, ca.crt"
    return f"{known}: put {where} into caCert of the TriggerAuthentication; {_PAGE}"
