"""Compiles a function for its GPU, holds it against the same function uncompiled, and tells it as one line of JSON.

Triton asks `ldconfig -p` for the driver's library and builds its launcher with a C compiler.
"""

import json
import platform
import subprocess
import sys
import time

import torch


def function(x, y):
    return torch.nn.functional.gelu(x @ y) + x.sum(dim=0)


def main():
    found = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    # Exact products, so that the two can be compared closely.
    torch.set_float32_matmul_precision("highest")
    x, y = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
    compiled = torch.compile(function)
    seen = {
        "distribution": platform.freedesktop_os_release()["PRETTY_NAME"],
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "libcuda": [line.strip() for line in found.splitlines() if "libcuda.so.1" in line],
        "difference": (compiled(x, y) - function(x, y)).abs().max().item(),
        "freeMib": torch.cuda.mem_get_info()[0] >> 20,
    }
    print("COMPILED " + json.dumps(seen), flush=True)
    turn = 0
    while True:
        compiled(x, y)
        torch.cuda.synchronize()
        turn += 1
        print(f"TURN {turn}", flush=True)
        time.sleep(0.1)


main()
