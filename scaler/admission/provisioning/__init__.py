"""ProvisioningRequests of gangs that lack nodes."""
