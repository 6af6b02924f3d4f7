"""Writes docs/compatibility.md from the code, so that it cannot drift from it.

    python scripts/compatibility.py            write the page
    python scripts/compatibility.py --check    fail if the page is not what the code says

What is honoured and what is refused is read from the signatures, the configuration's checks and
the wire's field tables; only the notes stand here.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path

import engine
from api_schemas import FieldSupport, RequestModel
from api_schemas.endpoints import REQUEST_BODIES
from engine.config_checks import REFUSED_FIELDS

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"

ENTRY_POINTS = (
    "generate_batch",
    "init_continuous_batching",
    "continuous_batching_context_manager",
    "destroy_cached_continuous_batching_manager",
)
MANAGER_METHODS = (
    "add_request",
    "add_requests",
    "cancel_request",
    "destroy",
    "get_result",
    "is_running",
    "join",
    "pause",
    "register_result_handler",
    "request_id_iter",
    "start",
    "stop",
    "switch_to_cb_friendly_attn",
    "warmup",
)

# What the documentation does not have.
ADDED_METHODS = ("clear_prefix_cache", "pause_async", "statistics", "stream")

# Item -> how ours differs from the implementation that the documentation belongs to, and why.
DIFFERENCES = {
    "generate_batch": "An unknown keyword is an error, not dropped. A dead engine raises. "
    "Several answers to a prompt share its blocks; the request itself draws with its seed, child i "
    "with seed + 1 + i. deadline_seconds, prompt_logprobs, stop_strings and transformers' logits "
    "processors are keywords too.",
    "init_continuous_batching": "The configuration is resolved and the cache allocated here, so "
    "that an error is an exception and not a dead thread.",
    "add_request": "Never blocks: a full queue raises `QueueFullError` at once. An id in use, an "
    "id outside the vocabulary, an empty or over-long prompt and a bad parameter are refused here. "
    "A stopping or dead engine raises instead of returning None. Sampling parameters are per "
    "request, greedy or not included; so are the logits processors, on the whole history. The "
    "keyword grammar takes an `engine.Grammar` that the answer follows. Options of beam search, "
    "guidance, watermarking and token healing are named and refused.",
    "add_requests": "All are checked before the first is submitted; waits for a place. Ids "
    "that are made, here and in `add_request`, pass over ids that callers use.",
    "continuous_batching_context_manager": "Blocks and batches that use one kept manager share it: "
    "the last to leave stops it. A block that raises is left at once; what is unfinished fails.",
    "start": "Of an engine that is stopping, waits for its end. "
    "An error in a step costs the requests that were being computed; the loop restarts, "
    "and dies at the fourth time within a minute.",
    "clear_prefix_cache": "For weights that were changed without a pause around it.",
    "pause_async": "`async with`; the event loop runs on while the engine ends its step.",
    "statistics": "Counters of queue, cache and loop.",
    "stream": "`async for` over one request; leaving early cancels it.",
    "cancel_request": "Delivers a terminal output with status CANCELLED.",
    "get_result": "Filtering by id keeps the order of the other outputs; waiting ends when nothing "
    "can come any more.",
    "request_id_iter": "Ends when the request has ended, however it ended. Refused where a "
    "handler or another iterator takes the outputs.",
    "register_result_handler": "Each handler runs on the event loop it was registered on. One that "
    "comes late gets first what nobody has taken; a second one is refused.",
    "stop": "An expired timeout leaves the engine draining; nothing fails because of it. Requests "
    "that never ran get a terminal output too.",
    "pause": "Counted and re-entrant, as documented. Weights changed inside are noticed: keys and "
    "values of the old ones are not used again, and running requests go on as if the new model had "
    "been given their tokens so far.",
    "warmup": "Runs chunks and decoding rows of growing sizes, for a second or two, on any device; "
    "before that it compiles what is to be compiled, however long that takes.",
    "switch_to_cb_friendly_attn": "Checks the model; the engine's attention is in place during its "
    "own forwards only, so the model stays an ordinary model in between.",
    "per_request_processors": "Parameters per request are always accepted; both values are fine.",
    "drop_unsupported_processors": "False refuses what the sampler does not do; True warns.",
    "max_queue_size": "Bounds every request that waits for its first step, not arrivals per step.",
    "num_blocks": "With max_memory_percent beside it, the size of the cache, refused by name if it "
    "and a step's tensors are more than that share of the free memory.",
    "max_memory_percent": "A share, despite its name; of what the control group leaves, too. 0.6 "
    "on a CPU; on a GPU 0.8 if the generation configuration processes logits or "
    "per_request_processors is set, else 0.9.",
    "max_batch_tokens": "256 on a CPU by default, so that running streams keep their pace.",
    "safety_margin": "The share of the blocks that new requests leave free while others run.",
    "return_logprobs": "Of the distribution the token was drawn from; `top_logprobs` per request "
    "reports the model's own.",
    "auto_switch_to_flash": "Takes flash-attn on a GPU where it is installed.",
    "seed": "Requests without a seed derive theirs from it; draws never depend on the batch.",
    "scheduler_type": "fifo, prefill_first and, of ours, priority: requests take a `priority`, of "
    "which lower ones go first; nobody starves. Another name is refused. Under prefill_first a "
    "prompt goes first, but under a step_time_target it leaves each stream its token.",
    "max_blocks_per_request": "The least width of a decoding batch's block table under flash-attn. "
    "It limits no request: a wider batch has a wider table. 0 elsewhere, as in the documented "
    "engine: there every width is as good.",
    "cpu_offload_space": "Works without an accelerator too. Only what the prefix cache has lost is "
    "copied back; where the buffer is full, requests are recomputed. None takes what the threshold "
    "allows, at most the size of the cache.",
    "cpu_offload_space_safety_threshold": "Of the memory that is left beside the cache, within the "
    "control group; a value above it is cut, with a warning.",
    "varlen_compile_config": "Any batch that is not a decode batch. A table of `CompileConfig`'s "
    "fields is taken too. dynamic=None means any size; options beside the default mode replace it. "
    "Options that freeze weights are refused. Without it: the level, then the generation "
    "configuration's compile_config.",
    "decode_compile_config": "Batches in which every row computes one token, on any device and "
    "with any attention; otherwise like varlen_compile_config.",
    "default_compile_level": "1: inductor's default mode, any size. 2: max-autotune without CUDA "
    "graphs, any size. 3: the same, for sizes that are powers of two. Both paths are compiled, "
    "each as one graph that is checked against the model; if that fails the model runs as it is, "
    "with one warning.",
    "step_time_target": "Not documented, ours: prompts enter in pieces that let running streams "
    "keep their pace.",
    "max_draft_tokens": "Not documented, ours: tokens guessed from what followed the same ones "
    "before are computed beside the known ones. Answers do not change, sampled ones neither.",
    "kv_cache_dtype": "Not documented, ours: on a CPU keys and values in bf16, fp16 or int8 take a "
    "half or a quarter of the memory that fp32 takes. What it costs: docs/quantisation.md.",
    "thread_niceness": "Not documented, ours: how far the engine's thread stands back when it and "
    "the event loop want the same processor.",
}

TESTS = Path(__file__).parents[1] / "tests" / "engine"

HEAD = """# Compatibility

What of the documented engine API and of the OpenAI wire is supported, what is refused, and where
this differs on purpose. Generated by `scripts/compatibility.py`; a test holds it against the code.
"""


def documented_test(name: str) -> str:
    """Return which of the tests of the documentation is named after an item.

    Raises:
        LookupError: None is.
    """
    for path in sorted(TESTS.glob("test_documented_*.py")):
        if re.search(rf"^(async )?def test_{name}\(", path.read_text(encoding="utf-8"), re.M):
            return f"`{path.stem}`"
    raise LookupError(f"no test of the documentation is named test_{name}")


def entry_rows() -> Iterable[tuple[str, ...]]:
    """Yield a row for each entry point and manager method."""
    for owner, names, support in (
        (engine.ContinuousMixin, ENTRY_POINTS, "supported"),
        (engine.ContinuousBatchingManager, MANAGER_METHODS, "supported"),
        (engine.ContinuousBatchingManager, ADDED_METHODS, "added"),
    ):
        for name in names:
            method: Callable[..., object] = getattr(owner, name)
            parameters = [p for p in inspect.signature(method).parameters if p != "self"]
            test = documented_test(name) if support == "supported" else ""
            yield f"`{name}({', '.join(parameters)})`", support, DIFFERENCES.get(name, ""), test


def config_rows() -> Iterable[tuple[str, str, str]]:
    """Yield a row for each documented configuration field."""
    for field in fields(engine.ContinuousBatchingConfig):
        refused = REFUSED_FIELDS.get(field.name)
        if refused is None:
            yield f"`{field.name}`", "supported", DIFFERENCES.get(field.name, "")
        else:
            neutral, reason = refused
            only = " or ".join(f"`{value!r}`" for value in neutral)
            yield f"`{field.name}`", "refused", f"Only {only}: {reason}."
    for name in engine.ContinuousBatchingConfig.DEPRECATED_FIELDS:
        yield f"`{name}`", "deprecated", "Warns, and maps to its successor."


def wire_rows(table: Iterable[FieldSupport]) -> Iterable[tuple[str, str, str]]:
    """Yield a row for each field of a request."""
    for field in sorted(table, key=lambda entry: (entry.handling.value != "supported", entry.name)):
        note = field.note
        if field.neutral and not note:
            note = "passes with " + " or ".join(f"`{value!r}`" for value in field.neutral)
        yield f"`{field.name}`", field.handling.value, note


def wire_sections() -> Iterable[tuple[str, tuple[str, ...], Iterable[tuple[str, str, str]]]]:
    """Yield a section for each request body; routes that take the same one share it.

    What a body has from that of another route is not repeated.
    """
    routes: dict[type[RequestModel], list[str]] = {}
    for route, body in REQUEST_BODIES:
        routes.setdefault(body, []).append(route)
    forms = [route for route, _ in REQUEST_BODIES]
    for body, names in routes.items():
        title = ", ".join(f"`{name}`" for name in names)
        if forms.count(names[0]) > 1:
            title += f", as `{body.__name__}`"
        inherited = [row for base in body.__mro__[1:] if base in routes for row in base.support]
        yield title, ("field", "", "note"), wire_rows(r for r in body.support if r not in inherited)


def render() -> str:
    """Return the page."""
    sections = (
        ("Engine: entry points and manager", ("item", "", "differs", "test"), entry_rows()),
        ("Engine: configuration", ("field", "", "note"), config_rows()),
        *wire_sections(),
    )
    parts = [HEAD]
    for title, columns, rows in sections:
        lines = [f"## {title}", "", _row(columns), _row(("---",) * len(columns))]
        parts.append("\n".join([*lines, *map(_row, rows)]) + "\n")
    parts.append(
        "A refused field answers 400 and names itself, unless its value asks for nothing. A field "
        "that is in no table is ignored and reported in the `X-Ignored-Params` header.\n"
    )
    return "\n".join(parts)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> int:
    """Write or check the page; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    page = render()
    if not parser.parse_args().check:
        PAGE.write_text(page)
        return 0
    if PAGE.read_text() != page:
        sys.stderr.write("docs/compatibility.md is stale: run scripts/compatibility.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
