"""What was recorded of a real Kueue happens again: every state of every Workload, to the letter of its messages."""

import pytest
from recordings import FOLDER, needs_data
from sandbox.kueue_replay import STEP_SECONDS, Recording, Replay, State, states

pytestmark = needs_data(FOLDER)

SECONDS_AFTER_THE_LAST_ACTION = 2.5


def is_in_order(ours: list[State], theirs: list[State]) -> bool:
    """Whether all of ours appear among theirs, in the same order."""
    rest = iter(theirs)
    return all(each in rest for each in ours)


@pytest.mark.parametrize(
    ("name", "admitted"),
    [
        # When Workloads were admitted that waited for a deactivation, in seconds of the recording.
        ("kueue-cohort-borrow-after-deactivate", {"job-gang-8cb1f": 4.967}),
        ("kueue-freed-quota-theft-besteffort", {"job-small-70da8": 6.747, "job-gang-83da4": None}),
        ("kueue-freed-quota-theft-strictfifo", {"job-gang-30796": 9.790, "job-small-2c007": None}),
        ("kueue-reactivation-order-and-preemption", {"job-b-0460c": 6.274, "job-c-688b6": None}),
        ("kueue-preemption-slow-terminating-pods", {}),
        ("kueue-deactivate-late-job-steals-quota", {}),
        ("kueue-deactivate-then-next-gang", {}),
        ("kueue-deactivate-reactivate-plain", {}),
    ],
)
async def test_every_workload_goes_through_states_that_were_recorded(
    name: str, admitted: dict[str, float | None]
) -> None:
    recording = Recording(name)
    replay = Replay(recording)
    await replay.run(until=recording.actions[-1]["t_offset_s"] + SECONDS_AFTER_THE_LAST_ACTION)
    ours, deleted = replay.workloads(), {action["action"][0].split()[-1] for action in recording.actions}
    for workload, versions in recording.workloads().items():
        theirs, found = states(versions), states(ours[workload])
        assert len(found) > 1, workload
        assert is_in_order(found, theirs), (workload, found, theirs)
        # Of one whose job is deleted Kueue writes once more before it is gone; the embedded API just deletes it.
        if workload.split("-")[1] not in deleted:
            assert found[-1] == theirs[-1], (workload, found[-1], theirs[-1])
    for workload, moment in admitted.items():
        first = next(iter(replay.admitted_at[workload]), None)
        assert first == (moment and pytest.approx(moment, abs=0.1 + STEP_SECONDS)), workload
