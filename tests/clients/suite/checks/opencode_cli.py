"""opencode."""

import json

from agent import TASK, drive
from check import AGENT_MODEL, V1, run, step

MODEL = f"emberd/{AGENT_MODEL}"
PROVIDER = {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": V1, "apiKey": "none"},
    "models": {AGENT_MODEL: {"limit": {"context": 16384, "output": 2048}}},
}
CONFIG = {
    "model": MODEL,
    "small_model": MODEL,
    "autoupdate": False,
    "provider": {"emberd": PROVIDER},
}


@step
def chat():
    return drive(
        "chat",
        ["opencode", "run", "--auto", "-m", MODEL, TASK],
        files={"opencode.json": json.dumps(CONFIG)},
        OPENCODE_DISABLE_MODELS_FETCH="1",
        OPENCODE_DISABLE_AUTOUPDATE="1",
    )


run()
