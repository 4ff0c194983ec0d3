"""pi, an agent that speaks all three APIs."""

import json
from pathlib import Path

from agent import TASK, drive, home, output
from check import AGENT_MODEL, BASE, MODEL, V1, run, step

PROVIDERS = {
    "chat": ("openai-completions", V1),
    "responses": ("openai-responses", V1),
    "messages": ("anthropic-messages", BASE),
}
settings = home() / ".pi" / "agent"
settings.mkdir(parents=True)
(settings / "models.json").write_text(
    json.dumps(
        {
            "providers": {
                name: {
                    "baseUrl": url,
                    "api": api,
                    "apiKey": "none",
                    "models": [{"id": AGENT_MODEL}, {"id": MODEL, "maxTokens": 200}],
                }
                for name, (api, url) in PROVIDERS.items()
            }
        }
    )
)


def command(provider, model, task):
    return ["pi", "--provider", provider, "--model", model, "--no-session", "-p", task]


@step
def chat():
    return drive("chat", command("chat", AGENT_MODEL, TASK), PI_OFFLINE="1")


@step
def responses():
    return drive("responses", command("responses", AGENT_MODEL, TASK), PI_OFFLINE="1")


@step
def messages():
    return drive("messages", command("messages", AGENT_MODEL, TASK), PI_OFFLINE="1")


@step
def real_model():
    """Its whole prompt, read by a real model."""
    told = output(command("chat", MODEL, "Say hi."), Path.cwd(), 900, {"PI_OFFLINE": "1"})
    assert told.strip(), "nothing was said"
    return told


run()
