"""How does a server show who it is, and know who calls? Certificates from files that are replaced while it runs.

`material` reads files into a value that is known to work, `rotation` holds the newest one, `identity` says who may
call, `probe` calls a server as KEDA does. The servers themselves are in `keda` and `telemetry`.
"""
