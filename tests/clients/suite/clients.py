"""Which clients there are: where each comes from and which check drives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Client:
    """`package` is the one whose version is told; `requires` are requirements for pip or npm.

    A check that ends in .py runs on the environment's own Python, or on the suite's where the client comes
    from npm; one that ends in .mjs runs on node.
    """

    name: str
    kind: Literal["pip", "npm", "none"]
    package: str
    requires: tuple[str, ...]
    check: str
    seconds: int = 600
    quick: bool = False


def _pip(name: str, check: str, *requires: str, seconds: int = 600, quick: bool = False) -> Client:
    package = requires[0].split("[")[0].split("=")[0].split(">")[0].split("<")[0]
    return Client(name, "pip", package, requires, check, seconds, quick)


def _npm(name: str, check: str, *requires: str, seconds: int = 600, quick: bool = False) -> Client:
    head, at, _ = requires[0].rpartition("@")
    return Client(
        name, "npm", head if at and head else requires[0], requires, check, seconds, quick
    )


CLIENTS = (
    _pip("openai-py", "openai_py.py", "openai>=3", quick=True),
    _npm("openai-js", "openai_js.mjs", "openai@6", quick=True),
    _pip("ollama-py", "ollama_py.py", "ollama>=0.6", quick=True),
    _npm("ollama-js", "ollama_js.mjs", "ollama@0.6", quick=True),
    _pip("anthropic-py", "anthropic_py.py", "anthropic>=2", quick=True),
    _npm("anthropic-js", "anthropic_js.mjs", "@anthropic-ai/sdk", quick=True),
    _pip("litellm", "litellm_py.py", "litellm"),
    _pip("langchain", "langchain_py.py", "langchain-openai", "langchain-ollama"),
    _npm(
        "langchain-js",
        "langchain_js.mjs",
        "@langchain/openai",
        "@langchain/ollama",
        "@langchain/core",
    ),
    _pip(
        "llama-index",
        "llama_index_py.py",
        "llama-index-core",
        "llama-index-llms-ollama",
        "llama-index-llms-openai-like",
        "llama-index-embeddings-ollama",
    ),
    _npm(
        "vercel-ai",
        "vercel_ai.mjs",
        "ai@6",
        "@ai-sdk/openai-compatible@2",
        "ollama-ai-provider-v2",
        "zod",
    ),
    _pip("instructor", "instructor_py.py", "instructor"),
    _pip("pydantic-ai", "pydantic_ai_py.py", "pydantic-ai-slim[openai]"),
    _pip("openai-agents", "openai_agents_py.py", "openai-agents"),
    _pip("llm", "llm_py.py", "llm", "llm-ollama"),
    _pip("aider", "aider_cli.py", "aider-chat", seconds=900),
    _npm("pi", "pi_cli.py", "@mariozechner/pi-coding-agent", seconds=1800),
    _npm("claude-code", "claude_code_cli.py", "@anthropic-ai/claude-code"),
    _npm("codex", "codex_cli.py", "@openai/codex"),
    _npm("opencode", "opencode_cli.py", "opencode-ai"),
    _npm("cline", "cline_cli.py", "cline"),
    _npm("continue", "continue_cli.py", "@continuedev/cli", seconds=1800),
    _npm("qwen-code", "qwen_code_cli.py", "@qwen-code/qwen-code"),
    _pip("schemathesis", "schemathesis_cli.py", "schemathesis", seconds=2400),
    _pip("lm-eval", "lm_eval_cli.py", "lm-eval[api]", "transformers", seconds=1200),
    _pip("guidellm", "guidellm_cli.py", "guidellm", "torch==2.13.0", seconds=1200),
    _pip("llama-benchy", "llama_benchy_cli.py", "llama-benchy", seconds=1200),
    Client("open-webui", "none", "open-webui", (), "open_webui.py", seconds=6000),
)
