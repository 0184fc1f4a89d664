# JPEG pictures through torchvision on one thread: decode, random resized crop to 224, mirror,
# normalise. Seconds of a picture, for each pass over them.
#   python data.py draw FOLDER COUNT     writes pictures of 500x375 in the frequencies of photographs
#   python data.py pil FOLDER PASSES     decoded and resized by Pillow, as ImageFolder does it
#   python data.py io FOLDER PASSES      decoded by torchvision.io.decode_jpeg, resized as a tensor
import glob, json, os, sys, time

import numpy
import torch
from PIL import Image
from torchvision import io, transforms
from torchvision.transforms import v2

torch.set_num_threads(1)
torch.manual_seed(0)
what, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def draw():
    """The spectrum of photographs falls with the frequency; so does that of this noise."""
    height, width = 375, 500
    random = numpy.random.default_rng(1)
    down, across = numpy.meshgrid(numpy.fft.fftfreq(height), numpy.fft.fftfreq(width), indexing="ij")
    falls = 1 / numpy.maximum(numpy.hypot(down, across), 1 / width) ** 1.2
    for number in range(count):
        place = os.path.join(folder, f"class{number % 4}")
        os.makedirs(place, exist_ok=True)
        light, *colours = [
            numpy.fft.ifft2(falls * numpy.exp(2j * numpy.pi * random.random((height, width)))).real for _ in range(4)
        ]
        planes = [light / light.std() * 50 + colour / colour.std() * 15 + 120 for colour in colours]
        pixels = numpy.clip(numpy.stack(planes, -1), 0, 255).astype(numpy.uint8)
        Image.fromarray(pixels).save(os.path.join(place, f"{number:05}.jpg"), quality=90)


def pil():
    change = transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ])
    return lambda file: change(Image.open(file).convert("RGB"))


def tensors():
    change = v2.Compose([
        v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ])
    return lambda file: change(io.decode_jpeg(io.read_file(file), mode=io.ImageReadMode.RGB))


if what == "draw":
    draw()
else:
    load, files = {"pil": pil, "io": tensors}[what](), sorted(glob.glob(os.path.join(folder, "*", "*.jpg")))
    for _ in range(count):
        start = time.perf_counter()
        for first in range(0, len(files), 16):
            torch.stack([load(file) for file in files[first:first + 16]])
        print(json.dumps({"image_seconds": (time.perf_counter() - start) / len(files)}))
