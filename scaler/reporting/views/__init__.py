"""Quota, pending gangs and plans as JSON: `queues`, `pending`, `plan`."""
