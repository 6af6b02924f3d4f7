"""The way in: from a caller's arguments to a request in the mailbox.

Runs on callers' threads. Everything that can be refused is refused here, before the request has a
place in the queue.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from transformers import GenerationConfig

from engine.admission import AdmissionGate
from engine.errors import InvalidRequestError
from engine.mailbox import Mailbox
from engine.prompts import check_prompt
from engine.requests import RequestState
from engine.sampling.checks import as_int
from engine.sampling.parameters import SamplingLimits, resolve_sampling

MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """What a request's outputs carry.

    Attributes:
        streaming: An output for every token, not only at the end.
        record_timestamps: When each token was accepted.
    """

    streaming: bool
    record_timestamps: bool


class Submitter:
    """Makes requests and hands them over."""

    def __init__(
        self,
        generation_config: GenerationConfig,
        limits: SamplingLimits,
        mailbox: Mailbox,
        gate: AdmissionGate,
        *,
        has_priorities: bool = False,
    ) -> None:
        """Remember the defaults, the limits and the way to the engine thread.

        Args:
            generation_config: Defaults of the requests' parameters.
            limits: What a request may ask for.
            mailbox: Where requests go.
            gate: Where they get a place in the queue.
            has_priorities: Whether the scheduler orders requests by priority.
        """
        self._generation_config = generation_config
        self._limits = limits
        self._mailbox = mailbox
        self._gate = gate
        self._has_priorities = has_priorities
        self._counter = itertools.count()

    def make(
        self,
        input_ids: list[int],
        request_id: str | None,
        delivery: DeliveryOptions,
        options: Mapping[str, object],
    ) -> RequestState:
        """Check a caller's arguments and make a request of them.

        Raises:
            InvalidRequestError: One is unknown, of the wrong type or out of range.
            PromptTooLongError: The request cannot fit the context.
        """
        if request_id == "":
            raise InvalidRequestError("request_id must not be empty", param="request_id")
        prompt = check_prompt(input_ids, self._limits.vocab_size)
        index = next(self._counter)
        params = resolve_sampling(
            self._generation_config,
            self._limits,
            {name: value for name, value in options.items() if name != "priority"},
            num_prompt_tokens=len(prompt),
            request_index=index,
        )
        return RequestState(
            request_id=f"req_{index}" if request_id is None else request_id,
            prompt_ids=prompt,
            params=params,
            streaming=delivery.streaming,
            timestamps=[] if delivery.record_timestamps else None,
            priority=self._priority(options.get("priority")),
        )

    def post(self, request: RequestState, *, in_turn: bool) -> None:
        """Hand a request over.

        Args:
            request: From `make`.
            in_turn: Wait for a place in the queue instead of being turned away.

        Raises:
            DuplicateRequestError: Its id is in use.
            QueueFullError: There is no place, and waiting was not asked for.
            EngineStoppingError: The engine takes no requests.
            EngineDeadError: The engine died.
        """
        self._mailbox.check_open()
        if in_turn:
            self._gate.acquire_in_turn()
        else:
            self._gate.acquire()
        try:
            self._mailbox.post(request)
        except Exception:
            self._gate.release()
            raise

    def _priority(self, value: object) -> int:
        """Return a request's priority; without an order by priority all have the same."""
        priority = 0 if value is None else as_int("priority", value, -MAX_PRIORITY, MAX_PRIORITY)
        if priority != 0 and not self._has_priorities:
            raise InvalidRequestError(
                f"priority is {priority}, which needs scheduler_type='priority'", param="priority"
            )
        return priority
