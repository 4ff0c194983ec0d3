"""The llm command, with an OpenAI model of its own file and the llm-ollama plugin."""

import os
import subprocess
from pathlib import Path

from check import BASE, MODEL, V1, run, step

folder = Path.cwd() / "llm"
folder.mkdir()
(folder / "extra-openai-models.yaml").write_text(
    f"- model_id: emberd\n  model_name: {MODEL}\n  api_base: {V1}\n  api_key_name: none\n"
)
ENV = {**os.environ, "LLM_USER_PATH": str(folder), "OLLAMA_HOST": BASE, "OPENAI_API_KEY": "none"}


def llm(*words):
    done = subprocess.run(["llm", *words], env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-300:]
    return done.stdout.strip()


@step
def models():
    listed = llm("models")
    assert f"ollama/{MODEL}" in listed and "emberd" in listed, listed
    return "both are listed"


@step
def openai():
    return llm("-m", "emberd", "-o", "max_tokens", "8", "Say hi.")


@step
def ollama():
    text = llm("-m", f"ollama/{MODEL}", "-o", "num_predict", "8", "Say hi.")
    assert text
    return text


@step
def conversation():
    llm("-m", "emberd", "-o", "max_tokens", "6", "My name is Ann.")
    text = llm("-c", "-o", "max_tokens", "12", "What is my name?")
    assert text
    return text


run()
