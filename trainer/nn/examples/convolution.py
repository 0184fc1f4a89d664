"""Times convolutions of PyTorch on one thread for examples/convolution.rs.

Each line of standard input is "batch size inputs outputs kernel stride padding groups input_gradient repetitions";
each line of output is "all forward input_gradient weight_gradient both_gradients" in milliseconds, the best of the
repetitions, of the memory format that is faster over all.
"""
import sys
import time

import torch

torch.set_num_threads(1)
convolution_backward = torch.ops.aten.convolution_backward


def best(repetitions, call):
    times = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times[1:])


def measure(memory_format, batch, size, inputs, outputs, kernel, stride, padding, groups, gradient, repetitions):
    x = torch.randn(batch, inputs, size, size).contiguous(memory_format=memory_format)
    w = torch.randn(outputs, inputs // groups, kernel, kernel).contiguous(memory_format=memory_format)

    def forward():
        return torch.nn.functional.conv2d(x, w, None, stride, padding, 1, groups)

    dy = torch.randn_like(forward())

    def backward(input_gradient, weight_gradient):
        mask = [input_gradient, weight_gradient, False]
        zero, one = [0, 0], [1, 1]
        convolution_backward(dy, x, w, None, [stride] * 2, [padding] * 2, one, False, zero, groups, mask)

    y = best(repetitions, forward)
    dx = best(repetitions, lambda: backward(True, False)) if gradient else 0.0
    dw = best(repetitions, lambda: backward(False, True))
    both = best(repetitions, lambda: backward(True, True)) if gradient else dw
    return min(y + dx + dw, y + both), y, dx, dw, both


with torch.no_grad():
    for line in sys.stdin:
        sizes = [int(word) for word in line.split()]
        formats = [torch.contiguous_format, torch.channels_last]
        print(*min(measure(memory_format, *sizes) for memory_format in formats), flush=True)
