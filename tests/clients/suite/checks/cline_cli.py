"""Cline in the terminal."""

from pathlib import Path

from agent import TASK, drive, output
from check import AGENT_MODEL, V1, run, step


@step
def chat():
    auth = ["cline", "auth", "-p", "openai-compatible", "-k", "none", "-m", AGENT_MODEL, "-b", V1]
    output(auth, Path.cwd(), 120, {})
    return drive("chat", ["cline", "--auto-approve", "true", TASK])


run()
