"""Another AdmissionCheck on the same queue, that somebody else looks after: Ready after a while, now and then Retry."""

from datetime import datetime
from random import Random

from scaler_sandbox.conditions import condition, has, timestamp
from scaler_sandbox.kinds import Json
from sim.random_ops import SECOND, RandomOpsCluster

from scaler.kube.objects.resources import WORKLOAD

NAME = "other"


class SecondCheck:
    """It answers every Workload that has quota, and every reservation anew."""

    def __init__(self, town: RandomOpsCluster, chance: Random) -> None:
        self._town = town
        self._chance = chance
        self._due: dict[tuple[str, str], datetime] = {}
        """When it answers, by uid and time of the reservation."""
        self.is_patient = False
        """Whether it sends nobody away any more."""
        town.add_check(NAME, "example.com/other")
        town.add_part("another check", self.turn, WORKLOAD)

    async def turn(self, now: datetime) -> datetime | None:
        waiting = [each for each in self._town.client.all(WORKLOAD) if _waits(each)]
        for workload in waiting:
            if self._due.setdefault(_reservation(workload), now + self._chance.randrange(5) * SECOND) <= now:
                self._answer(workload, now)
        return now + SECOND if waiting else None

    def _answer(self, workload: Json, now: datetime) -> None:
        sends_away = not self.is_patient and self._chance.random() < 0.2
        said = {"state": "Retry" if sends_away else "Ready", "message": "", "lastTransitionTime": timestamp(now)}
        entries = [{**each, **said} if each["name"] == NAME else each for each in workload["status"]["admissionChecks"]]
        name = workload["metadata"]["name"]
        self._town.change(WORKLOAD, name, {"status": {"admissionChecks": entries}}, "status")
        self._town.told_of(f"another check says {said['state']} of {name}")


def _waits(workload: Json) -> bool:
    is_held = has(workload, "QuotaReserved") and not has(workload, "Evicted") and not has(workload, "Finished")
    states = {each["name"]: each["state"] for each in workload["status"].get("admissionChecks") or ()}
    return is_held and workload["spec"].get("active", True) and states.get(NAME) == "Pending"


def _reservation(workload: Json) -> tuple[str, str]:
    return workload["metadata"]["uid"], str((condition(workload, "QuotaReserved") or {}).get("lastTransitionTime"))
