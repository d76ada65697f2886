"""Stubs generated from protos/externalscaler.proto. Not edited by hand; regenerate from the repository's root with

    uv run --isolated --no-project --with grpcio-tools==1.78.0 python -m grpc_tools.protoc \\
        -Iscaler/keda/_pb=protos --python_out=. --pyi_out=. --grpc_python_out=. scaler/keda/_pb/externalscaler.proto

Stubs demand at least the protobuf and grpcio they were generated for, and protobuf accepts them up to the next major
version. 1.78.0 generates for protobuf 6.31.1 and grpcio 1.78, so they work on protobuf 6.31 to 7.x.
"""
