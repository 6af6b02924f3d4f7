"""The way in: from a caller's arguments to a request in the mailbox.

Runs on callers' threads. Everything that can be refused is refused here, before the request has a
place in the queue.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from transformers import GenerationConfig

from engine.errors import InvalidRequestError
from engine.loop import Channels
from engine.pooling import PooledStates, Pooling
from engine.prompts import check_prompt
from engine.request_ids import RequestIds, family_ids
from engine.requests import RequestState
from engine.sampling.checks import as_bool, as_float, as_int
from engine.sampling.options import SamplingLimits
from engine.sampling.parameters import resolve_sampling
from engine.sampling.random import MASK_64

MAX_RETURN_SEQUENCES = 1024
MAX_DEADLINE_SECONDS = 1e9
MAX_PRIORITY = 2**31 - 1
MAX_SALT_CHARACTERS = 128
# What is said of a request besides how its tokens are drawn.
_OWN_OPTIONS = frozenset(
    {
        "deadline_seconds",
        "holds_place",
        "num_return_sequences",
        "pooling",
        "priority",
        "queue_seconds",
        "salt",
    }
)


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
    """Makes requests and hands them over.

    Attributes:
        num_return_sequences: Answers to a prompt where the request does not say.
        ids: Makes those that callers do not give.
    """

    def __init__(
        self,
        generation_config: GenerationConfig,
        limits: SamplingLimits,
        channels: Channels,
        *,
        has_priorities: bool = False,
        can_pool: bool = False,
    ) -> None:
        """Remember the defaults, the limits and the way to the engine thread.

        Args:
            generation_config: Defaults of the requests' parameters.
            limits: What a request may ask for.
            channels: Where requests get a place in the queue, and where they go.
            has_priorities: Whether the scheduler orders requests by priority.
            can_pool: Whether the model's hidden states can be seen.
        """
        self.num_return_sequences = generation_config.num_return_sequences or 1
        self._generation_config = generation_config
        self._limits = limits
        mailbox, router = channels.mailbox, channels.router
        self._mailbox = mailbox
        self._gate = channels.gate
        self.ids = RequestIds(lambda name: mailbox.is_live(name) or name in router)
        self._has_priorities = has_priorities
        self._can_pool = can_pool
        self._counter = itertools.count()

    def make(
        self,
        input_ids: list[int],
        request_id: str | None,
        delivery: DeliveryOptions,
        options: Mapping[str, object],
    ) -> RequestState:
        """Check a caller's arguments and make a request of them; "" stands for an id to come.

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
            {name: value for name, value in options.items() if name not in _OWN_OPTIONS},
            num_prompt_tokens=len(prompt),
            request_index=index,
        )
        return RequestState(
            request_id=request_id or "",
            prompt_ids=prompt,
            params=params,
            streaming=delivery.streaming,
            timestamps=[] if delivery.record_timestamps else None,
            priority=self._priority(options.get("priority")),
            deadline_seconds=_read_seconds("deadline_seconds", options),
            queue_seconds=_read_seconds("queue_seconds", options),
            salt=_read_salt(options.get("salt")),
            holds_place=as_bool("holds_place", options.get("holds_place", True)),
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
            pooling=self._pooling(options.get("pooling")),
        )

    def make_family(
        self,
        input_ids: list[int],
        request_id: str | None,
        delivery: DeliveryOptions,
        options: Mapping[str, object],
    ) -> list[RequestState]:
        """Make a request, and one more for each further answer to its prompt.

        The request draws as it would without its children, and each of these as a request of its
        own with one of the seeds that follow.

        Returns:
            The request and its children, in the order in which they are to be computed.

        Raises:
            InvalidRequestError: See `make`.
            PromptTooLongError: See `make`.
        """
        count = self._num_answers(options.get("num_return_sequences"))
        request = self.make(input_ids, request_id, delivery, options)
        family = [request]
        for name in family_ids(request.request_id, count)[:-1]:
            seed = (request.params.seed + len(family)) & MASK_64
            family.append(request.make_child(name, replace(request.params, seed=seed)))
        return family

    def submit(
        self, families: Sequence[list[RequestState]], *, in_turn: Callable[[], bool]
    ) -> list[str]:
        """Give ids to families that have none, and hand all of them over, one after the other.

        If not all can be handed over, those that were are cancelled: without their ids nobody could
        ask for them.

        Args:
            families: From `make_family`; either all have ids or none has.
            in_turn: Whether to wait for places in the queue instead of being turned away.

        Returns:
            The ids of the requests, without those of their further answers.

        Raises:
            DuplicateRequestError: A given id is in use.
            QueueFullError: There are too few places, and waiting was not asked for.
            EngineStoppingError: The engine takes no requests.
            EngineDeadError: The engine died.
        """
        made = [] if families and families[0][0].request_id else self._name(families)
        posted: list[RequestState] = []
        try:
            for family in families:
                self._post(family, made, in_turn=in_turn())
                posted += family
        except BaseException:  # an interrupt while it waits for a place, too
            for request in posted:
                self._mailbox.post_cancel(request.request_id)
            raise
        finally:
            self.ids.release(made)
        return [family[0].request_id for family in families]

    def _name(self, families: Sequence[list[RequestState]]) -> list[str]:
        """Give all requests ids that were made for them; return these."""
        made = self.ids.reserve([len(family) for family in families])
        for (request, *children), (*child_names, name) in zip(families, made, strict=True):
            request.request_id = name
            for child, child_name in zip(children, child_names, strict=True):
                child.request_id = child_name
        return [name for names in made for name in names]

    def _post(self, family: list[RequestState], made: list[str], *, in_turn: bool) -> None:
        """Hand a request and its children over, all or none."""
        self._mailbox.check_open()
        num_places = sum(request.is_queued for request in family)
        if in_turn:
            self._gate.acquire_in_turn(num_places)
        else:
            self._gate.acquire(num_places)
        given = [] if made else [request.request_id for request in family]
        try:
            with self.ids.given(given):
                self._mailbox.post(*family)
        except BaseException:
            self._gate.release(num_places)
            raise

    def _priority(self, value: object) -> int:
        """Return a request's priority; without an order by priority all have the same."""
        priority = 0 if value is None else as_int("priority", value, -MAX_PRIORITY, MAX_PRIORITY)
        if priority != 0 and not self._has_priorities:
            raise InvalidRequestError(
                f"priority is {priority}, which needs scheduler_type='priority'", param="priority"
            )
        return priority

    def _pooling(self, value: object) -> PooledStates | None:
        """Return what gathers a prompt's hidden states, if its vector is asked for."""
        if value is None:
            return None
        kinds = [kind.value for kind in Pooling]
        if value not in kinds:
            raise InvalidRequestError(
                f"pooling is {value!r}; it must be one of {', '.join(kinds)}", param="pooling"
            )
        if not self._can_pool:
            raise InvalidRequestError("this model does not show hidden states", param="pooling")
        return PooledStates(Pooling(value))

    def _num_answers(self, value: object) -> int:
        """Return how many answers a request has; each takes a place in the queue."""
        name = "num_return_sequences"
        count = as_int(
            name, self.num_return_sequences if value is None else value, 1, MAX_RETURN_SEQUENCES
        )
        places = self._gate.max_queue_size
        if 0 < places < count:
            raise InvalidRequestError(
                f"{name} is {count}, more than the {places} places of the queue", param=name
            )
        return count


def _read_seconds(name: str, options: Mapping[str, object]) -> float | None:
    value = options.get(name)
    return None if value is None else as_float(name, value, 0.0, MAX_DEADLINE_SECONDS)


def _read_salt(value: object) -> str:
    """Return what keeps a request's blocks apart from those of others."""
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_SALT_CHARACTERS:
        raise InvalidRequestError(
            f"salt is a text of at most {MAX_SALT_CHARACTERS} characters", param="salt"
        )
    return value
