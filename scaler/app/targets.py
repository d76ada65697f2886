"""The targets of the settings → what sends to them."""

from scaler.app.settings.notifications import NotificationSettings
from scaler.clock import background_threads
from scaler.notifications.controller import Notifications
from scaler.notifications.senders import target_kind

_THREADS = 4
"""Threads for targets whose libraries block: so many of them may hang without keeping others from messages."""


def configured_notifications(settings: NotificationSettings) -> Notifications:
    threads = background_threads("notifications", _THREADS)
    senders = {each.name: target_kind(each.kind).sender(each, threads, settings.timeout) for each in settings.configs()}
    return Notifications(limits=settings.limits(), senders=senders)
