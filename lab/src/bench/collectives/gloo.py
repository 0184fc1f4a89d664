"""Times all-reduces of PyTorch's gloo. argv = sizes in bytes, mebibytes to move for each size.

torchrun starts one process for each rank."""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
for size in map(int, sys.argv[1].split(",")):
    data = torch.empty(size // 4)
    seconds = []
    for repetition in range(3 + min(500, max(5, (int(sys.argv[2]) << 20) // size))):
        data.fill_(0.5)
        start = time.perf_counter()
        dist.all_reduce(data)
        if repetition >= 3:
            seconds.append(time.perf_counter() - start)
    if os.environ["RANK"] == "0":
        print(json.dumps({"bytes": size, "seconds": statistics.median(seconds)}), flush=True)
dist.destroy_process_group()
