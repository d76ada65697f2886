"""Certificates that are reloaded from files, and the identity of clients.

`material` reads files into a value that is known to work, `rotation` holds the newest one, `identity` says who may
call, `probe` calls a server as KEDA does. The servers themselves are in `keda` and `telemetry`.
"""
