# Written by `lockstep export`: mlp in plain PyTorch.
#
#   from safetensors.torch import load_file
#   from FILE import CLASSES, Model, prepare        # FILE: the name of this file without .py
#
#   model = Model()
#   model.load_state_dict(load_file("model.safetensors"))
#   model.eval()
#   probabilities = model(prepare(pixels)).softmax(1)
#
# `pixels` are bytes: samples x 1 x 4 x 4. The model gives logits.

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = []
MEAN = [0.4]
STD = [0.25]


def prepare(pixels):
    """Normalises bytes of 0 to 255 as the training did."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self._put("fc1", nn.Linear(16, 9, bias=True))
        self._put("fc2", nn.Linear(9, 3, bias=True))

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
        x1 = x.flatten(1)
        x2 = of("fc1")(x1)
        x3 = F.relu(x2)
        x4 = of("fc2")(x3)
        return x4
