"""The targets of the settings → what tells them."""

from scaler.app.settings.notifications import NotificationSettings
from scaler.clock import background_threads
from scaler.notifications.alertmanager import Alertmanager
from scaler.notifications.controller import Notifications, NotificationsObserver
from scaler.notifications.senders import TargetKind, sender_of

_THREADS = 4
"""For targets whose libraries block: so many of them may hang without keeping others from being told."""


def configured_notifications(settings: NotificationSettings, observer: NotificationsObserver) -> Notifications:
    targets = settings.configs()
    threads = background_threads("notifications", _THREADS)
    return Notifications(
        limits=settings.limits(),
        senders={
            each.name: sender_of(each, threads, settings.timeout)
            for each in targets
            if each.kind is not TargetKind.ALERTMANAGER
        },
        followers=[
            Alertmanager(each, settings.timeout, observer.sent)
            for each in targets
            if each.kind is TargetKind.ALERTMANAGER
        ],
    )
