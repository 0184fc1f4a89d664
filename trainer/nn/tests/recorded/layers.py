"""Outputs and gradients of layers and losses, as PyTorch computes them in double precision.

Writes layers.json, which the tests of src/layers/recorded.rs read:
    python layers.py > layers.json      (recorded with torch 2.15.0)
"""

import json
import torch
from torch import nn

torch.manual_seed(7)
torch.set_default_dtype(torch.float64)
SAMPLES = 2
cases = []


def numbers(tensor):
    return [float(f"{value:.7g}") for value in tensor.detach().flatten().tolist()]


def rough(*shape):
    return (torch.randn(*shape) * 100).round() / 100


def ours(key):
    """Our name of a module's parameter."""
    return "layers." + key.replace("module.", "0.")


def case(name, layers, module, shape, loss=None, targets=None, classes=0, train=True):
    x = rough(SAMPLES, *shape).requires_grad_()
    module.train(train)
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(rough(*value.shape) * 0.5)
    state = {ours(key): numbers(value) for key, value in module.state_dict().items() if "num_batches" not in key}
    y = module(x)
    if loss is None:
        loss_spec = {"meanSquaredError": {}}
        targets = rough(*y.shape)
        total = ((y - targets) ** 2).flatten(1).mean(1).sum()
        targets = numbers(targets)
    else:
        loss_spec, function = loss
        total = function(y, torch.tensor(targets)).flatten(1).mean(1).sum()
        targets = [float(label) for label in torch.tensor(targets).flatten().tolist()]
    total.backward()
    cases.append({
        "name": name, "layers": layers, "loss": loss_spec, "classes": classes, "shape": list(shape), "x": numbers(x),
        "targets": targets, "parameters": state, "y": numbers(y), "total": total.item(), "dx": numbers(x.grad),
        "gradients": {ours(key): numbers(value.grad) for key, value in module.named_parameters()},
        "after": {ours(key): numbers(value) for key, value in module.state_dict().items() if "running" in key},
    })


def layer(name, spec, module, shape, **more):
    case(name, [spec], nn.Sequential(module), shape, **more)


def conv(name, inputs, outputs, kernel, **options):
    spec = {"outputs": outputs, "kernel": kernel}
    spec.update({key: value for key, value in options.items()})
    layer(name, {"conv2d": spec}, nn.Conv2d(inputs, outputs, kernel, **options), (inputs, 5, 4))


class Flat(nn.Module):
    """A module of features on images of one pixel."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x.flatten(1)).reshape(x.shape[0], -1, 1, 1)


def flat(name, spec, module, features, **more):
    case(name, [spec], Flat(module), (features, 1, 1), **more)


flat("linear", {"linear": {"outputs": 3}}, nn.Linear(5, 3), 5)
conv("conv2d", 2, 3, 3)
conv("conv2d, stride and padding", 3, 2, 3, stride=2, padding=1)
conv("conv2d, dilation", 2, 2, 2, dilation=2, padding=2)
conv("conv2d, groups", 4, 6, 3, padding=1, groups=2)
conv("conv2d, 1x1 without a bias", 3, 4, 1, bias=False)
conv("conv2d, 5x5", 1, 3, 5, padding=2)
layer("depthwise", {"depthwiseConv2d": {"kernel": 3, "padding": 1}}, nn.Conv2d(3, 3, 3, padding=1, groups=3), (3, 4, 4))
layer("upConvolution", {"upConvolution": {"outputs": 2, "kernel": 2, "stride": 2}}, nn.ConvTranspose2d(3, 2, 2, stride=2), (3, 2, 3))
layer("upConvolution, 3x3", {"upConvolution": {"outputs": 2, "kernel": 3, "stride": 2, "padding": 1}}, nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1), (2, 3, 2))
layer("batchNorm", {"batchNorm": {}}, nn.BatchNorm2d(3), (3, 3, 2))
flat("layerNorm", {"layerNorm": {}}, nn.LayerNorm(6), 6)
layer("groupNorm", {"groupNorm": {"groups": 2}}, nn.GroupNorm(2, 4), (4, 2, 3))
layer("maxPool", {"maxPool": {"kernel": 2}}, nn.MaxPool2d(2), (2, 4, 5))
layer("maxPool, overlapping", {"maxPool": {"kernel": 3, "stride": 2, "padding": 1}}, nn.MaxPool2d(3, 2, 1), (2, 5, 4))
layer("averagePool", {"averagePool": {"kernel": 2}}, nn.AvgPool2d(2), (2, 4, 4))
layer("averagePool, padded", {"averagePool": {"kernel": 3, "stride": 2, "padding": 1}}, nn.AvgPool2d(3, 2, 1), (2, 5, 4))
layer("globalAveragePool", "globalAveragePool", nn.AdaptiveAvgPool2d(1), (3, 3, 2))
for name, module in [("relu", nn.ReLU()), ("gelu", nn.GELU()), ("silu", nn.SiLU()), ("tanh", nn.Tanh()), ("sigmoid", nn.Sigmoid())]:
    layer(name, name, module, (2, 3, 3))


class Residual(nn.Module):
    """x + two convolutions of x, with a ReLU behind."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1))

    def forward(self, x):
        return self.layers(x) + x


case("residual", [{"residual": {"layers": [
    {"conv2d": {"outputs": 3, "kernel": 3, "padding": 1}}, "relu", {"conv2d": {"outputs": 2, "kernel": 3, "padding": 1}},
]}}, "relu"], nn.Sequential(Residual(), nn.ReLU()), (2, 3, 3))

identity = nn.Sequential()
entropy = lambda **options: lambda y, t: nn.functional.cross_entropy(y.flatten(2).squeeze(2), t, reduction="none", **options).reshape(t.shape[0], -1)
pixels = lambda **options: lambda y, t: nn.functional.cross_entropy(y, t, reduction="none", **options)
weights = [0.5, 2.0, 1.0, 0.25]
case("crossEntropy", [], identity, (4, 1, 1), loss=({"crossEntropy": {}}, entropy()), targets=[1, 3], classes=4)
case("crossEntropy, smoothing and weights", [], identity, (4, 1, 1),
     loss=({"crossEntropy": {"labelSmoothing": 0.1, "classWeights": weights}}, entropy(label_smoothing=0.1, weight=torch.tensor(weights))),
     targets=[1, 3], classes=4)
case("crossEntropy, pixels", [], identity, (3, 2, 2),
     loss=({"crossEntropy": {"ignoreIndex": 255}}, pixels(ignore_index=255)), targets=[[[0, 2], [255, 1]], [[255, 255], [2, 0]]], classes=3)
case("hinge", [], identity, (4, 1, 1),
     loss=({"hinge": {}}, lambda y, t: nn.functional.multi_margin_loss(y.flatten(1), t, reduction="none").reshape(-1, 1)), targets=[1, 3], classes=4)

print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")
