"""lm-eval over the wire: the scores of a model that is served are those of the model itself.

Needs `lm-eval[api]`, which is too large to be installed for one test.
"""

import json
import logging
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from server.default_model import WEIGHTS

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval[api] is not installed")
lm_eval_tasks = pytest.importorskip("lm_eval.tasks")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

logger = logging.getLogger(__name__)

NUM_QUESTIONS = 24
TASKS = {
    "wire_choice": """
output_type: multiple_choice
doc_to_text: "{{question}} "
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "wire_text": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n", "e"], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory) -> Path:
    """Two small tasks over questions that nobody needs to answer well."""
    folder = tmp_path_factory.mktemp("tasks")
    chance = random.Random(1)
    words = ["river", "naïve", "🦙 farm", "東京", "of the", "zebra", "two  blanks", "x"]
    with (folder / "questions.jsonl").open("w") as file:
        for _ in range(NUM_QUESTIONS):
            question = " ".join(chance.sample(words, 3))
            choices = chance.sample(words, 4)
            line = {"question": question, "choices": choices, "answer": chance.randrange(4)}
            file.write(json.dumps(line) + "\n")
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ntest_split: test\n"
            f"dataset_kwargs: {{data_files: {{test: {folder}/questions.jsonl}}}}\n{text}"
        )
    return folder


def evaluate(task_folder: Path, backend: str, **arguments: Any) -> tuple[Any, dict[str, list[Any]]]:
    """Return the scores, and what the model answered to each request of each task."""
    manager = lm_eval_tasks.TaskManager(include_path=str(task_folder), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=backend, model_args=arguments, tasks=list(TASKS), task_manager=manager, batch_size=4
    )
    scores = {
        name: {key: value for key, value in found["results"][name].items() if "stderr" not in key}
        for name in TASKS
    }
    answers = {name: [one["resps"] for one in found["samples"][name]] for name in TASKS}
    return scores, answers


@dataclass(frozen=True)
class Subject:
    """A model that is served, and the same model as lm-eval itself loads it.

    Attributes:
        url: The server's address.
        name: What it is served as.
        tokenizer: Folder of its tokenizer.
        own: Arguments of the backend `hf`.
    """

    url: str
    name: str
    tokenizer: str
    own: dict[str, Any]


@pytest.fixture(scope="module")
def tiny(tiny_model_server, tiny_model_folder) -> Subject:
    folder = str(tiny_model_folder)
    return Subject(tiny_model_server.url, "tiny", folder, {"pretrained": folder})


@pytest.fixture(scope="module")
def default(default_server, default_model, default_model_tokenizer) -> Subject:
    """The default model, whose file of weights transformers reads in its own way."""
    folder = str(default_model.folder)
    own = {"pretrained": folder, "gguf_file": WEIGHTS, "tokenizer": default_model_tokenizer}
    return Subject(default_server.url, default_server.model, folder, own)


@pytest.fixture(scope="module", params=["tiny", "default"])
def subject(request) -> Subject:
    chosen: Subject = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture(scope="module")
def own_results(subject, task_folder) -> tuple[Any, dict[str, list[Any]]]:
    """What the backend `hf` says."""
    return evaluate(task_folder, "hf", **subject.own, dtype="float32", device="cpu")


@pytest.mark.parametrize("tokenized", [True, False], ids=["token ids", "texts"])
def test_scores_over_the_wire_are_the_models_own(subject, own_results, task_folder, tokenized):
    own, own_answers = own_results
    served, answers = evaluate(
        task_folder,
        "local-completions",
        base_url=f"{subject.url}/v1/completions",
        model=subject.name,
        tokenizer=subject.tokenizer,
        tokenized_requests=tokenized,
        max_length=512,
        num_concurrent=2,
    )
    assert served == own
    assert answers["wire_text"] == own_answers["wire_text"]
    furthest = 0.0
    for ours, theirs in zip(answers["wire_choice"], own_answers["wire_choice"], strict=True):
        for (mine,), (other,) in zip(ours, theirs, strict=True):
            assert float(mine[0]) == pytest.approx(float(other[0]), abs=1e-3)
            furthest = max(furthest, abs(float(mine[0]) - float(other[0])))
            assert mine[1] == other[1]
    logger.info("%s: %s, log-likelihoods at most %.1g apart", subject.name, served, furthest)
