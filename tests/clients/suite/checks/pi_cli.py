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
    """Its whole prompt, read by a real model, which may answer, or call a tool and then say nothing."""
    command_line = [*command("chat", MODEL, "Say hi."), "--mode", "json"]
    told = output(command_line, Path.cwd(), 900, {"PI_OFFLINE": "1"})
    events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    (end,) = [event for event in events if event["type"] == "agent_end"]
    said = [one for one in end["messages"] if one["role"] == "assistant"]
    assert said and not any(one["stopReason"] in ("error", "aborted") for one in said), said
    parts = [part for one in said for part in one["content"]]
    assert parts, said
    return " ".join(part.get("text") or f"called {part.get('name')}" for part in parts)


run()
