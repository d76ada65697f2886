"""`run`: what it refuses, in words that help, and that nothing else is needed to run it."""

import asyncio
import json
import signal
import sys

from app.cli.command import command
from running_scaler import Process, gpus, is_ready, metric
from small_cluster import small_cluster, until


def refused(*arguments: str) -> str:
    """What it says, all in one line per problem, when it ends because of its settings."""
    done = command("run", *arguments)
    assert done.status == 2
    assert done.out == ""
    assert "Traceback" not in done.err
    return done.err


def test_what_is_said_is_shown_as_it_is(tmp_path, monkeypatch):
    """Square brackets are how terminals are given colours, and how regular expressions are written."""
    monkeypatch.setenv("IDLE_GPU_SCALER__KUBERNETES__TIMEOUT", "[bold]")
    said = refused("--components", "[/red]", "--log-format", "[bold]", "--log-level", "[bold]")
    for name in ("components.0", "log.format", "log.level", "kubernetes.timeout"):
        assert f"{name}: " in said
    file = tmp_path / "settings[bold].yaml"
    assert str(file) in refused("--config", str(file))


def test_without_a_source_it_says_how_to_name_one():
    said = refused()
    assert "no metrics source: set prometheus.url (--prometheus-url), or dcgm.endpoints (--dcgm-endpoint)" in said


async def is_leader(port: int) -> bool:
    return await metric(port, "idle_gpu_scaler_leader") == 1


async def test_it_runs_by_its_flags_alone_and_ends_in_order(tmp_path):
    async with small_cluster(tmp_path) as cluster, gpus() as (_, exporter):
        flags = {
            "--kubeconfig": str(cluster.kubeconfig),
            "--dcgm-endpoint": exporter.node_urls["node-a"],
            "--grpc-address": "127.0.0.1:0",
            "--http-address": "127.0.0.1:0",
        }
        async with Process(tmp_path / "log", "run", *(word for flag in flags.items() for word in flag)) as started:
            await started.listens()
            await until(lambda: is_ready(started.http_port))
            await until(lambda: is_leader(started.http_port))
            started.send(signal.SIGINT)
            assert await started.ended() == 0
        said = [json.loads(line) for line in started.log().splitlines()]
        assert {line["event"] for line in said} >= {
            "listening",
            "KubeLeadershipGained",
            "stopping",
            "KubeLeaseReleased",
        }
        assert [line for line in said if line["level"] != "info"] == []


async def test_what_libraries_log_is_json_as_well():
    """One line that is not, such as a traceback, and whatever reads the log stops or skips."""
    script = (
        "import logging; from scaler.reporting import logs; logs.configure(level='info', style='json')\n"
        "import structlog; log = structlog.get_logger('x')\n"
        "log.info('ours', number=1)\n"
        "logging.getLogger('grpc').warning('theirs %s', 2)\n"
        "logging.getLogger('asyncio').info('too quiet to be shown')\n"
        "try:\n    1 / 0\n"
        "except ZeroDivisionError:\n    log.exception('ours broke')\n"
        "    logging.getLogger('asyncio').exception('theirs broke')\n"
    )
    lines = [json.loads(line) for line in await run_python(script)]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("ours", "info"),
        ("theirs 2", "warning"),
        ("ours broke", "error"),
        ("theirs broke", "error"),
    ]
    assert "ZeroDivisionError" in lines[2]["exception"]
    assert "ZeroDivisionError" in lines[3]["exception"]
    assert all(line["timestamp"].endswith("Z") for line in lines)


async def test_logs_as_text_show_no_values_of_variables_and_no_colours_where_no_terminal_shows_them():
    """A traceback that shows local variables shows credentials."""
    script = (
        "import logging; from scaler.reporting import logs; logs.configure(level='info', style='text')\n"
        "import structlog; log = structlog.get_logger('x')\n"
        "def break_down():\n    password = 'hunter' + str(2)\n    1 / 0\n"
        "try:\n    break_down()\n"
        "except ZeroDivisionError:\n    log.exception('broke'); logging.getLogger('x').exception('broke')\n"
    )
    text = "".join(await run_python(script))
    assert text.count("ZeroDivisionError") == 2
    assert "hunter2" not in text
    assert "UserWarning" not in text
    assert "\x1b" not in text


async def run_python(script: str) -> list[str]:
    """The lines that the script writes to standard error."""
    started = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stderr=asyncio.subprocess.PIPE)
    _, said = await started.communicate()
    assert started.returncode == 0, said.decode()
    return said.decode().splitlines(keepends=True)
