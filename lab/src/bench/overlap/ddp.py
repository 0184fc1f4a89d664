"""Times training steps of PyTorch. argv = samples for each rank, steps.

RANK, WORLD_SIZE and MASTER_ADDR are set. Several ranks train with DDP over gloo; a single rank does
not communicate.
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(7)
samples, steps = int(sys.argv[1]), int(sys.argv[2])
is_alone = os.environ["WORLD_SIZE"] == "1"
widths = [784, 4096, 4096, 1200]
layers = [layer for pair in zip(widths, widths[1:]) for layer in (nn.Linear(*pair), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(1200, 10))
if not is_alone:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimiser = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
images, labels = torch.randn(samples, 784), torch.randint(0, 10, (samples,))
seconds = []
for step in range(2 + steps):
    start = time.perf_counter()
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimiser.step()
    if step >= 2:
        seconds.append(time.perf_counter() - start)
if os.environ["RANK"] == "0":
    print(json.dumps({"seconds": statistics.median(seconds)}), flush=True)
if not is_alone:
    dist.destroy_process_group()
