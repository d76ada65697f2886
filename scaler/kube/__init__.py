"""Access to the Kubernetes API: transport, reflector, work queue, Lease election, Events."""
