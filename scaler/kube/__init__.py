"""Access to the Kubernetes API: objects, watches, Lease, Events, work queue."""
