# Training steps of a model in PyTorch on one thread: seconds of each, then the most memory held
# beyond what the import took.
#   python nn.py MODEL BATCH WARMUP STEPS [bf16]
# bf16 is model.bfloat16() with channels last, the fastest of three ways on a CPU. BF16=whole measures it
# without channels last, BF16=autocast measures torch.autocast with weights in f32.
import contextlib
import json, os, resource, sys, time

import torch
import torch.nn as nn
import torch.nn.functional as F


def most_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


imported = most_memory()
torch.set_num_threads(1)
torch.manual_seed(0)
model, batch, warmup, steps = sys.argv[1], *map(int, sys.argv[2:5])


def convolution(inputs, outputs, kernel, stride=1):
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


class Padded(nn.Module):
    """The shortcut without weights: every second pixel, and channels of zeros."""

    def __init__(self, more):
        super().__init__()
        self.more = more

    def forward(self, x):
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.more))


class Residual(nn.Module):
    def __init__(self, path, shortcut):
        super().__init__()
        self.path, self.shortcut = nn.Sequential(*path), shortcut

    def forward(self, x):
        return F.relu(self.path(x) + self.shortcut(x), inplace=True)


def resnet20():
    layers, inputs = [*convolution(3, 16, 3), nn.ReLU(inplace=True)], 16
    for width in (16, 32, 64):
        for block in range(3):
            stride = 2 if width > 16 and block == 0 else 1
            path = [*convolution(inputs, width, 3, stride), nn.ReLU(inplace=True), *convolution(width, width, 3)]
            layers.append(Residual(path, nn.Identity() if stride == 1 else Padded(width - inputs)))
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def resnet50():
    layers, inputs = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            path = [*convolution(inputs, width, 1), nn.ReLU(inplace=True)]
            path += [*convolution(width, width, 3, stride), nn.ReLU(inplace=True), *convolution(width, 4 * width, 1)]
            same = stride == 1 and inputs == 4 * width
            layers.append(Residual(path, nn.Identity() if same else nn.Sequential(*convolution(inputs, 4 * width, 1, stride))))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def lenet5():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )


shape, classes = {"lenet5": ((1, 28, 28), 10), "resnet20": ((3, 32, 32), 10), "resnet50": ((3, 224, 224), 1000)}[model]
network = {"lenet5": lenet5, "resnet20": resnet20, "resnet50": resnet50}[model]()
update = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
x, y = torch.randn(batch, *shape), torch.randint(0, classes, (batch,))
context = contextlib.nullcontext
if sys.argv[5:] == ["bf16"] and os.environ.get("BF16") == "autocast":
    context = lambda: torch.autocast("cpu", torch.bfloat16)
elif sys.argv[5:] == ["bf16"]:
    network, x = network.bfloat16(), x.bfloat16()
    if os.environ.get("BF16") != "whole":
        network, x = network.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    update = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
for step in range(warmup + steps):
    start = time.perf_counter()
    update.zero_grad()
    with context():
        loss = F.cross_entropy(network(x).float(), y)
    loss.backward()
    update.step()
    if step >= warmup:
        print(json.dumps({"step_seconds": time.perf_counter() - start}))
print(json.dumps({"most_memory_mib": most_memory() - imported}))
