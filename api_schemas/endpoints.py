"""Which route takes which body; what is generated or tested for each of them goes by this list."""

from api_schemas.base import RequestModel
from api_schemas.batches import BatchRequest
from api_schemas.chat import ChatCompletionRequest
from api_schemas.completions import CompletionRequest
from api_schemas.embeddings import EmbeddingRequest
from api_schemas.messages import CountTokensRequest, MessageRequest
from api_schemas.responses import ResponseInputRequest, ResponseRequest
from api_schemas.tokenization import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest

REQUEST_BODIES: tuple[tuple[str, type[RequestModel]], ...] = (
    ("POST /v1/chat/completions", ChatCompletionRequest),
    ("POST /v1/chat/completions/render", ChatCompletionRequest),
    ("POST /v1/completions", CompletionRequest),
    ("POST /v1/embeddings", EmbeddingRequest),
    ("POST /v1/responses/input_tokens", ResponseInputRequest),
    ("POST /v1/responses", ResponseRequest),
    ("POST /v1/messages/count_tokens", CountTokensRequest),
    ("POST /v1/messages", MessageRequest),
    ("POST /v1/batches", BatchRequest),
    ("POST /v1/tokenize", TokenizeTextRequest),
    ("POST /v1/tokenize", TokenizeChatRequest),
    ("POST /v1/detokenize", DetokenizeRequest),
)
