"""Test parts that several folders share (`prometheus_server`, `http_stub`) lie beside this file.

That this file exists puts its folder on the import path, so that `import prometheus_server` works in every test.
"""
