"""llama-benchy: one short measurement, one and two requests at once."""

import http.server
import json
import os
import subprocess
import threading
from pathlib import Path

from check import MODEL, V1, run, step


class Book(http.server.BaseHTTPRequestHandler):
    """The text that prompts are cut from; by default it is fetched from elsewhere."""

    def do_GET(self):
        text = b" ".join(b"The river ran past house number %d and on." % n for n in range(2000))
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words):
        pass


@step
def measurement():
    book = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Book)
    threading.Thread(target=book.serve_forever, daemon=True).start()
    command = ["llama-benchy", "--base-url", V1, "--model", MODEL]
    command += ["--tokenizer", os.environ["TOKENIZER"], "--skip-coherence", "--no-warmup"]
    command += ["--pp", "64", "--tg", "8", "--runs", "1", "--concurrency", "1", "2"]
    command += ["--book-url", f"http://127.0.0.1:{book.server_port}/book.txt"]
    command += ["--format", "json", "--save-result", "out.json", "--exit-on-first-fail"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 0, (done.stdout + done.stderr)[-280:]
    results = json.loads(Path("out.json").read_text())["benchmarks"]
    assert [one["concurrency"] for one in results] == [1, 2], results
    return f"{len(results)} measurements"


run()
