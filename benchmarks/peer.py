"""Servers to measure: llama.cpp's llama-server out of a folder, and emberd itself, each on a free port.

Starts, waits until ready, asks and stops. Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

READY_SECONDS = 600
_SRC = Path(__file__).parent.parent / "src"


class Server:
    """A child process that serves HTTP; its output goes to a file that errors quote."""

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], port: int
    ) -> None:
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        self._log = tempfile.NamedTemporaryFile("w+b", suffix=f"-{name}.log")
        self._process = subprocess.Popen(
            command, env={**os.environ, **env}, stdout=self._log, stderr=subprocess.STDOUT
        )

    def __enter__(self) -> Server:
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def tail(self, lines: int = 12) -> str:
        """The last lines it printed."""
        text = Path(self._log.name).read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _wait_until_ready(self) -> None:
        """RuntimeError with its last words when it ends, or is not ready in time."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"{self.name} ended ({self._process.returncode}):\n{self.tail()}"
                )
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"{self.name} was not ready in {READY_SECONDS} s:\n{self.tail()}")


def llama_server(
    folder: Path, model: Path, streams: int, tokens: int, more: Sequence[str]
) -> Server:
    """llama-server with room for `tokens` of each stream, all layers on the GPU, flash attention on."""
    for library in folder.glob("*.so"):
        versioned = library.with_name(f"{library.name}.0")
        if not versioned.exists():
            versioned.symlink_to(library.name)
    port = free_port()
    settings = {
        "-m": str(model),
        "--port": str(port),
        "-ngl": "99",
        "-c": str(tokens * streams),
        "-np": str(streams),
        "-fa": "on",
        "-b": "2048",
        "-ub": "512",
    }
    command = [str(folder / "llama-server"), *(word for pair in settings.items() for word in pair)]
    path = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return Server("llama-server", [*command, "--no-warmup", *more], {"LD_LIBRARY_PATH": path}, port)


def emberd_server(model: Path, device: str, streams: int, tokens: int) -> Server:
    """This checkout's daemon with one model."""
    port = free_port()
    command = [sys.executable, "-m", "emberd", "serve", "--model", str(model), "--port", str(port)]
    command += ["--device", device, "--ctx", str(tokens), "--max-sequences", str(streams)]
    command += ["--log-level", "warning"]
    path = f"{_SRC}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return Server("emberd", command, {"PYTHONPATH": path}, port)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class PeerSpeed:
    """What llama-server says of its own engine, and the rate of the whole run by our clock."""

    prefill_tok_s: float
    decode_tok_s: float  # of all streams together, by each stream's own timing
    total_tok_s: float


def peer_speed(server: Server, prompts: Sequence[Sequence[int]], new_tokens: int) -> PeerSpeed:
    """All prompts at once, one answer each."""

    def ask(prompt: Sequence[int]) -> dict[str, float]:
        body = {
            "prompt": list(prompt),
            "n_predict": new_tokens,
            "temperature": 0,
            "cache_prompt": False,
            "ignore_eos": True,
        }
        answer: dict[str, Any] = post(f"{server.url}/completion", body)
        return dict(answer["timings"])

    start = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        timings = list(pool.map(ask, prompts))
    seconds = time.perf_counter() - start
    return PeerSpeed(
        prefill_tok_s=sum(timing["prompt_per_second"] for timing in timings) / len(timings),
        decode_tok_s=sum(timing["predicted_per_second"] for timing in timings),
        total_tok_s=len(prompts) * new_tokens / seconds,
    )


T = TypeVar("T")


def tried(run: Callable[[], T], attempts: int = 4) -> T:
    """What `run` gives, repeated when it raises RuntimeError.

    llama-server answers 500 when an output is no UTF-8, which random weights bring about now and then.
    """
    for _ in range(attempts - 1):
        try:
            return run()
        except RuntimeError as error:
            print(f"    again: {error}", flush=True)
    return run()


def post(url: str, body: Mapping[str, Any]) -> Any:
    """The JSON answer. RuntimeError with the body of an answer that is an error."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{url} answered {error.code}: {error.read(400)!r}") from error
