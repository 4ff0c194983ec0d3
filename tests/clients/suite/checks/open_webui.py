"""Open WebUI in headless Chromium, with an OpenAI connection and with an Ollama one.

Drives the handed script, which installs what it needs, prints a line a step and leaves screenshots. The model
is the scripted writer.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from check import BASE, EMBED_MODEL

STARTS = 4
script = Path(os.environ["EMBERD_CASES"]) / "openwebui_test.py"
if not script.is_file():
    print(f"FAIL script: {script.name} is not among the handed cases (EMBERD_CASES)")
    raise SystemExit(1)
print("version", re.search(r"open-webui==([\d.]+)", script.read_text())[1], flush=True)
command = [sys.executable, str(script), "--base-url", BASE, "--model", os.environ["WRITER_MODEL"]]
command += ["--embed-model", EMBED_MODEL, "--timeout", "400", "--budget", "2000"]
command += ["--work", str(Path(os.environ["CLIENT_CACHE"]) / "work")]
failed = False
for api in ("openai", "ollama"):
    for _ in range(STARTS):
        done = subprocess.run([*command, "--api", api], stdout=subprocess.PIPE, text=True)
        if f"FAIL {api}.start" not in done.stdout:
            break  # else a busy machine was too slow to start Open WebUI within two minutes
    print(done.stdout, flush=True)
    failed = failed or done.returncode != 0
raise SystemExit(failed)
