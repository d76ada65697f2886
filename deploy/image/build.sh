#!/bin/sh
# The steps by which the image is made, each from the project's root. deploy/Dockerfile runs them one after the other, and
# so does a test where no image can be built. Whatever is installed is held to a hash that is committed.
#
#   build.sh tools TOOLS                   uv and the build backend, into a virtual environment of their own
#   build.sh dependencies TOOLS PROGRAM    what the program needs, by uv.lock, into another one
#   build.sh program TOOLS PROGRAM         the program itself, and what looks back
#   build.sh sbom TOOLS FILE               what is in there, as CycloneDX
#   build.sh check PROGRAM                 whether it starts
set -eu

PYTHON="${PYTHON:-python3}"
EXTRAS="--extra analysis --extra fast --extra notifications --extra reflection"

tools() {
    "$PYTHON" -m venv "$1"
    "$1/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes -r deploy/image/tools.txt
}

dependencies() {
    # shellcheck disable=SC2086  # the extras are words
    UV_PROJECT_ENVIRONMENT="$2" "$1/bin/uv" sync --quiet --locked --no-default-groups $EXTRAS --no-install-workspace \
        --no-managed-python --python "$PYTHON"
}

program() {
    wheels="$(mktemp -d)"
    for project in . analysis; do
        (cd "$project" && "$1/bin/python" -m hatchling build -t wheel -d "$wheels" >/dev/null)
    done
    "$1/bin/uv" pip install --quiet --python "$2" --no-deps --offline "$wheels"/*.whl
    rm -r "$wheels"
}

sbom() {
    # shellcheck disable=SC2086
    "$1/bin/uv" export --quiet --locked --no-default-groups $EXTRAS --format cyclonedx1.5 --preview-features sbom-export \
        --output-file "$2" >/dev/null
}

check() {
    "$1/bin/python" -c 'import grpc' || {
        echo "gRPC cannot be loaded: the base image lacks a library, most likely libstdc++ (Debian: libstdc++6)" >&2
        exit 1
    }
    "$1/bin/python" -c 'import kubernetes.aio, scaler.app.cli.main, scaler_analysis.report.page'
    "$1/bin/python" -c 'import apprise, grpc_reflection, itsdangerous, uvloop'
    "$1/bin/idle-gpu-scaler" version
}

step="$1"
shift
case "$step" in
    tools | dependencies | program | sbom | check) "$step" "$@" ;;
    *)
        echo "there is no step '$step'; read the head of $0" >&2
        exit 2
        ;;
esac
