"""Run the checks of real clients against one daemon, and write docs/clients.md. See docs/testing.md.

scripts/test-clients [NAME]... [--quick] [--list] [--no-report]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent.parent.parent
sys.path.insert(0, str(TESTS))

import psutil  # noqa: E402

from daemon import Daemon, running_daemon  # noqa: E402
from registry_fakes import running_registry  # noqa: E402

from . import agent_model, environments, report, tokenizer_folder, writer_model  # noqa: E402
from .clients import CLIENTS, Client  # noqa: E402

CHECKS = Path(__file__).parent / "checks"
MODELS = Path(os.environ.get("EMBERD_TEST_MODELS", "~/.cache/emberd-test-models")).expanduser()
CASES = Path(os.environ.get("EMBERD_CASES", TESTS.parent.parent / "shared" / "cases"))
FILES = {
    "qwen": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "minilm": "all-MiniLM-L6-v2-F32.gguf",
}
STEP = re.compile(r"^(ok|FAIL) +([\w.-]+): ?(.*)$", re.MULTILINE)
VERSION = re.compile(r"^version (\S+)$", re.MULTILINE)
LEAVE_SECONDS = 120  # the machine may be busy
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "TMPDIR")


def main() -> int:
    options = arguments()
    if options.list:
        for client in CLIENTS:
            print(f"{client.name:14} {client.kind:5} {' '.join(client.requires)}")
        return 0
    chosen = [one for one in CLIENTS if not options.names or one.name in options.names]
    if options.quick:
        chosen = [one for one in chosen if one.quick]
    cache = options.cache.expanduser().resolve()
    cache.mkdir(parents=True, exist_ok=True)
    failed = []
    with (
        tempfile.TemporaryDirectory(prefix="emberd-clients-") as name,
        running_registry() as registry,  # an empty one: no check pulls anything from elsewhere
    ):
        folder = Path(name)
        models = models_folder(folder / "models")
        tokenizer_folder.write(MODELS / FILES["qwen"], cache / "tokenizer")
        settings = {
            "ctx": 16384,
            "keep_alive": "-1",
            "log_format": "json",
            "device": options.device,
            "registries": registry.url,
        }
        env = {"HF_ENDPOINT": registry.url}
        with running_daemon(models, folder / "daemon", env=env, **settings) as daemon:
            for client in chosen:
                result = check(client, daemon, cache, folder)
                print(f"{'passes' if result['passed'] else 'FAILS'}: {client.name}", flush=True)
                if not options.no_report:
                    report.keep(client.name, result)
                    report.write_page()
                if not result["passed"]:
                    failed.append(client.name)
            daemon.signal()
            daemon.wait(LEAVE_SECONDS)
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed {' '.join(failed)}".rstrip())
    return int(bool(failed))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("test-clients", description=__doc__.splitlines()[0])
    known = [client.name for client in CLIENTS]
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these clients")
    parser.add_argument("--quick", action="store_true", help="only the official SDKs")
    parser.add_argument("--list", action="store_true", help="show the clients, run nothing")
    parser.add_argument("--no-report", action="store_true", help="leave docs/clients.md as it is")
    parser.add_argument("--device", default="cpu", help="what the daemon computes on")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/emberd-clients"))
    options = parser.parse_args()
    if unknown := set(options.names) - set(known):
        parser.error(f"no such client: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


def models_folder(folder: Path) -> Path:
    folder.mkdir()
    for name, file in FILES.items():
        if not (MODELS / file).is_file():
            raise SystemExit(f"error: {file} is not in {MODELS}; scripts/fetch-models brings it")
        (folder / f"{name}.gguf").symlink_to(MODELS / file)
    agent_model.write(folder / "agent.gguf")
    writer_model.write(folder / "writer.gguf")
    return folder


def check(client: Client, daemon: Daemon, cache: Path, folder: Path) -> report.Result:
    """Install and run one client's check; what it said and asked for."""
    started, log_at = time.monotonic(), len(daemon.log)
    told, version = "", ""
    try:
        environment = environments.prepare(client, cache)
        version = environments.version(client, environment)
        print(f"--- {client.name} {version}", flush=True)
        told = run(client, daemon, environment, folder)
    except environments.InstallError as error:
        told = f"FAIL install: {error}"
        print(told)
    (cache / f"{client.name}.log").write_text(told)
    if own := VERSION.search(told):
        version = own[1]
    steps = [{"name": n, "ok": v == "ok", "told": t} for v, n, t in STEP.findall(told)]
    calls = calls_of(daemon.log[log_at:])
    if errors := [call for call in calls if call[-3] == "5" and not call.endswith("501")]:
        steps.append({"name": "no-5xx", "ok": False, "told": ", ".join(errors)})
    return {
        "version": version,
        "date": datetime.date.today().isoformat(),
        "seconds": round(time.monotonic() - started),
        "passed": bool(steps) and all(step["ok"] for step in steps),
        "steps": steps,
        "calls": calls,
    }


def run(client: Client, daemon: Daemon, environment: Path, folder: Path) -> str:
    """The check's output. Its home is an empty folder, and nothing of the user's settings reaches it."""
    home = folder / client.name
    home.mkdir()
    tools = [environment / "venv" / "bin", environment / "node_modules" / ".bin"]
    env = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    env |= {
        "PATH": os.pathsep.join([*map(str, tools), os.environ["PATH"]]),
        "HOME": str(home),
        "BASE_URL": daemon.url,
        "MODEL": "qwen",
        "EMBED_MODEL": "minilm",
        "AGENT_MODEL": "agent",
        "WRITER_MODEL": "writer",
        "TOKENIZER": str(environment.parent / "tokenizer"),
        "CLIENT_CACHE": str(environment),
        "EMBERD_CASES": str(CASES.resolve()),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = environments.command(client, environment, CHECKS / client.check)
    with (home / "output").open("w+") as out:
        process = subprocess.Popen(
            command,
            cwd=home,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(client.seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_all(process, home)
        out.seek(0)
        told = out.read()
    if code is None:
        told += f"\nFAIL time: not done after {client.seconds} s\n"
    elif code and "FAIL" not in told:
        told += f"\nFAIL exit: code {code}: {' '.join(told.split()[-30:])}\n"
    for verdict, name, text in STEP.findall(told):
        print(f"{verdict} {name}: {text}", flush=True)
    return told


def end_all(process: subprocess.Popen[bytes], home: Path) -> None:
    """The check and what it started, also what left its group: everything with that home."""
    for started in psutil.process_iter():
        try:
            if started.environ().get("HOME") == str(home):
                started.kill()
        except psutil.Error:
            continue
    process.kill()
    process.wait()


def calls_of(log: str) -> dict[str, int]:
    """Requests of the log by method, path and status, in the order of their first coming."""
    counts: Counter[str] = Counter()
    for line in log.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("message") == "request":
            counts[f"{event['method']} {event['path']} {event['status']}"] += 1
    return dict(counts)


if __name__ == "__main__":
    raise SystemExit(main())
