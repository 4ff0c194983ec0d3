"""Aider in the terminal: one message, through the OpenAI API and through Ollama's."""

import os
import subprocess
from pathlib import Path

from check import BASE, MODEL, V1, run, step

FLAGS = (
    "--no-git --no-check-update --no-show-model-warnings --no-analytics --yes-always --no-pretty "
    "--no-auto-lint --no-suggest-shell-commands --map-tokens 0 --edit-format ask"
).split()


def aider(model, **variables):
    folder = Path.cwd() / model.split("/")[0]
    folder.mkdir()
    (folder / ".aider.model.settings.yml").write_text(
        f"- name: {model}\n  extra_params:\n    max_tokens: 24\n"
    )
    done = subprocess.run(
        ["aider", *FLAGS, "--model", model, "--message", "What is the capital of France?"],
        cwd=folder,
        env={**os.environ, **variables, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-300:]
    assert "Paris" in done.stdout, done.stdout[-600:]
    return done.stdout.strip().splitlines()[-1]


@step
def openai():
    return aider(f"openai/{MODEL}", OPENAI_API_BASE=V1, OPENAI_API_KEY="none")


@step
def ollama():
    return aider(f"ollama_chat/{MODEL}", OLLAMA_API_BASE=BASE)


run()
