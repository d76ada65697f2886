"""`simulate` in a terminal: what it says where there is little to say."""

from datetime import UTC, datetime, timedelta

from app.cli.command import command

BEGIN = datetime(2026, 11, 2, 9, tzinfo=UTC)


def busy_hour(tmp_path):
    """One GPU that works all the time, by both signals."""
    instants = [BEGIN + timedelta(seconds=30 * n) for n in range(120)]
    values = {"gr_engine_active": "0.5", "gpu_util": "50"}
    lines = [
        f"{at:%Y-%m-%dT%H:%M:%SZ},team,p,GPU-1,{name},{value}" for at in instants for name, value in values.items()
    ]
    file = tmp_path / "samples.csv"
    file.write_text("\n".join(["time,namespace,pod,gpu,signal,value", *lines]), encoding="utf-8")
    return file


def test_where_nothing_would_be_suspended_no_window_is_said_to_be_regretted(tmp_path):
    done = command("simulate", "--trace", str(busy_hour(tmp_path)), "--accept-regret", "10%")
    assert (done.status, done.err) == (0, "")
    assert "1 workload, 1 pod, 1.0 GPU-hours" in done.out
    assert "No window of the curve suspends anything." in done.out


def test_samples_are_from_one_place(tmp_path):
    done = command("simulate", "--trace", str(busy_hour(tmp_path)), "--since", "1d")
    assert done.status == 2
    assert "write either --trace FILE or --since 30d, not both: where are the samples from?" in done.err
