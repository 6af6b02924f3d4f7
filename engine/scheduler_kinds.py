"""The schedulers one can choose from, by the name that the configuration calls them.

Engine thread only. `fifo` is `Scheduler` itself; the others say where they differ from it.
"""

from collections.abc import Iterable

from engine.requests import RequestState
from engine.scheduler import Scheduler
from engine.step_plan import StepPlan
from engine.waiting_queue import rank

# After this many starts the request that has waited longest goes first, whatever its priority.
STARTS_PER_TURN = 16
# A request that was preempted this often is preempted no more: it is promoted.
MAX_PREEMPTIONS = 4


class PrefillFirstScheduler(Scheduler):
    """Like `Scheduler`, but running requests that prefill go before those that decode.

    They take the whole of a step if they can use it, unless there is a step-time target: then they
    have what it leaves beside a token for each decoding request.
    """

    def order(
        self, decoding: list[RequestState], prefilling: list[RequestState]
    ) -> Iterable[RequestState]:
        """Return the running requests in the order in which they get their share of a step."""
        return [*prefilling, *decoding]


class PriorityScheduler(Scheduler):
    """Lower priorities first, first come first served within one; nobody starves.

    A waiting request takes rows, blocks and prompt tokens of running ones of a higher number, the
    highest and newest first. Two rules bound what that costs these: after every `STARTS_PER_TURN`
    starts whoever has waited longest is promoted, and so is who was preempted `MAX_PREEMPTIONS`
    times. A promoted request goes before everything that is not, in order of arrival, and gives way
    to nobody but an older promoted one. So the oldest promoted request always goes on, and every
    request is promoted or ends.
    """

    starts_per_turn = STARTS_PER_TURN
    _num_starts = 0

    def order(
        self, decoding: list[RequestState], prefilling: list[RequestState]
    ) -> Iterable[RequestState]:
        """Return the running requests in the order in which they get their share of a step."""
        prefilling.sort(key=rank)
        return [*decoding, *prefilling]

    def start(self, plan: StepPlan, request: RequestState) -> None:
        """Let a request run that holds the cached part of its prefix."""
        super().start(plan, request)
        self._num_starts += 1
        if self._num_starts % self.starts_per_turn == 0:
            self._promote_oldest()

    def _promote_oldest(self) -> None:
        """Promote whoever waits longest, for a start or for its prompt to be computed."""
        prefilling = [
            running
            for running in self.running.values()
            if running.num_missing_tokens > 1 and not running.promoted
        ]
        if self.waiting:
            prefilling.append(self.waiting.longest_waiting())
        if prefilling:
            oldest = min(prefilling, key=lambda request: request.arrival)
            if oldest in self.waiting:
                self.waiting.promote(oldest)
            oldest.promoted = True

    def preempt(self, request: RequestState) -> None:
        """Take a running request's blocks; it is swapped back or computed again later."""
        request.promoted |= request.num_preemptions + 1 >= MAX_PREEMPTIONS
        super().preempt(request)

    def is_closed(self) -> bool:
        """Return whether no waiting request can start before a running one ends."""
        first = self.waiting.first()
        return super().is_closed() and not any(
            self._is_before(first, running) for running in self.running.values()
        )

    def make_budget(self, plan: StepPlan, request: RequestState) -> bool:
        """Let the prompt of a higher number wait; decoding requests are never left out."""
        shares = (share for share in plan.scheduled.values() if share.num_new_tokens > 1)
        victims = [share.request for share in shares if self._is_before(request, share.request)]
        if not victims:
            return False
        victim = max(victims, key=rank)
        plan.take_back(victim)
        plan.deferred.insert(0, victim)
        return True

    def make_room(self, plan: StepPlan, request: RequestState, num_blocks: int) -> bool:
        """Preempt running requests of a higher number, if that is enough for the waiting one."""
        victims = [
            running for running in self.running.values() if self._is_before(request, running)
        ]
        if not victims or sum(len(victim.block_ids) for victim in victims) < num_blocks:
            return False
        victims.sort(key=rank, reverse=True)
        num_given = 0
        for count, victim in enumerate(victims, start=1):
            num_given += self._num_blocks_alone(victim)
            if num_given >= num_blocks:
                for chosen in victims[:count]:
                    self.give_way(plan, chosen)
                return True
        return False

    @staticmethod
    def _is_before(waiting: RequestState, running: RequestState) -> bool:
        return waiting.priority < running.priority and not running.promoted

    def _num_blocks_alone(self, request: RequestState) -> int:
        """Return how many blocks become free if the request gives up its own."""
        ref_count = self.blocks.pool.ref_count
        return sum(ref_count(block_id) == 1 for block_id in request.block_ids)


SCHEDULERS: dict[str, type[Scheduler]] = {
    "fifo": Scheduler,
    "prefill_first": PrefillFirstScheduler,
    "priority": PriorityScheduler,
}
