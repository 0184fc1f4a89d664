# Written by `lockstep export`: own layers in plain PyTorch.
#
#   from safetensors.torch import load_file
#   from FILE import CLASSES, Model, prepare        # FILE: the name of this file without .py
#
#   model = Model()
#   model.load_state_dict(load_file("model.safetensors"))
#   model.eval()
#   probabilities = model(prepare(pixels)).softmax(1)
#
# `pixels` are bytes: samples x 3 x 8 x 10. The model gives logits.

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = []
MEAN = [0.4,0.45000002,0.5]
STD = [0.25,0.25,0.25]


def prepare(pixels):
    """Normalises bytes of 0 to 255 as the training did."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self._put("stem", nn.Conv2d(3, 8, 3, stride=2, padding=1, dilation=1, groups=1, bias=False))
        self._put("layers.1", nn.BatchNorm2d(8, eps=0.00001, momentum=0.1))
        self._put("layers.3.layers.0", nn.Conv2d(8, 8, 3, stride=1, padding=1, dilation=1, groups=1, bias=True))
        self._put("layers.3.layers.1", nn.GroupNorm(2, 8, eps=0.00001))
        self._put("layers.3.shortcut.0", nn.Conv2d(8, 8, 1, stride=1, padding=0, dilation=1, groups=2, bias=True))
        self._put("layers.4", nn.Conv2d(8, 8, 3, stride=1, padding=1, dilation=1, groups=8, bias=True))
        self._put("layers.5", nn.LayerNorm(8, eps=0.00001))
        self._put("layers.7.layers.1.0", nn.Conv2d(8, 4, 3, stride=1, padding=1, dilation=1, groups=1, bias=True))
        self._put("layers.8", nn.ConvTranspose2d(12, 6, 2, stride=2, padding=0, dilation=1, bias=True))
        self._put("layers.9", nn.Conv2d(6, 6, 3, stride=1, padding=2, dilation=2, groups=1, bias=True))
        self._put("layers.14", nn.Linear(120, 12, bias=True))
        self._put("layers.15", nn.BatchNorm1d(12, eps=0.00001, momentum=0.1))
        self._put("layers.16", nn.LayerNorm(12, eps=0.00001))
        self._put("head", nn.Linear(12, 5, bias=False))

    def _put(self, name, module):
        """Gives a module its name. Each dot leads into another module."""
        place = self
        *outer, last = name.split(".")
        for part in outer:
            if part not in place._modules:
                place.add_module(part, nn.Module())
            place = place._modules[part]
        place.add_module(last, module)

    def forward(self, x):
        of = self.get_submodule
        x1 = of("stem")(x)
        x2 = of("layers.1")(x1)
        x3 = F.relu(x2)
        x4 = of("layers.3.layers.0")(x3)
        x5 = of("layers.3.layers.1")(x4)
        x6 = F.silu(x5)
        x7 = of("layers.3.shortcut.0")(x3)
        x8 = x6 + x7
        x9 = of("layers.4")(x8)
        x10 = of("layers.5")(x9.movedim(1, -1)).movedim(-1, 1)
        x11 = F.gelu(x10)
        x12 = F.max_pool2d(x11, 3, 1, 1)
        x13 = of("layers.7.layers.1.0")(x11)
        x14 = torch.tanh(x13)
        x15 = torch.cat([x12, x14], 1)
        x16 = of("layers.8")(x15)
        x17 = of("layers.9")(x16)
        x18 = torch.sigmoid(x17)
        x19 = F.avg_pool2d(x18, 2, 2, 0)
        x20 = F.dropout(x19, 0.5, self.training)
        x21 = x20.flatten(1)
        x22 = of("layers.14")(x21)
        x23 = of("layers.15")(x22)
        x24 = of("layers.16")(x23)
        x25 = of("head")(x24)
        return x25
