"""What a container sees of its GPU, as one line of JSON. Then it keeps its share until it is ended."""
import json
import os
import sys
import time

GIB = 1 << 30


def fits(torch, gib):
    """Whether so much memory can be had; it is given back."""
    try:
        torch.empty(gib * GIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def cuda():
    """By CUDA, which starts with the first question."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    return {
        "gpus": torch.cuda.device_count(),
        "name": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "freeMib": free >> 20,
        "totalMib": total >> 20,
        "eightGib": fits(torch, 8),
        "twelveGib": fits(torch, 12),
    }


def main():
    seen = {
        "environment": {key: value for key, value in os.environ.items() if "MPS" in key or "KERF" in key},
        "devices": sorted(os.listdir("/dev")),
        "cuda": None,
    }
    if "--without-cuda" not in sys.argv:
        seen["cuda"] = cuda()
    print("SEES " + json.dumps(seen), flush=True)
    time.sleep(600)


main()
