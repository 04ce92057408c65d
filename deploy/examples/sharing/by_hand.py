#!/usr/bin/env python3
"""The comparison without Kubernetes: the same clients as processes of this machine, for what kerf's way is measured against.

Needs a GPU that nobody else uses, and nvidia-cuda-mps-control for the rows with MPS. Nothing of the GPU is changed: limits are
set on the clients, and the daemon is one of our own with folders of its own.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

CLIENT = pathlib.Path(__file__).parent / "client" / "client.py"
# What a client is given, by technology.
LIMITS = {
    "time-slicing": {},
    "mps": {},
    "mps-limited": {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "14", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M"},
}


@contextlib.contextmanager
def daemon(wanted):
    """The environment of clients of an MPS daemon that runs as long as this does; nothing where none is wanted."""
    if not wanted:
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        pipes = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in pipes.values():
            os.mkdir(path)
        environment = {**os.environ, **pipes}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        control = subprocess.Popen(["nvidia-cuda-mps-control", "-f"], env=environment, **quiet)
        try:
            yield pipes
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=environment, check=False)
            control.wait(timeout=30)


def run(args, technology, copies):
    """The lines of each of so many clients that run at the same time."""
    with daemon(technology != "time-slicing") as pipes:
        environment = {**os.environ, **pipes, **LIMITS[technology]}
        command = [sys.executable, str(CLIENT), "--workload", args.workload, "--port", "0"]
        times = ["--warm-up", str(args.warm_up), "--seconds", str(args.seconds)]
        clients = [
            subprocess.Popen(command + times, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(copies)
        ]
        return [[json.loads(line) for line in client.communicate()[0].splitlines()] for client in clients]


def turns(clients):
    """The turns while all clients were warm and none had ended."""
    warm = max(next(line["begin"] for line in lines if line.get("warm")) for lines in clients)
    end = min(lines[-1]["at"] for lines in clients)
    told = (line for lines in clients for line in lines if line["kind"] == "turns")
    whole = [line for line in told if line["begin"] >= warm and line["end"] <= end]
    return [seconds for line in whole for seconds in line["seconds"]], whole


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="yolos")
    parser.add_argument("--copies", default="1,3,5,7")
    parser.add_argument("--technologies", default=",".join(LIMITS))
    parser.add_argument("--warm-up", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    print("technology,copies,mean,p50,p95,p99,turns,power_w")
    for technology in args.technologies.split(","):
        for copies in map(int, args.copies.split(",")):
            seconds, whole = turns(run(args, technology, copies))
            seconds.sort()
            at = lambda part: seconds[min(int(len(seconds) * part), len(seconds) - 1)]
            powers = [line["sensors"]["power_w"] for line in whole if "power_w" in line["sensors"]]
            power = sum(powers) / max(len(powers), 1)
            figures = [sum(seconds) / len(seconds), at(0.5), at(0.95), at(0.99)]
            print(technology, copies, *(f"{f:.5f}" for f in figures), len(seconds), f"{power:.0f}", sep=",", flush=True)


if __name__ == "__main__":
    main()
