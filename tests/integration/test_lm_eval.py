"""lm-eval over the wire: the scores of a model that is served are those of the model itself.

Needs `lm-eval[api]`, which is too large to be installed for one test.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval[api] is not installed")
lm_eval_tasks = pytest.importorskip("lm_eval.tasks")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

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


@pytest.mark.parametrize("tokenized", [True, False], ids=["token ids", "texts"])
def test_scores_over_the_wire_are_the_models_own(
    served_tiny_model, tiny_model_folder, task_folder, tokenized
):
    own, own_answers = evaluate(
        task_folder, "hf", pretrained=str(tiny_model_folder), dtype="float32", device="cpu"
    )
    served, answers = evaluate(
        task_folder,
        "local-completions",
        base_url=f"{served_tiny_model.url}/v1/completions",
        model="tiny",
        tokenizer=str(tiny_model_folder),
        tokenized_requests=tokenized,
        max_length=512,
        num_concurrent=2,
    )
    assert served == own
    assert answers["wire_text"] == own_answers["wire_text"]
    for ours, theirs in zip(answers["wire_choice"], own_answers["wire_choice"], strict=True):
        for (mine,), (other,) in zip(ours, theirs, strict=True):
            assert float(mine[0]) == pytest.approx(float(other[0]), abs=1e-3)
            assert mine[1] == other[1]
