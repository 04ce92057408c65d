"""What a tenant tries that means ill, with CUDA. Each context is in a program of its own, for CUDA reads what a program was
started with."""

import ctypes
import json
import os
import subprocess
import sys
import time

MIB = 1 << 20
SECONDS = 11  # The longest that a program may take.
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tenant.py")


class Refused(Exception):
    """What CUDA refused, and its number for the reason."""


class Gpu:
    """A context on the first GPU that CUDA shows."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        count = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(count), 16, device)
        self.multiprocessors = count.value

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code:
            raise Refused(f"{name}: {code}")

    def takes(self, mib):
        """As much of so many MiB as can be had, in pieces; what was had, in MiB, and their addresses."""
        had = []
        for _ in range(mib // 256):
            address = ctypes.c_uint64()
            if self.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(256 * MIB)):
                break
            had.append(address)
        return had


def in_cuda(notes, facts, then, **environment):
    """A program of its own with this environment: CUDA reads what a program was started with."""
    if facts["withoutCuda"]:
        return notes.say("no CUDA here")
    own = {**os.environ, **environment}
    own = {key: value for key, value in own.items() if value is not None}
    command = [sys.executable, PROGRAM, "--then", then, "--facts", json.dumps(facts)]
    told = subprocess.run(command, env=own, capture_output=True, text=True, timeout=SECONDS)
    notes.say((told.stdout.strip() or told.stderr.strip()[-160:]) or f"exit code {told.returncode}")


def take_too_much(facts):
    gpu = Gpu()
    share = facts["shareMib"]
    had = len(gpu.takes(share + 2048)) * 256
    over = "MORE THAN ITS SHARE, " if had > share else ""
    print(f"{over}{had} MiB of a share of {share} MiB; {gpu.multiprocessors} multiprocessors")


def search_memory(facts):
    """Memory that it did not write, for what the neighbour wrote."""
    gpu, pattern, found = Gpu(), bytes([facts["pattern"]]) * 4096, 0
    buffer = ctypes.create_string_buffer(256 * MIB)
    for address in gpu.takes(2048):
        gpu.call("cuMemcpyDtoH_v2", buffer, address, ctypes.c_size_t(256 * MIB))
        found += pattern in buffer.raw
    print("FOUND WHAT THE NEIGHBOUR WROTE" if found else "2048 MiB read, nothing of the neighbour's in them")


def take_little(facts):
    """One of many clients: a context, and a little memory, for a moment."""
    gpu = Gpu()
    address = ctypes.c_uint64()
    gpu.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(MIB))
    time.sleep(0.5)
    print("client")


def leave(facts):
    gpu = Gpu()
    print(f"beside the server on {gpu.multiprocessors} multiprocessors with {len(gpu.takes(512)) * 256} MiB")


def allocate_past_limit(facts, notes):
    in_cuda(notes, facts, "take_too_much")


def raise_limits_by_environment(facts, notes):
    in_cuda(notes, facts, "take_too_much", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=70G")
    in_cuda(notes, facts, "take_too_much", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=None, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=None)


def search_for_others_data(facts, notes):
    in_cuda(notes, facts, "search_memory")


def many_clients(facts, notes):
    if facts["withoutCuda"]:
        return notes.say("no CUDA here")
    command = [sys.executable, PROGRAM, "--then", "take_little", "--facts", json.dumps(facts)]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(16)]
    told = [client.communicate(timeout=SECONDS)[0].strip() for client in clients]
    notes.say(f"{told.count('client')} of 16 clients at once: {', '.join(sorted(set(told)))}")


def leave_the_daemon(facts, notes):
    in_cuda(notes, facts, "leave", CUDA_MPS_PIPE_DIRECTORY="/nowhere")
