"""Known idle spans come back exactly as the spans of jobs; what is not known is work."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from gang_builders import MINUTE, job, minutes_of
from scaler_analysis.simulation.gangs.pauses import PauseRule
from scaler_analysis.simulation.gangs.recorded_jobs import recorded_jobs, with_recorded_spans
from scaler_analysis.simulation.recordings.recorded import PodFacts
from simulation_builders import BEGIN_S, ENGINE, TRUST, UTIL, Sampled, decided_at_every_tick, recorded, spans

from scaler.idleness.policy import Policy

RULE = PauseRule(signals=(UTIL,), trust=TRUST, floor=0.01, shortest=5 * MINUTE)
BEGIN = datetime.fromtimestamp(BEGIN_S, UTC)
FOUR = PodFacts(owner="JobSet/train", queue="team-a", gpus=1)


def jobs_of(folder, series, facts=None, *, rule=RULE):
    return recorded_jobs(recorded(folder, series, facts), rule)


def spans_of(folder, series, facts=None, *, rule=RULE):
    """Of the only job, in minutes."""
    (found,) = jobs_of(folder, series, facts, rule=rule)
    return [minutes_of(each) for each in found.spans]


def a(*parts, **more):
    return Sampled(pod="a", samples=spans(*parts, start=60 * more.pop("start", 0)), **more)


QUIET_THEN_GONE = spans((60, 0.5), (60, 0)) + spans((60, 0), start=150 * 60)
HOURS = spans((60, 0.5), (60, 0))
LAST = 0.5
"""The last sample is half a minute before the end of the last span."""


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        pytest.param([a((60, 0.5), (90, 0), (30, 0.5))], [60, 90, 30 - LAST], id="work and pauses by turns"),
        pytest.param([a((60, 0.5), (90, 0))], [60, 90 - LAST], id="it ends with its last sample, also in a pause"),
        pytest.param([a((60, 0))], [0.5, 60 - 2 * LAST], id="its start is work, whatever it does"),
        pytest.param([a((60, 0.5), (4.5, 0), (60, 0.5))], [124.5 - LAST], id="a pause of 4m30s is work"),
        pytest.param([a((60, 0.5), (5, 0), (60, 0.5))], [60, 5, 60 - LAST], id="one of 5m is a pause"),
        pytest.param([a((60, 0.5), (60, 0.0099), (1, 0.01))], [60, 60, 1 - LAST], id="at the floor it works"),
        pytest.param(
            [Sampled(pod="a", samples=QUIET_THEN_GONE)],
            [60, 61, 29, 60 - LAST],
            id="a hole is work, once the last sample before it is 90 s old",
        ),
        pytest.param(
            [Sampled(pod="a", samples=[each for each in HOURS if not 4800 < each[0] < 5010])],
            [60, 60 - LAST],
            id="six missing collections are tolerated",
        ),
        pytest.param(
            [Sampled(pod="a", samples=[each for each in HOURS if not 4800 < each[0] < 5040])],
            [60, 21.5, 2.5, 36 - LAST],
            id="seven are a hole",
        ),
        pytest.param(
            [a((30, 0.5), (90, 0)), a((60, 0.5), (60, 0), gpu="second")],
            [60, 60 - LAST],
            id="as long as one of two GPUs works, it works",
        ),
        pytest.param(
            [a((30, 0.5), (90, 0)), a((60, 0.5), (30, 0), gpu="second")],
            [60, 31, 29 - LAST],
            id="a GPU that reports no longer is not idle",
        ),
        pytest.param(
            [a((30, 0.5), (90, 0)), a((60, 0), gpu="second", start=60)],
            [60, 60 - LAST],
            id="a GPU that does not report yet is not idle",
        ),
        pytest.param(
            [a((20, 0.5), (100, 0), gpu="g"), Sampled(pod="b", gpu="g", samples=[])],
            [20, 100 - LAST],
            id="a pod without samples is no pod",
        ),
    ],
)
def test_spans_are_exact(tmp_path, series, expected):
    assert spans_of(tmp_path, series) == expected


def test_work_is_on_any_signal_and_idle_only_what_every_signal_shows(tmp_path):
    rule = replace(RULE, signals=(UTIL, ENGINE))
    both = [a((30, 0.5), (90, 0)), a((60, 0), (30, 0.5), (30, 0), signal=ENGINE)]
    (tmp_path / "one").mkdir()

    assert spans_of(tmp_path, both, rule=rule) == [30, 30, 30, 30 - LAST]
    assert spans_of(tmp_path / "one", both[:1], rule=rule) == [120 - LAST]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        pytest.param(1, [30, 90 - LAST], id="as many GPUs report as it requests"),
        pytest.param(2, [120 - LAST], id="one GPU never reports"),
    ],
)
def test_a_pod_of_which_not_every_gpu_reports_works(tmp_path, gpus, expected):
    assert spans_of(tmp_path, [a((30, 0.5), (90, 0))], {"a": PodFacts(gpus=gpus)}) == expected


def test_pods_of_one_owner_are_one_job_that_is_idle_while_all_are(tmp_path):
    """The second one starts at 20:00, and works until 70:00."""
    series = [a((60, 0.5), (60, 0)), Sampled(pod="b", samples=spans((50, 0.5), (50, 0), start=1200))]
    (found,) = jobs_of(tmp_path, series, dict.fromkeys("ab", FOUR))

    assert (found.name, found.queue, found.gpus, found.created) == ("team/train", "team-a", 2, BEGIN)
    assert [minutes_of(each) for each in found.spans] == [70, 50 - LAST]


def test_a_pod_that_starts_ends_a_pause(tmp_path):
    series = [a((30, 0.5), (90, 0)), Sampled(pod="b", samples=spans((60, 0), start=3600))]

    assert spans_of(tmp_path, series, dict.fromkeys("ab", FOUR)) == [30, 30, 0.5, 60 - 2 * LAST]


@pytest.mark.parametrize(
    ("away", "expected"),
    [
        pytest.param(1, {"team/train": [30, 30 - LAST, 31]}, id="one pod after the other: one job, at work in between"),
        pytest.param(60, {"team/train": [30, 30 - LAST], "team/train#2": [30 - LAST]}, id="gone for an hour: two jobs"),
    ],
)
def test_what_is_gone_for_longer_than_samples_may_be_old_is_another_job(tmp_path, away, expected):
    series = [a((30, 0.5), (30, 0)), Sampled(pod="b", samples=spans((30, 0.5), start=60 * (60 + away)))]
    found = jobs_of(tmp_path, series, dict.fromkeys("ab", FOUR))

    assert {each.name: [minutes_of(span) for span in each.spans] for each in found} == expected
    assert {each.gpus for each in found} == {1}


@pytest.mark.parametrize("facts", [{"a": PodFacts(gpus=2)}, {}], ids=["known", "as many as report at once"])
def test_its_gpus_are_the_most_that_its_pods_have_at_once(tmp_path, facts):
    """The pod b follows on one of a's GPUs, and c is there with it."""
    series = [
        a((60, 0.5), gpu="g1"),
        a((60, 0.5), gpu="g2"),
        Sampled(pod="b", gpu="g3", samples=spans((60, 0.5), start=3600)),
        Sampled(pod="c", gpu="g4", samples=spans((30, 0.5), start=3600)),
    ]
    owned = {pod: replace(facts.get(pod, PodFacts()), owner="Job/x") for pod in "abc"}

    assert [each.gpus for each in jobs_of(tmp_path, series, owned)] == [2]


def test_a_gpu_that_reports_for_two_pods_at_once_is_idle_for_neither(tmp_path):
    series = [a((30, 0.5), (90, 0), gpu="g"), Sampled(pod="b", gpu="g", samples=spans((30, 0), start=3600))]
    first, second = jobs_of(tmp_path, series)

    assert [minutes_of(each) for each in first.spans] == [30, 30, 31, 29 - LAST]
    assert [minutes_of(each) for each in second.spans] == [30 - LAST]


def test_two_workloads_of_one_name_have_names_of_their_own_and_no_clear_owner(tmp_path):
    facts = {"a": PodFacts(owner="Job/x"), "b": PodFacts(owner="RayCluster/x")}
    found = jobs_of(tmp_path, [a((60, 0.5)), Sampled(pod="b", samples=spans((60, 0.5), start=60))], facts)

    assert [(each.name, each.owner) for each in found] == [("team/x", ""), ("team/x#2", "")]


@pytest.mark.parametrize("pieces", [1, 7, 100])
def test_it_does_not_matter_how_many_samples_are_read_at_once(tmp_path, monkeypatch, pieces):
    monkeypatch.setattr("scaler_analysis.simulation.recordings.recording._STEP_SAMPLES", pieces)
    series = [Sampled(pod="a", samples=QUIET_THEN_GONE), a((60, 0), (30, 0.5), (120, 0), gpu="second")]

    assert spans_of(tmp_path, series) == [90, 31, 29, 60 - LAST]


# ------------------------------------------------------------------------------------------- as production decides it

WINDOW = Policy(idle_after=20 * MINUTE, warm_up=timedelta(0))
TRUSTING = replace(TRUST, min_coverage_ratio=0.0)


def _drawn(chance: Random) -> list[Sampled]:
    """Two pods, one with two GPUs, two signals: work, pauses and holes of some minutes, until six hours have passed."""
    found = []
    for pod, gpu, start in (("a", "g1", 0), ("a", "g2", 0), ("b", "g3", chance.choice([0, 40, 200]))):
        works = [(chance.choice([1, 5, 30, 60]), chance.choice([0, 0, 0, 0.5])) for _ in range(12)] + [(360, 0)]
        for signal in (UTIL, ENGINE):
            samples = spans(*works, start=60 * start + chance.uniform(0, 20))
            since = chance.uniform(0, 18_000)
            hole = since, since + chance.choice([0, 100, 200, 300, 2000])
            kept = [each for each in samples if not hole[0] < each[0] < hole[1] and each[0] < 21_600]
            found.append(Sampled(pod=pod, gpu=gpu, signal=signal, samples=kept))
    return found


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(each, marks=pytest.mark.slow) for each in range(2, 8))])
def test_what_production_takes_for_idle_is_a_pause_and_the_other_way_round(tmp_path, seed):
    """A suspension lies in a pause, the window after its begin; less 4 min, as a window may begin at the end of a hole.
    And 6 min after that, in which samples may be late, what still pauses is suspended."""
    recording = recorded(tmp_path, _drawn(Random(seed)), dict.fromkeys("ab", PodFacts(owner="Job/x")))
    rule = replace(RULE, signals=(UTIL, ENGINE), trust=TRUSTING)
    jobs = recorded_jobs(recording, rule)
    decided = decided_at_every_tick(recording, WINDOW, signals=rule.signals, trust=TRUSTING)
    pauses = [
        (at.timestamp(), (at + job.spans[n]).timestamp())
        for job in jobs
        for n in range(1, len(job.spans), 2)
        for at in [job.created + sum(job.spans[:n], timedelta(0))]
    ]
    assert decided.suspensions  # so that it does not hold for nothing

    for at_s in (
        at_s for _, at_s, *_ in decided.suspensions if at_s < recording.end_s - 60
    ):  # while both pods are there
        assert any(begin_s + 1200 - 240 <= at_s <= end_s + 16 for begin_s, end_s in pauses)
    for begin_s, end_s in pauses:
        late_s = begin_s + 1200 + 360
        if late_s < end_s:
            assert any(at_s <= late_s <= until_s for _, at_s, until_s, _ in decided.suspensions)


# ----------------------------------------------------------------------------------------------------- with Workloads


def run(name, *minutes, created=0.0, owner="team/x"):
    return replace(job(name, *minutes, created=created), owner=owner)


def joined(jobs, recorded):
    found, matched = with_recorded_spans(jobs, recorded)
    return [[minutes_of(span) for span in each.spans] for each in found], matched


@pytest.mark.parametrize(
    ("jobs", "runs", "expected", "matched"),
    [
        pytest.param(
            [run("w", 120)], [run("x", 30, 60, 30, created=5)], [[30, 60, 30]], 1, id="as long as in the file"
        ),
        pytest.param(
            [run("w", 150)], [run("x", 30, 60, 30)], [[60, 60, 30]], 1, id="what is not recorded of it is work"
        ),
        pytest.param([run("w", 60)], [run("x", 30, 60)], [[30, 60]], 1, id="more is recorded than the file knows"),
        pytest.param([run("w", 60)], [], [[60]], 0, id="nothing is recorded of it"),
        pytest.param([run("w", 60)], [run("y", 30, 30, owner="team/y")], [[60]], 0, id="something else is recorded"),
        pytest.param([run("w", 60)], [run("x", 30, 30, owner="")], [[60]], 0, id="whose it is, is not clear"),
        pytest.param([run("w", 20, 40)], [run("x", 30, 30)], [[20, 40]], 0, id="the file knows its pauses"),
        pytest.param(
            [run("w", 90)],
            [run("x", 30, 10, 20), run("x#2", 5, 25, created=100)],
            [[30, 10, 25, 25]],
            1,
            id="evicted at work, it goes on with work",
        ),
        pytest.param(
            [run("w", 70)],
            [run("x", 30, 10), run("x#2", 5, 25, created=100)],
            [[30, 10, 5, 25]],
            1,
            id="evicted in a pause, it comes back to work",
        ),
        pytest.param(
            [run("w1", 60), run("w2", 60, created=100)],
            [run("x", 40, 20, created=5), run("x#2", 30, 30, created=99)],
            [[40, 20], [30, 30]],
            2,
            id="each Workload of the same owner has what was recorded in its time",
        ),
        pytest.param([run("team/x", 60, owner="")], [run("x", 30, 30)], [[30, 30]], 1, id="by its own name"),
        pytest.param([run("w", 60, created=200)], [run("x", 30, 30)], [[60]], 0, id="recorded before it was created"),
    ],
)
def test_workloads_of_a_file_have_the_pauses_of_their_owner(jobs, runs, expected, matched):
    assert joined(jobs, runs) == (expected, matched)


def test_all_but_the_spans_is_as_in_the_file():
    listed = replace(job("w", 90, gpus=8, created=3, queue="a", priority=2), owner="team/x")
    (found,), _ = with_recorded_spans([listed], [run("x", 30, 60, created=5)])

    assert replace(found, spans=listed.spans) == listed
