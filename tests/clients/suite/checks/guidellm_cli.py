"""GuideLLM: six requests, two at a time."""

import json
import subprocess
from pathlib import Path

from check import BASE, MODEL, run, step


@step
def concurrent():
    prompts = Path.cwd() / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"Count to {n}."}) + "\n" for n in range(2, 8))
    )
    command = ["guidellm", "run", "--backend"]
    command += [f"kind=openai_http,target={BASE},model={MODEL},max_tokens=8"]
    command += [
        "--profile",
        "kind=concurrent,streams=2",
        "--constraint",
        "kind=max_requests,count=6",
    ]
    command += ["--data", f"kind=json_file,path={prompts}", "--disable-console-interactive"]
    command += ["--output", "kind=json,path=out.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.stdout + done.stderr)[-280:]
    (benchmark,) = json.loads(Path("out.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] == 6 and not totals["errored"], totals
    return f"{totals['successful']} requests, none failed"


run()
