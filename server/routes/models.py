"""GET /v1/models and /v1/models/{id}; an id may hold slashes."""

from fastapi import APIRouter, Request

from api_schemas import ModelCard, ModelList
from server.state import ServerState, state_of

router = APIRouter(tags=["models"])


@router.get("/models")
async def list_models(request: Request) -> ModelList:
    """List the names under which the model is served."""
    state = state_of(request)
    return ModelList(data=[_card(state, name) for name in state.served_names])


@router.get("/models/{model_id:path}")
async def get_model(request: Request, model_id: str) -> ModelCard:
    """Describe one served name."""
    state = state_of(request)
    return _card(state, state.resolve_model(model_id))


def _card(state: ServerState, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=state.created,
        owned_by="slipstream",
        root=state.served_names[0],
        max_model_len=state.limits.max_model_tokens,
    )
