"""Records what PyTorch makes of models that `lockstep export --torch` wrote.

record.py FOLDER          draws weights for each NAME.py of FOLDER, and writes NAME.safetensors and
                          NAME.json: inputs (samples of the model, normalised) and its logits
record.py --check FOLDER  loads NAME.safetensors, by whoever wrote it, into each model, strictly,
                          and compares its logits with those of NAME.json

The files in this folder were recorded with PyTorch 2.15.0 and safetensors 0.8.0.
"""

import importlib.util
import json
import pathlib
import struct
import sys

import torch

TYPES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}
SAMPLES = 2
TOLERANCE = 1e-5

try:
    from safetensors.torch import load_file, save_file
except ImportError:
    # The format is simple enough to do without the package.
    def save_file(tensors, path):
        header, data = {}, b""
        for name, tensor in tensors.items():
            content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
            place = [len(data), len(data) + len(content)]
            header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
            data += content
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.write(data)

    def load_file(path):
        content = pathlib.Path(path).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        header.pop("__metadata__", None)
        types, tensors = {name: type for type, name in TYPES.items()}, {}
        for name, entry in header.items():
            first, last = (8 + length + place for place in entry["data_offsets"])
            values = torch.frombuffer(bytearray(content[first:last]), dtype=types[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"])
        return tensors


def module_of(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def draw(model):
    """PyTorch's own first weights, and other values for norms, which begin with zeros and ones."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            norm = isinstance(model.get_submodule(name.rpartition(".")[0]), NORMS)
            if not tensor.is_floating_point() or not norm:
                continue
            if name.endswith(("running_var", "weight")):
                tensor.uniform_(0.5, 1.5)
            else:
                tensor.normal_(0, 0.1)


NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.GroupNorm, torch.nn.LayerNorm)


def record(path):
    torch.manual_seed(7)
    module = module_of(path)
    model = module.Model().eval()
    draw(model)
    shape = json.loads(path.with_suffix(".json").read_text())["shape"]
    inputs = module.prepare(torch.randint(0, 256, [SAMPLES, *shape]))
    with torch.no_grad():
        logits = model(inputs)
    save_file(model.state_dict(), path.with_suffix(".safetensors"))
    if path.stem in HALVES:
        for type in (torch.float64, torch.float16, torch.bfloat16):
            tensors = {name: tensor.to(type) for name, tensor in model.state_dict().items()}
            save_file(tensors, path.with_suffix(f".{TYPES[type].lower()}.safetensors"))
    facts = {"shape": shape, "inputs": inputs.flatten().tolist(), "logits": logits.flatten().tolist()}
    path.with_suffix(".json").write_text(json.dumps(facts) + "\n")


HALVES = {"mlp"}


def check(path):
    model = module_of(path).Model()
    model.load_state_dict(load_file(path.with_suffix(".safetensors")), strict=True)
    facts = json.loads(path.with_suffix(".json").read_text())
    inputs = torch.tensor(facts["inputs"]).reshape(SAMPLES, *facts["shape"])
    with torch.no_grad():
        logits = model.eval()(inputs).flatten()
    expected = torch.tensor(facts["logits"])
    difference = (logits - expected).abs().max().item()
    print(f"{path.stem}: {difference:.1e} of {expected.abs().max().item():.2f}")
    return difference <= TOLERANCE * max(1, expected.abs().max().item())


*checks, folder = sys.argv[1:]
models = [path for path in sorted(pathlib.Path(folder).glob("*.py")) if path.name != "record.py"]
if checks:
    sys.exit(0 if all([check(path) for path in models]) else 1)
for path in models:
    record(path)
