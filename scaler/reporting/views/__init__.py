"""Quota, pending gangs and plans as JSON: `queues`, `pending`, `plan`."""

from typing import Any

Json = dict[str, Any]
