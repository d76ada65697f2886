"""Everything that a search for the victims of one gang starts from, found once and on demand."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from scaler.core.budgets import Exhausted
from scaler.core.placement import Capacity, Demand
from scaler.core.quota.model import Reservation, Workload
from scaler.core.reclaim.count import Count, certainly_before
from scaler.core.reclaim.ground import Budgets, SumsGround, VictimGround, World
from scaler.core.reclaim.needs import Need, choices_of, quota_needs, room_needs
from scaler.core.reclaim.trial import Trials, free_capacity
from scaler.core.reclaim.twins import Twins, twins_of
from scaler.core.reclaim.values import Candidate, Request
from scaler.core.victims import Found, Limits, Option, cheapest

_BY_SUMS = Limits(steps=2_000, questions=2_000, members=64)


class Field:
    """One request, with all that is found on the way."""

    def __init__(self, request: Request) -> None:
        scene = request.scene
        self.forecast = scene.forecast(request.leaving)
        self.tree = self.forecast.start.tree
        """Without those who leave anyway."""
        self.holders: Mapping[str, Workload] = {
            key: each for queue in self.tree.queues.values() for key, each in queue.workloads.items()
        }
        candidates = _distinct(each for each in request.candidates if each.workload in self.holders)
        self.request = replace(request, candidates=candidates)
        self.by_key: Mapping[str, Candidate] = {each.workload: each for each in candidates}
        self.gang = request.gang
        self.queue = self.tree.queues[scene.world.home(request.gang)]
        self.count = Count.of(request.gang, self.queue, scene.world.market)
        """Of the gang alone."""
        self.trials = Trials(self.request)

    @property
    def everybody(self) -> frozenset[str]:
        return frozenset(self.by_key)

    @cached_property
    def wanted(self) -> Count:
        """What the gang needs, and what those need that are before it for certain."""
        scene = self.request.scene
        before = certainly_before(self.gang, scene.before(self.gang), self.queue.spec.strategy, self.forecast.preempted)
        return Count.of(self.gang, self.queue, scene.world.market, list(before))

    @cached_property
    def nodes(self) -> Capacity | None:
        """The most that nodes may have free without a plan, as `forecast.roomiest` is it of quota."""
        capacity = free_capacity(self.request)
        return capacity.without(self.forecast.preempted | self.forecast.ending) if capacity is not None else None

    @cached_property
    def choices(self) -> list[list[Demand]]:
        """The gang's pods with every combination of flavors; none where nodes are not known."""
        return choices_of(self.gang, self.queue, self.request.scene.world.market) if self.nodes is not None else []

    @cached_property
    def needs(self) -> list[Need]:
        needs = quota_needs(self.wanted, self.forecast.roomiest, self.held)
        return needs if self.nodes is None else needs + room_needs(self.choices, self.nodes, self.by_key)

    @cached_property
    def held(self) -> Mapping[str, Reservation]:
        """What the candidates hold, but for those that may lose it in any case."""
        uncounted = self.forecast.preempted | self.forecast.ending
        return {key: self.holders[key].held for key in self.by_key if key not in uncounted}

    @cached_property
    def twins(self) -> Twins:
        return twins_of(self.request, self.forecast, self.holders)

    @cached_property
    def options(self) -> list[Option]:
        """The candidates as the search sees them: what each can add to what is missing, and who is like whom."""
        return [
            Option(
                key=key,
                cost=each.cost.total,
                gains=tuple(need.gains.get(key, 0) for need in self.needs),
                twin=self.twins.kinds[key],
            )
            for key, each in self.by_key.items()
        ]

    def world(self) -> World:
        """The roomiest world, to take candidates out of."""
        return World(self.forecast.roomiest, self.held, self.wanted, self.nodes, self.choices)

    def cheapest(self, budgets: Budgets | None, *, spared: Collection[str] = (), limits: Limits | None = None) -> Found:
        """The cheapest set of candidates that does, without the spared ones; without `budgets` nobody is refused."""
        options = [each for each in self.options if each.key not in spared]
        ground = VictimGround(self.world(), self.world(), [each.key for each in options], self.trials, budgets)
        if not ground.could_fit():
            return Found(keys=None, cost=0, is_exact=True)
        need = tuple(need.amount for need in self.needs)
        found = cheapest(options, need, ground, limits=limits or self.request.limits)
        return found if self.twins.are_alike and self.trials.are_foreseen else replace(found, is_exact=False)

    def cheapest_by_sums(self) -> frozenset[str] | None:
        """The cheapest set that quota asks for, whatever nodes, budgets and others who wait say."""
        needs = [each for each in self.needs if each.of_quota]
        options = [replace(each, gains=tuple(need.gains.get(each.key, 0) for need in needs)) for each in self.options]
        chosen, hopeful = (World(self.forecast.roomiest, self.held, self.wanted, None, ()) for _ in range(2))
        ground = SumsGround(chosen, hopeful, list(self.by_key))
        return cheapest(options, tuple(need.amount for need in needs), ground, limits=_BY_SUMS).keys

    def victims(self, keys: Collection[str]) -> tuple[Candidate, ...]:
        """The candidates of these keys, in the order of their names."""
        return tuple(sorted((self.by_key[key] for key in keys), key=lambda each: each.name))

    def refusal(self, keys: Collection[str]) -> Exhausted | None:
        """The budget that does not let these be suspended; None where all do."""
        return self.request.refuse([each.member for each in self.victims(keys)]) if keys else None


def _distinct(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """In a stable order, and each Workload once, though two ScalableWorkloads may name it: the cheaper one of them."""
    found: dict[str, Candidate] = {}
    for each in sorted(candidates, key=lambda each: (each.workload, each.cost.total, each.name)):
        found.setdefault(each.workload, each)
    return tuple(found.values())
