"""What can be kept busy. A workload has `turn()`, which ends when the GPU has done it, and `describe()`.

Weights are random: how long a turn takes does not depend on them, and nothing need be fetched.
"""

import os
import subprocess


class Gpu:
    """A workload of torch on the one GPU that the container has."""

    def __init__(self):
        # torch reads the user's name at its import, and the user of a container may have none.
        os.environ.setdefault("USER", "client")
        import torch

        self.torch = torch
        torch.manual_seed(0)
        if not torch.cuda.is_available():
            raise SystemExit("no GPU: give the container one, by kerf.dev/gpu-memory for example")

    def describe(self):
        cuda = self.torch.cuda
        gpu = cuda.get_device_properties(0)
        free, total = cuda.mem_get_info()
        limits = {name: value for name, value in os.environ.items() if name.startswith("CUDA_MPS_")}
        return {
            "gpu": gpu.name,
            "uuid": str(gpu.uuid),
            "multiprocessors": gpu.multi_processor_count,
            "memory_free": free,
            "memory_total": total,
            "torch": self.torch.__version__,
            "environment": limits,
        }

    def done(self):
        self.torch.cuda.synchronize()


class Yolos(Gpu):
    """Object detection by a model of YOLOS-small's size on one picture of 800 by 1066, as the reference comparison does."""

    def __init__(self, _command):
        super().__init__()
        from transformers import YolosConfig, YolosForObjectDetection

        small = YolosConfig(
            hidden_size=384,
            num_hidden_layers=12,
            num_attention_heads=6,
            intermediate_size=1536,
            image_size=[512, 864],
            num_detection_tokens=100,
            use_mid_position_embeddings=True,
        )
        self.model = YolosForObjectDetection(small).eval().cuda()
        self.picture = self.torch.rand(1, 3, 800, 1066, device="cuda")

    def turn(self):
        with self.torch.inference_mode():
            self.model(pixel_values=self.picture)
        self.done()


class Llm(Gpu):
    """A language model of 1.1 billion weights that writes 32 tokens to one reader: bound by memory, not by arithmetic."""

    TOKENS = 32

    def __init__(self, _command):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=2048,
            intermediate_size=5632,
            num_hidden_layers=22,
            num_attention_heads=32,
            num_key_value_heads=4,
            max_position_embeddings=2048,
        )
        self.model = LlamaForCausalLM(config).to(device="cuda", dtype=self.torch.bfloat16).eval()
        self.prompt = self.torch.randint(0, config.vocab_size, (1, 128), device="cuda")

    def turn(self):
        with self.torch.inference_mode():
            length = self.TOKENS
            self.model.generate(self.prompt, max_new_tokens=length, min_new_tokens=length, do_sample=False)
        self.done()


class Burn(Gpu):
    """Matrix products without a pause: the most power that a GPU takes."""

    def __init__(self, _command):
        super().__init__()
        self.a, self.b = (self.torch.randn(8192, 8192, device="cuda", dtype=self.torch.bfloat16) for _ in range(2))

    def turn(self):
        for _ in range(8):
            self.a @ self.b
        self.done()


class Command:
    """Any program: one turn is one run of it."""

    def __init__(self, command):
        if not command:
            raise SystemExit("--workload command needs the command: client.py --workload command -- PROGRAM ARGUMENT...")
        self.command = command

    def describe(self):
        return {"command": self.command}

    def turn(self):
        subprocess.run(self.command, check=True, stdout=subprocess.DEVNULL)


WORKLOADS = {"burn": Burn, "command": Command, "llm": Llm, "yolos": Yolos}
