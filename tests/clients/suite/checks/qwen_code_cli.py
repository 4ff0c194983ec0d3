"""Qwen Code."""

from agent import TASK, drive
from check import AGENT_MODEL, V1, run, step


@step
def chat():
    return drive(
        "chat",
        ["qwen", "--auth-type", "openai", "--yolo", TASK],
        OPENAI_BASE_URL=V1,
        OPENAI_API_KEY="none",
        OPENAI_MODEL=AGENT_MODEL,
    )


run()
