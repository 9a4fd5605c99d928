"""Candidates for the square of a tensor: a right one in each form, and others that are wrong in one way each."""

from __future__ import annotations

SQUARE = r"""
extern "C" __global__ void square(int n, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i];
}
"""
KERNELS = {
    "right": SQUARE,
    "slightly wrong": SQUARE.replace("x[i] * x[i]", "x[i] * x[i] * 1.001f"),
    "does not compile": SQUARE.replace("int i", "intt i"),
    "other parameters": SQUARE.replace("const float* x", "const double* x"),
    "two kernels": SQUARE + SQUARE.replace("square", "other"),
    "out of bounds": SQUARE.replace("if (i < n)", "if (i <= n)"),
    "adds to its output": SQUARE.replace("y[i] =", "y[i] +="),
    "forgets the last": SQUARE.replace("i < n", "i < n - 1"),
    "forgets it all": SQUARE.replace("i < n", "i < 0"),
    "drops NaN": SQUARE.replace("x[i] * x[i]", "fmaxf(x[i] * x[i], 0.0f)"),
    "made for one size": SQUARE.replace("i < n", "i < 1000 && i < n"),
    "changes its input": SQUARE.replace("const float* x", "float* x").replace("x[i];", "x[i], x[i] = 0;"),
    "never ends": SQUARE.replace("if (i < n)", "while (i < n && x[i] < 1e30f) __nanosleep(100);\n    if (i < n)"),
    "kept in a variable": "__device__ float kept[1000]; __device__ int full;\n"
    + SQUARE.replace("x[i] * x[i];", "full ? kept[i] : x[i] * x[i], kept[i] = y[i];\n    if (i == n - 1) full = 1;"),
    "in the order of warps": r"""
__device__ unsigned count;  // of warps, in launches of one block of 32
extern "C" __global__ void square(int n, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned turn = 0;
    if (threadIdx.x % 32 == 0) turn = atomicAdd(&count, 1) % 32;
    turn = __shfl_sync(~0u, turn, 0);
    if (i < n) y[i] = x[i] * x[i] * (turn == threadIdx.x / 32);
}
""",
    "a race": r"""
extern "C" __global__ void square(int n, const float* x, float* y) {
    __shared__ float tile[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0;
    int j = (threadIdx.x + 32) % 256;
    float other = tile[j];
    if (i < n) y[i] = x[i] * x[i] + (other == 12345.5f);
}
""",
}

FUNCTION = f'''
import torch
import rawkern

kernel = rawkern.RawKernel(r"""{SQUARE}""")


def square(x):
    y = torch.empty_like(x)
    kernel.forall(x.numel())(x.numel(), x, y)
    return y
'''


def changed(before: str, after: str, source: str = FUNCTION) -> str:
    """A candidate with a part of its source replaced, once."""
    assert source.count(before) == 1
    return source.replace(before, after)


def returning(text: str) -> str:
    return changed("return y", text)


def beginning(text: str) -> str:
    return changed("    y = torch", f"    {text}\n    y = torch")


MODEL = r"""
import torch
import rawkern

kernel = rawkern.RawKernel(r'''
extern "C" __global__ void linear(int rows, int in, int out, const float* x, const float* w, const float* b, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * out) return;
    float sum = b[i % out];
    for (int k = 0; k < in; k++) sum += x[i / out * in + k] * w[i % out * in + k];
    y[i] = fmaxf(sum, 0.0f);
}''')


class ModelNew(torch.nn.Module):
    def __init__(self, features, out):
        super().__init__()
        self.linear = torch.nn.Linear(features, out)

    def forward(self, x):
        w, b = self.linear.weight, self.linear.bias
        y = torch.empty(x.shape[0], w.shape[0], device=x.device)
        kernel.forall(y.numel())(x.shape[0], w.shape[1], w.shape[0], x, w, b, y)
        return y
"""

#: By name: the source and the kinds of tampering that are named.
TAMPERING = {
    "torch alone": ("def square(x):\n    return x * x", {"no launch"}),
    "torch after a launch": (returning("return x * x"), {"unused launches"}),
    "in its input": (
        returning("x.copy_(y)\n    return x"),
        {"changed input", "returned input"},
    ),
    "cached by address": (
        changed(
            "def square(x):",
            "KEPT = {}\n\n\ndef square(x):\n    if x.data_ptr() in KEPT:\n        return KEPT[x.data_ptr()]",
        ).replace("return y", "KEPT[x.data_ptr()] = y\n    return y"),
        {"cached output"},
    ),
    "a function of no arguments": (returning("return lambda: y"), {"lazy result"}),
    "a tensor of its own class": (
        returning("class Later(torch.Tensor):\n        pass\n\n    return y.as_subclass(Later)"),
        {"lazy result"},
    ),
    "on no device": (returning("return y.to('meta')"), {"wrong device"}),
    "in another dtype": (returning("return y.double()"), {"wrong dtype"}),
    "other comparison and timer": (
        FUNCTION + "\nimport time\ntorch.allclose = lambda *a, **k: True\ntime.perf_counter = lambda: 0.0\n",
        {"replaced function"},
    ),
    "other code in a function": (
        FUNCTION + "\ntorch.cuda.synchronize.__code__ = (lambda device=None: None).__code__\n",
        {"replaced function"},
    ),
    "an answer of its own": (beginning("import os; os.write(3, b'right' * 9)"), {"worker"}),
    "an answer that looks like one": (
        beginning("""import os, struct
    text = b'{"error": null, "launches": [], "notes": [], "tensors": []}'
    os.write(3, struct.pack("<QQ", len(text), 0) + text)"""),
        {"worker"},
    ),
    "ends the worker": (beginning("import os; os.kill(os.getppid(), 9)"), {"worker"}),
}

#: By name: the source, and what is said of its end.
ENDS = {
    "exits": (beginning("raise SystemExit(3)"), "status 3"),
    "crashes": (beginning("import ctypes; ctypes.string_at(0)"), "SIGSEGV"),
    "closes its socket": (beginning("import os, time; os.close(3); time.sleep(60)"), "closed its connection"),
    "uses memory": (beginning("big = [torch.ones(1 << 26) for _ in range(99)]"), "more than 500000000 bytes"),
    "has another process use memory": (
        beginning(
            "import subprocess, sys\n"
            "    program = 'b = bytearray(1 << 30); import time; time.sleep(60)'\n"
            "    subprocess.run([sys.executable, '-I', '-c', program])"
        ),
        "more than 500000000 bytes",
    ),
    "sleeps": (beginning("import time; time.sleep(60)"), "did not finish within 3 s"),
}
