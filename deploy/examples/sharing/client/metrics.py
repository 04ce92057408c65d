"""Turns as Prometheus reads them: a histogram, in the text format, from the standard library alone."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = "inference_time_seconds"
# From a small model on a large GPU to a crowd on a small one.
ENDS = [0.001 * step * 10**power for power in range(4) for step in (1, 2, 3, 5, 7)] + [10.0]


class Turns:
    """How long turns took."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = [0] * (len(ENDS) + 1)
        self.sum = 0.0

    def took(self, seconds):
        bucket = next((index for index, end in enumerate(ENDS) if seconds <= end), len(ENDS))
        with self.lock:
            self.counts[bucket] += 1
            self.sum += seconds

    def text(self):
        with self.lock:
            counts, total = list(self.counts), self.sum
        lines = [f"# HELP {NAME} Time of one inference", f"# TYPE {NAME} histogram"]
        below = 0
        for end, count in zip([f"{end:.3f}" for end in ENDS] + ["+Inf"], counts):
            below += count
            lines.append(f'{NAME}_bucket{{le="{end}"}} {below}')
        return "\n".join([*lines, f"{NAME}_sum {total}", f"{NAME}_count {below}", ""])


def serve(port, turns):
    """Answers /metrics on `port` until the process ends."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            found = self.path == "/metrics"
            body = (turns.text() if found else "not here; try /metrics\n").encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    threading.Thread(target=ThreadingHTTPServer(("", port), Answer).serve_forever, daemon=True).start()
