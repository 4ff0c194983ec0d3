"""Claude Code."""

from agent import TASK, drive
from check import AGENT_MODEL, BASE, run, step

ENV = {
    "ANTHROPIC_BASE_URL": BASE,
    "ANTHROPIC_AUTH_TOKEN": "none",
    "ANTHROPIC_MODEL": AGENT_MODEL,
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": AGENT_MODEL,
    "ANTHROPIC_DEFAULT_SONNET_MODEL": AGENT_MODEL,
    "ANTHROPIC_DEFAULT_OPUS_MODEL": AGENT_MODEL,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}


@step
def messages():
    return drive("messages", ["claude", "-p", TASK, "--allowedTools", "Bash"], **ENV)


run()
