"""What the routes of one application share, in one typed object on `app.state`.

Made by `create_app`; there are no globals, so that two servers can live in one process. Fields
that change are changed on the event loop only.
"""

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from starlette.requests import HTTPConnection
from starlette.types import Scope

from engine import EngineDeadError, QueueFullError
from server.admission import Admission
from server.answer_plan import ModelFormats
from server.batches.service import BatchService
from server.engine_client import EngineClient, Manager, RequestPolicy
from server.generation import GenerationSetting
from server.grammars.compiler import GrammarCompiler
from server.metrics import Metrics
from server.parameters import RequestLimits, default_stops, sampling_defaults
from server.prompt_encoding import PromptEncoder
from server.reasoning.markers import find_markers
from server.request_errors import ModelNotFoundError
from server.request_record import current_record
from server.responses.store import ResponseStore
from server.running_requests import RunningRequests
from server.settings import ModelSettings, ServerSettings, Settings
from server.tools.registry import find_format, is_harmony
from server.tracing import Tracing
from server.version import VERSION
from server.vocabulary import Vocabulary

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
# Where a scope holds the value of its X-Request-Id.
REQUEST_ID_SCOPE = "slipstream.request_id"


@dataclass(slots=True)
class ServerState:
    """The parts of a server and its condition.

    Attributes:
        settings: What the operator set.
        manager: The engine's front door; the application's lifespan starts and stops it.
        client: Submits requests to it.
        other_clients: Submit requests that nobody has a connection for; are told what it is told.
        admission: Gives places in the queue.
        metrics: What is counted and measured.
        tracing: Sends spans; None if nobody takes them.
        encoder: Makes token ids of prompts.
        setting: What a generation needs.
        formats: How the model writes calls and reasoning.
        served_names: Names of the model; the first is its main one.
        fingerprint: Names weights, number format and version.
        created: When the server was made, in seconds since 1970.
        batches: Keeps files and runs batches; None if there is no folder for them.
        responses: The responses that clients may come back to.
        vector_size: Numbers in a vector that the model makes of a text; None if it makes none.
        running: The requests that are being answered, by their ids.
        started: Whether the engine has started.
        draining: Whether the server takes no new generation requests.
        num_active: Requests that are being answered.
        failure: What is wrong with the engine, "dead" or "hung"; None while it is well.
    """

    settings: Settings
    manager: Manager
    client: EngineClient
    admission: Admission
    metrics: Metrics
    tracing: Tracing | None
    encoder: PromptEncoder
    setting: GenerationSetting
    formats: ModelFormats
    served_names: tuple[str, ...]
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))
    batches: BatchService | None = None
    other_clients: list[EngineClient] = field(default_factory=list)
    responses: ResponseStore = field(
        default_factory=lambda: ResponseStore(max_responses=0, max_bytes=0)
    )
    vector_size: int | None = None
    running: RunningRequests = field(default_factory=RunningRequests)
    started: bool = False
    draining: bool = False
    num_active: int = 0
    failure: str | None = None

    @property
    def limits(self) -> RequestLimits:
        """What one request may ask for."""
        return self.setting.limits

    def fail(self, failure: str, error: EngineDeadError) -> None:
        """Note that the engine is gone, and end every request with an error."""
        self.failure = failure
        for client in (self.client, *self.other_clients):
            client.refuse_all(error)

    def end_active(self) -> None:
        """Note that a request is answered no longer."""
        self.num_active -= 1

    def recover(self) -> None:
        """Note that the engine is back."""
        self.failure = None
        for client in (self.client, *self.other_clients):
            client.accept()

    @property
    def is_ready(self) -> bool:
        """Whether a new request would be taken."""
        return self.started and not self.draining and self.client.is_healthy

    def admit(self, num_places: int, *, in_turns: bool = False) -> int:
        """Take places in the queue for the request that is being answered, before it costs work.

        Takes, returns and raises what `Admission.admit` does.
        """
        record = current_record()
        assert record is not None, "only a request that is being answered takes places"
        try:
            return self.admission.admit(record, num_places, in_turns=in_turns)
        except QueueFullError:
            self.metrics.rejections.labels("queue_full").inc()
            raise

    def resolve_model(self, name: str | None) -> str:
        """Return the served name that a request means.

        Raises:
            ModelNotFoundError: It is not served here.
        """
        if name is None:
            return self.served_names[0]
        if name not in self.served_names:
            raise ModelNotFoundError(name, self.served_names)
        return name


def build_state(settings: Settings, model: Any, manager: Manager, tokenizer: Any) -> ServerState:
    """Put the parts of a server together.

    Args:
        settings: What the operator set.
        model: An `engine.PagedModel`; its generation_config and dtype are read.
        manager: The engine's front door, not started yet.
        tokenizer: The model's transformers tokenizer.
    """
    server = settings.server
    client = EngineClient(manager, policy=request_policy(settings))
    clients = [key.name for key in settings.keys.clients]
    endpoint = settings.telemetry.otlp_endpoint
    vocabulary = Vocabulary(tokenizer)
    policy = settings.model.sampling_defaults
    generation_config = getattr(model, "generation_config", None)
    limits = RequestLimits(
        max_model_tokens=manager.resolved_config.max_model_tokens,
        max_choices=server.max_choices,
        max_prompts=server.max_prompts,
        max_top_logprobs=server.max_top_logprobs,
        max_stop_strings=server.max_stop_strings,
        max_messages=server.max_messages,
        default_stops=default_stops(generation_config),
        sampling_defaults=sampling_defaults(policy, generation_config),
    )
    names = served_names(settings.model)
    encoder = PromptEncoder(tokenizer)
    return ServerState(
        settings=settings,
        manager=manager,
        client=client,
        admission=Admission(manager, manager.resolved_config.max_queue_size, clients),
        metrics=Metrics(),
        tracing=Tracing(endpoint, names[0]) if endpoint else None,
        encoder=encoder,
        setting=GenerationSetting(client, vocabulary, limits, GrammarCompiler(vocabulary)),
        formats=_model_formats(server, tokenizer, encoder, vocabulary),
        served_names=names,
        fingerprint=_fingerprint(names[0], settings.model, model),
        responses=ResponseStore(
            max_responses=server.max_stored_responses, max_bytes=server.max_stored_bytes
        ),
        vector_size=model.vector_size,
    )


def _model_formats(
    server: ServerSettings, tokenizer: Any, encoder: PromptEncoder, vocabulary: Vocabulary
) -> ModelFormats:
    """Return how the model writes, from the settings and its chat template."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    calls = find_format(server.tool_parser, template, renders_tools=encoder.tools.renders_tools)
    return ModelFormats(
        calls=calls,
        reasoning=find_markers(server.reasoning_parser, template),
        special_ids={vocabulary.token_text(one): one for one in vocabulary.special_ids},
        short_call_ids=encoder.tools.short_ids,
        is_harmony=is_harmony(server.tool_parser, template),
    )


def request_policy(settings: Settings) -> RequestPolicy:
    """Return what the operator wants of every request of the engine."""
    server, security = settings.server, settings.security
    return RequestPolicy(
        isolates_keys=len(settings.keys.clients) > 1 and not security.share_prefixes,
        queue_seconds=server.queue_timeout_seconds or None,
        total_seconds=server.request_timeout_seconds or None,
    )


def served_names(settings: ModelSettings) -> tuple[str, ...]:
    """Return the names clients may use; without a setting, one made from the path."""
    if settings.served_names:
        return settings.served_names
    if not settings.path:
        return (DEFAULT_MODEL_NAME,)
    path = Path(settings.path)
    return (path.resolve().name if path.exists() else settings.path,)


def _fingerprint(name: str, settings: ModelSettings, model: Any) -> str:
    """Return a short name for what determines the answers."""
    numbers = (str(getattr(model, "dtype", "")), settings.weights, settings.activations)
    parts = (name, settings.revision, *numbers, str(settings.fusion), VERSION)
    return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def state_of(connection: HTTPConnection) -> ServerState:
    """Return the state of the application that a request came to."""
    return state_of_scope(connection.scope)


def state_of_scope(scope: Scope) -> ServerState:
    """Return the state of the application that an ASGI scope belongs to."""
    return cast(ServerState, scope["app"].state.server)
