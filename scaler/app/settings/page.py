"""Settings of the web page: who may see what of it."""

from ipaddress import ip_network
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from scaler.app.settings.fields import Section
from scaler.reporting.page.access import PageAccessConfig


def _network(text: str) -> str:
    """Raises: ValueError for what is no network, or all of the internet."""
    network = ip_network(text, strict=False)
    if network.prefixlen == 0:
        raise ValueError(f"{text!r} trusts every address; name those of the proxy, such as 10.1.2.0/24")
    return str(network)


HeaderName = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9-]*)?$")]
Network = Annotated[str, AfterValidator(_network)]


class PageSettings(Section):
    """The [page](page.md). Without `userHeader` a client that reaches the HTTP server sees all of it."""

    user_header: HeaderName = ""
    """Header in which a proxy names the user, such as X-Forwarded-User. Each user then sees the namespaces in which
    the Kubernetes API says that they may list ScaledObjects, and requests without a user are refused. Empty: no user is
    known."""
    groups_header: HeaderName = ""
    """Header in which the proxy names the user's groups, separated by commas, such as X-Forwarded-Groups. Empty: none
    are known."""
    trusted_proxies: tuple[Network, ...] = ()
    """Addresses of the proxy, as networks such as 10.1.2.0/24. Headers that come from any other address are not
    believed. Needed with `userHeader`."""

    @model_validator(mode="after")
    def _believes_somebody(self) -> "PageSettings":
        if self.user_header and not self.trusted_proxies:
            raise ValueError("userHeader needs trustedProxies: else any client could name itself a user")
        if (self.groups_header or self.trusted_proxies) and not self.user_header:
            raise ValueError("groupsHeader and trustedProxies are of userHeader; set it, too")
        return self

    def access(self) -> PageAccessConfig | None:
        """What users may see; None where no user is known."""
        if not self.user_header:
            return None
        return self.into(PageAccessConfig, trusted_proxies=tuple(map(ip_network, self.trusted_proxies)))
