"""Continue's cn, configured for the OpenAI API and for Ollama's."""

from pathlib import Path

from agent import TASK, drive, output
from check import AGENT_MODEL, BASE, MODEL, V1, run, step

QUIET = {"CONTINUE_TELEMETRY_ENABLED": "0"}


def config(provider, url, model, more=""):
    entry = (
        f"name: {model}, provider: {provider}, model: {model}, apiBase: {url}, apiKey: none{more}"
    )
    return f"name: emberd\nversion: 1.0.0\nschema: v1\nmodels:\n  - {{{entry}, roles: [chat]}}\n"


def loop(provider, url):
    return drive(
        provider,
        ["cn", "--config", "config.yaml", "--auto", "-p", TASK],
        files={"config.yaml": config(provider, url, AGENT_MODEL)},
        **QUIET,
    )


@step
def openai():
    return loop("openai", V1)


@step
def ollama():
    return loop("ollama", BASE)


@step
def real_model():
    """Its whole prompt, read by a real model."""
    folder = Path.cwd() / "real"
    folder.mkdir()
    limit = ", defaultCompletionOptions: {maxTokens: 200, temperature: 0}"
    (folder / "config.yaml").write_text(config("openai", V1, MODEL, limit))
    told = output(["cn", "--config", "config.yaml", "-p", "Say hi."], folder, 900, QUIET)
    assert told.strip(), "nothing was said"
    return told


run()
