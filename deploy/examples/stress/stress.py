"""Trains a small network on random pictures for ever: work for the multiprocessors, and some memory."""

import time

import torch
from torch import nn

BATCH, CLASSES, SIDE = 64, 10, 128


def network():
    """Two convolutions and two layers behind them."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(8),
        nn.Flatten(), nn.Linear(128 * 8 * 8, 1024), nn.ReLU(), nn.Linear(1024, CLASSES),
    )


def main():
    """One line a second: the loss, and what this process sees of the GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, loss_of = network().to(device), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    pictures = torch.randn(BATCH, 3, SIDE, SIDE, device=device)
    if device.type == "cuda":
        print(torch.cuda.get_device_properties(device), flush=True)
    told = 0.0
    while True:
        optimizer.zero_grad()
        loss = loss_of(model(pictures), torch.randint(0, CLASSES, (BATCH,), device=device))
        loss.backward()
        optimizer.step()
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            print(f"loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
