"""Schemathesis: hostile input on every route of /openapi.json, and methods that no route has. Never a 5xx."""

import http.client
import json
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

from check import AGENT_MODEL, BASE, run, step

# A real model's reply up to its context takes a minute and more on two cores.
FLAGS = (
    "--checks not_a_server_error --max-examples 10 --request-timeout 300 --warnings off --no-color"
)

FIXED = {"model": AGENT_MODEL, "ignore_eos": False}  # a reply that may not end never does


def schemathesis(*words):
    command = ["schemathesis", "run", *words, *FLAGS.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    lines = done.stdout.strip().splitlines()
    assert done.returncode == 0, " ".join(lines[-25:])[-280:]
    return next(line for line in reversed(lines) if "generated" in line)


@step
def every_route():
    return schemathesis(f"{BASE}/openapi.json")


@step
def every_route_with_a_model():
    """As above, but each `model` is one that is there, so that requests get further."""
    with urllib.request.urlopen(f"{BASE}/openapi.json") as response:
        document = json.load(response)
    named = 0
    for schema in document["components"]["schemas"].values():
        fields = schema.get("properties", {})
        named += "model" in fields
        fields |= {name: {"enum": [value]} for name, value in FIXED.items() if name in fields}
    assert named > 5, named
    Path("openapi.json").write_text(json.dumps(document))
    return schemathesis("openapi.json", "--url", BASE, "--phases", "coverage,fuzzing")


@step
def odd_methods():
    """TRACE, QUERY and others on some routes of each API."""
    host = urllib.parse.urlsplit(BASE)
    seen = set()
    for path in (
        "/",
        "/v1/models",
        "/v1/chat/completions",
        "/v1/messages",
        "/api/tags",
        "/metrics",
    ):
        for method in ("TRACE", "QUERY", "PROPFIND", "PATCH", "OPTIONS", "HEAD"):
            connection = http.client.HTTPConnection(host.hostname, host.port, timeout=60)
            connection.request(method, path)
            status = connection.getresponse().status
            connection.close()
            assert status < 500, f"{method} {path}: {status}"
            seen.add(status)
    return sorted(seen)


run()
