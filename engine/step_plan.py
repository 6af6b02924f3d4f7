"""A step while it is being put together: who has a share of it so far, and what is left.

Engine thread only; made and filled by `Scheduler`. Knows tokens, not blocks.
"""

from dataclasses import dataclass, field

from engine.batch import ScheduledRequest
from engine.requests import RequestState


@dataclass(slots=True)
class StepPlan:
    """A batch while it is being put together.

    Attributes:
        budget: Tokens that may still be added.
        prompt_budget: Of these, tokens of requests that have more than one to compute.
        scheduled: The shares given so far, by request id.
        deferred: Running requests that left their share to others; what remains is theirs.
        num_started: Requests that had never been scheduled before and held a place in the queue.
        preempted: Whether a request gave way because blocks ran out.
    """

    budget: int
    prompt_budget: int
    scheduled: dict[str, ScheduledRequest] = field(default_factory=dict)
    deferred: list[RequestState] = field(default_factory=list)
    num_started: int = 0
    preempted: bool = False

    def is_full(self) -> bool:
        """Return whether no new request can get a share."""
        return self.budget == 0 or self.prompt_budget == 0

    def num_tokens_for(self, request: RequestState) -> int:
        """Return how large a share the request can have."""
        missing = request.num_missing_tokens
        return min(missing, self.budget, self.prompt_budget if missing > 1 else 1)

    def take(self, request: RequestState, num_new: int) -> None:
        """Give a request its share."""
        samples = num_new == request.num_missing_tokens
        share = ScheduledRequest(request, num_new, samples)
        self.scheduled[request.request_id] = share
        self._spend(share, 1)

    def take_row(self, request: RequestState) -> None:
        """Give a request the one token that it has to compute."""
        share = ScheduledRequest(request, 1, True)
        self.scheduled[request.request_id] = share
        self.budget -= 1

    def take_back(self, request: RequestState) -> None:
        """Undo `take`, if it was called for this request."""
        share = self.scheduled.pop(request.request_id, None)
        if share is not None:
            self._spend(share, -1)

    def _spend(self, share: ScheduledRequest, sign: int) -> None:
        self.budget -= sign * share.num_new_tokens
        if share.num_new_tokens > 1 or not share.samples:
            self.prompt_budget -= sign * share.num_new_tokens
