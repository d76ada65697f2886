"""The targets of messages: a module for each kind of target, named as the settings name the kind.

A new kind is a new module here, and nothing else. It has

    TAKES     the fields of `TargetConfig` that it has a use for beside the address; the settings refuse others
    sender()  what sends to one target

Laws:

* The address and every secret stand in files, as those of a `webhook.Receiver`.
* A send ends within its timeout. It returns once the receiver has accepted the message, and raises otherwise.
"""
