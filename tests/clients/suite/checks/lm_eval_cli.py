"""lm-eval: a generation task over chat, and a multiple-choice one by likelihoods of the prompt."""

import json
import os
import subprocess
from pathlib import Path

from check import MODEL, V1, run, step

TOKENIZER = os.environ["TOKENIZER"]
TASKS = {
    "gen": (
        [{"q": "Answer with one word. What is the capital of France?", "a": "Paris"}],
        "output_type: generate_until\ngeneration_kwargs: {until: ['\\n'], max_gen_toks: 12}\n"
        "metric_list:\n  - metric: exact_match\n    regexes_to_ignore: ['[^A-Za-z].*']\n",
    ),
    "choice": (
        [
            {"q": "The capital of France is", "c": ["Paris", "Berlin"], "a": 0},
            {"q": "Two plus two is", "c": ["nine", "four"], "a": 1},
            {"q": "def add(a, b): return", "c": ["a + b", "else"], "a": 0},
        ],
        "output_type: multiple_choice\ndoc_to_choice: c\nmetric_list:\n  - metric: acc\n",
    ),
}
folder = Path.cwd() / "tasks"
folder.mkdir()
for name, (rows, rest) in TASKS.items():
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"{name}.yaml").write_text(
        f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: '{data}'}}}}\n"
        f"test_split: test\ndoc_to_text: q\ndoc_to_target: a\n{rest}"
    )


def lm_eval(task, kind, url, *more):
    arguments = f"model={MODEL},base_url={url},num_concurrent=1,max_retries=1,tokenizer={TOKENIZER}"
    command = ["lm_eval", "run", "--model", kind, "--model_args", f"{arguments},{','.join(more)}"]
    command += ["--tasks", task, "--include_path", str(folder), "--output_path", f"out-{task}"]
    if "chat" in kind:
        command.append("--apply_chat_template")
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 0, (done.stdout + done.stderr)[-280:]
    (written,) = Path(f"out-{task}").rglob("results*.json")
    return json.loads(written.read_text())["results"][task]


@step
def generation():
    result = lm_eval(
        "gen", "local-chat-completions", f"{V1}/chat/completions", "tokenizer_backend=None"
    )
    assert result["exact_match,none"] == 1, result
    return result["exact_match,none"]


@step
def likelihoods():
    more = "tokenizer_backend=huggingface"
    result = lm_eval("choice", "local-completions", f"{V1}/completions", more)
    assert result["acc,none"] == 1, result
    return result["acc,none"]


run()
