"""Trains LeNet-5 elastically under torchrun, as its documentation shows.

argv = folder, seconds between two checkpoints. Each rank writes its process id to
FOLDER/pids-RESTART-RANK. Rank 0 adds a line for each step to FOLDER/steps.jsonl.
"""
import ctypes
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
folder, interval = sys.argv[1], float(sys.argv[2])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with open(os.path.join(folder, f"pids-{restart}-{rank}"), "w") as file:
    file.write(str(os.getpid()))
torch.set_num_threads(1)
torch.manual_seed(7)
dist.init_process_group("gloo")
layers = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
layers += [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
checkpoint = os.path.join(folder, "checkpoint.pt")
step = 0
if os.path.exists(checkpoint):
    held = torch.load(checkpoint)
    step = held["step"]
    model.load_state_dict(held["model"])
    optimiser.load_state_dict(held["optimiser"])
samples = 64 // world
images, labels = torch.randn(samples, 1, 28, 28), torch.randint(0, 10, (samples,))
saved = time.monotonic()
lines = open(os.path.join(folder, "steps.jsonl"), "a", buffering=1)
while True:
    start = time.monotonic()
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimiser.step()
    step += 1
    if rank == 0:
        line = {"step": step, "time": time.time(), "seconds": time.monotonic() - start, "restart": restart}
        lines.write(json.dumps(line) + "\n")
        if time.monotonic() - saved >= interval:
            held = {"step": step, "model": model.state_dict(), "optimiser": optimiser.state_dict()}
            torch.save(held, checkpoint + ".tmp")
            os.rename(checkpoint + ".tmp", checkpoint)
            saved = time.monotonic()
