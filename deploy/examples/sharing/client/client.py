#!/usr/bin/env python3
"""Keeps one workload busy on a GPU, one turn after another, and tells how long each turn took.

Standard output has one JSON object a line: first what it runs on, then once a second the turns that ended and what the GPU
and its machine say of themselves, at last a summary. Prometheus finds them at /metrics as `inference_time_seconds`. `python3 client.py --help` says what can be set; each
flag can be given as an environment variable as well (`--warm-up` as WARM_UP), so that a Deployment needs no command line.
"""

import argparse
import json
import os
import signal
import sys
import time

from metrics import Turns, serve
from sensors import Sensors
from workloads import WORKLOADS


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = lambda flag, default, **rest: parser.add_argument(
        flag, default=os.environ.get(flag.strip("-").replace("-", "_").upper(), default), **rest
    )
    add("--workload", "yolos", choices=sorted(WORKLOADS), help="what is kept busy")
    add("--seconds", "0", type=float, help="how long after the warm-up; 0: until SIGTERM")
    add("--warm-up", "10", type=float, help="seconds whose turns are told as warm-up")
    add("--port", "8000", type=int, help="where Prometheus finds /metrics; 0: nowhere")
    parser.add_argument("command", nargs="*", help="for --workload command: what one turn runs")
    return parser.parse_args()


def tell(**what):
    print(json.dumps(what), flush=True)


class Stop:
    """Whether it is time to end: by the clock or by a signal."""

    def __init__(self):
        self.at = float("inf")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.now)

    def now(self, *_):
        self.at = 0.0

    def __bool__(self):
        return time.time() >= self.at


def main():
    args = arguments()
    stop = Stop()
    workload = WORKLOADS[args.workload](args.command)
    turns = Turns()
    if args.port:
        serve(args.port, turns)
    began = time.time()
    warm = began + args.warm_up
    about = workload.describe()
    sensors = Sensors(about.get("uuid"))
    if args.seconds:
        stop.at = min(stop.at, warm + args.seconds)
    tell(kind="start", at=began, workload=args.workload, driver=sensors.driver, **about)
    told, since = began, []
    # Of what ran warm the count and the sum alone: a client may run for weeks.
    measured, busy = 0, 0.0
    while not stop:
        begun = time.perf_counter()
        workload.turn()
        took = time.perf_counter() - begun
        now = time.time()
        turns.took(took)
        since.append(took)
        if now >= warm:
            measured += 1
            busy += took
        if now - told >= 1:
            seconds = [round(took, 6) for took in since]
            tell(kind="turns", begin=told, end=now, warm=told >= warm, seconds=seconds, sensors=sensors.read())
            told, since = now, []
    tell(kind="end", at=time.time(), turns=measured, mean=busy / max(measured, 1))


if __name__ == "__main__":
    sys.exit(main())
