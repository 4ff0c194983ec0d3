"""Codex."""

from agent import TASK, drive, home
from check import AGENT_MODEL, V1, run, step

settings = home() / ".codex"
settings.mkdir()
(settings / "config.toml").write_text(
    f"""model = "{AGENT_MODEL}"
model_provider = "emberd"
[model_providers.emberd]
name = "emberd"
base_url = "{V1}"
wire_api = "responses"
"""
)
FLAGS = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]


@step
def responses():
    return drive("responses", ["codex", "exec", *FLAGS, TASK])


run()
