"""What a container sees of its GPU, as one line of JSON; then it works on what it keeps until it is ended, and counts its turns.
A turn counts if the GPU has what was written the turn before, and still has what was written at first.

CUDA's driver is asked directly: it is there in a second, where a framework takes ten.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time

MIB = 1 << 20
MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
MARK = 0xC5  # What is written at first, and never again.
MARK_MIB = 8


class Lost(Exception):
    """What CUDA refused, by its name and CUDA's number for the reason."""


class Gpu:
    """One of the GPUs that CUDA shows."""

    def __init__(self, number):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self.device), number)
        self.call("cuCtxCreate_v2", ctypes.byref(self.context), 0, self.device)

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code:
            raise Lost(f"{name}: {code}")

    def number(self, name, *arguments):
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def describe(self):
        self.call("cuCtxSetCurrent", self.context)
        free, total, name = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.create_string_buffer(64)
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        self.call("cuDeviceGetName", name, len(name), self.device)
        return {
            "name": name.value.decode(),
            "multiprocessors": self.number("cuDeviceGetAttribute", MULTIPROCESSORS, self.device),
            "freeMib": free.value // MIB,
            "totalMib": total.value // MIB,
        }

    def take(self, mib):
        """An address of so much memory, or nothing where it is refused."""
        self.call("cuCtxSetCurrent", self.context)
        address = ctypes.c_uint64()
        code = self.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib * MIB))
        if code not in (0, OUT_OF_MEMORY):
            raise Lost(f"cuMemAlloc_v2: {code}")
        return address if code == 0 else None

    def gets(self, mib):
        """Whether so much memory can be had and written; it is given back."""
        address = self.take(mib)
        if address is None:
            return False
        self.write(address, mib)
        self.call("cuMemFree_v2", address)
        return True

    def keep(self, mib):
        self.kept, self.mark = self.take(mib), self.take(MARK_MIB)
        if not self.kept or not self.mark:
            raise Lost("no memory to work on")
        self.write(self.mark, MARK_MIB, MARK)
        self.write(self.kept, mib, 0)

    def copy_to(self, other, mib):
        """What is kept here over what is kept on the other GPU; its last byte tells that it came."""
        self.call("cuMemcpyPeer", other.kept, other.context, self.kept, self.context, ctypes.c_size_t(mib * MIB))
        here, there = self.last_byte(mib), other.last_byte(mib)
        if here != there:
            raise Lost(f"cuMemcpyPeer copied {there} for {here}")

    def last_byte(self, mib):
        self.call("cuCtxSetCurrent", self.context)
        byte = ctypes.c_ubyte()
        last = ctypes.c_uint64(self.kept.value + mib * MIB - 1)
        self.call("cuMemcpyDtoH_v2", ctypes.byref(byte), last, ctypes.c_size_t(1))
        return byte.value

    def write(self, address, mib, byte=1):
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuMemsetD8_v2", address, ctypes.c_ubyte(byte), ctypes.c_size_t(mib * MIB))
        self.call("cuCtxSynchronize")

    def check(self, address, value):
        """That the memory has this value still, of which a part is read back."""
        self.call("cuCtxSetCurrent", self.context)
        size = MARK_MIB * MIB
        read = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", read, address, ctypes.c_size_t(size))
        if read.raw.count(value) != size:
            raise Lost(f"wrong result: {read.raw.count(value)} of {size} bytes are {value}")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", help="so that it is found among the machine's processes")
    parser.add_argument("--try", dest="tries", type=int, nargs=2, action="append", default=[], metavar="MIB")
    parser.add_argument("--gpus", type=int, default=1, help="how many it uses")
    parser.add_argument("--keep", type=int, default=64, metavar="MIB")
    parser.add_argument("--outside", action="store_true", help="leave the server of the share")
    parser.add_argument("--without-cuda", action="store_true")
    return parser.parse_args()


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if args.outside:
        for key in [key for key in os.environ if key.startswith("CUDA_MPS_")]:
            # Of the process itself: CUDA reads what a program was started with.
            os.unsetenv(key)
    gpus = [] if args.without_cuda else [Gpu(number) for number in range(args.gpus)]
    seen = {
        "environment": {key: value for key, value in os.environ.items() if "MPS" in key or "KERF" in key},
        "devices": sorted(os.listdir("/dev")),
        "user": os.getuid(),
        "gpus": gpus[0].number("cuDeviceGetCount") if gpus else 0,
        "cuda": [{**gpu.describe(), "tries": [[gpu.gets(below), gpu.gets(above)] for below, above in args.tries]} for gpu in gpus],
    }
    for gpu in gpus:
        gpu.keep(args.keep)
    print("SEES " + json.dumps(seen), flush=True)
    turn = 0
    while True:
        for gpu in gpus:
            gpu.check(gpu.mark, MARK)
            # Of the first GPU, from which the others have it.
            gpu.check(gpu.kept, turn % 256)
        turn += 1
        for number, gpu in enumerate(gpus):
            gpu.write(gpu.kept, args.keep, (turn + number) % 256)
        for one, other in zip(gpus, gpus[1:]):
            one.copy_to(other, args.keep)
        print(f"TURN {turn}", flush=True)
        time.sleep(0.05)


try:
    main()
except Lost as lost:
    print(f"LOST {lost}", flush=True)
    sys.exit(3)
