"""Random kernels whose loops load the tile of their next iteration into the other half of a buffer, or almost."""

from __future__ import annotations

import random
import re

from tests.gradients.random_kernels import arguments


class Pipelines:
    """One random kernel, by its seed."""

    grid, shared_mem = (2, 1, 1), 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block = (self.r.choice([8, 16, 32]), 1, 1)
        self.source = self._flat(self._make())

    def arguments(self) -> tuple:
        return arguments(self.seed)

    def _make(self) -> str:
        r, width = self.r, self.block[0]
        many = r.random() < 0.3  # elements of a tile for each thread
        size, step, kind = 2 * width if many else width, r.choice([1, 1, 4]), r.choice(["int", "int", "unsigned"])
        first, most = r.choice([0, 0, 1]) * step, r.choice(["m", "n / 8", "m * 2 + 1", "n / 8 - 1"])
        at = lambda k: f"({k}{f' / {step}' if step > 1 else ''})"  # noqa: E731
        # What the half of an iteration is called, and the other one.
        own, other, turn = r.choice(
            [
                (f"{at('k')} & 1", f"({at('k')} & 1) ^ 1", ""),
                (f"{at('k')} % 2", f"1 - {at('k')} % 2", ""),
                (f"{at('k')} % 2", f"({at('k')} + 1) % 2", ""),
                ("b", "1 - b", "b = 1 - b;"),
                ("b", "b ^ 1", "b ^= 1;"),
                ("b", "!b", "b = !b;"),
            ]
        )
        start = first // step % 2 if "k" in own else r.choice([0, 1])
        load = r.choice([
            f"x[({{k}} * {size} + e) % n]", f"x[({{k}} * {size} + e) % n] * bend", "sinf(x[({k} + e) % n])",
            "x[({k} + at[i % n]) % n] * w[e % 7]", "(e < 3 ? x[({k} + e) % n] : w[e % 7])", "x[(e + {k}) % n]",
        ]) if r.random() < 0.9 else "x[e]"  # fmt: skip
        after = f"(k + {step})"
        now = lambda half, k: self._tile(f"s1[{half}][e] = {load.format(k=k)};", many, size)  # noqa: E731
        before = now(start, f"{first}{'u' if kind == 'unsigned' else ''}")
        condition, guard = f"k < ({kind}){most}", f"if ({after} < ({kind}){most}) "
        if r.random() < 0.3:
            guard = ""  # the tile after the last one is loaded, and not read
        elif r.random() < 0.2:
            guard = f"if (k < ({kind}){most} - {step}) "
        stored = now(other, after)
        wrong = r.random()
        if wrong < 0.06:
            before = before.replace("[e] = ", "[e] = 2.0f * ")
        elif wrong < 0.12:
            guard = f"if (k + {2 * step} < ({kind}){most}) "
        elif wrong < 0.18:
            stored = stored.replace(after, "(k + 2)")
        elif wrong < 0.22:
            stored = stored.replace("[e] =", f"[(e + k) % {size}] =")
        elif wrong < 0.26:
            before = self._tile(f"s1[{start}][e] = 0.5f;", many, size) + before.replace(f"[{start}]", f"[{1 - start}]")
        early = r.random() < 0.5
        reads = [f"s1[{own}][j]", f"s1[{own}][{size - 1} - j]", f"s1[{own}][(t + j) % {size}]"]
        term = f"{r.choice(reads)} * {r.choice([*reads, 'v', 'w[j % 7]', '0.5f'])}"
        work = f"for (int j = 0; j < {size}; ++j) sum += {r.choice([term, f'sinf({term})'])};"
        body = [guard + "{" + stored + "}", work] if early else [work, guard + "{" + stored + "}"]
        if r.random() < 0.3 and not many:  # through a register
            body = [f"float next = 0.0f; {{ int e = t; {guard}next = {load.format(k=after)}; }}", work,
                    f"{{ int e = t; {guard}s1[{other}][e] = next; }}"]  # fmt: skip
        barrier = ["__syncthreads();"]
        body = [*barrier, *body] if r.random() < 0.3 and early else [*body, *barrier]
        lines = [
            f"__shared__ float s1[2][{size}];",
            "int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;",
            f"float v = x[i % n], bend = cosf(w[t % 7]), sum = 0.0f; int b = {start};",
            before, *barrier,
            f"for ({kind} k = {first}; {condition}; k += {step}) {{", *("    " + each for each in body), f"    {turn}", "}",
            "if (i < n) y[i] = sum * v;",
        ]  # fmt: skip
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        return "\n".join([f"{head} {{", *("    " + line for line in lines), "}\n"])

    def _flat(self, source: str) -> str:
        """The same, or the buffer in one dimension: with an index, an offset or pointers for the half; or almost."""
        r = random.Random(~self.seed)
        size = int(re.findall(r"s1\[2\]\[(\d+)\]", source)[0])
        if r.random() < 0.5:
            return source
        apart = size - 1 if r.random() < 0.06 else size  # halves that overlap
        forms = ["s1[({half}) * {n} + {at}]", "s1[{at} + {n} * ({half})]", "(s1 + ({half}) * {n})[{at}]"]
        form, how = r.choice(forms), r.choice(["index", "offset", "pointers"])
        source = source.replace(f"s1[2][{size}]", f"s1[2 * {size}]")
        start = re.findall(r"int b = (\d);", source)[0]
        turn = next((t for t in ("b = 1 - b;", "b ^= 1;", "b = !b;") if t in source), "")
        if turn and how == "offset":
            source = source.replace(f"int b = {start};", f"int o = {start} * {apart};")
            source = source.replace(turn, r.choice(["o = {n} - o;", "o ^= {n};"]).format(n=apart))
        elif turn and how == "pointers":
            pointers = f"float *p = s1 + {start} * {apart}, *q = s1 + (1 - {start}) * {apart};"
            source = source.replace(f"int b = {start};", pointers)
            source = source.replace(turn, "{ float* last = p; p = q; q = last; }")
        names = {"offset": ("s1[o + {at}]", "s1[{n} - o + {at}]"), "pointers": ("p[{at}]", "q[{at}]")}

        def element(half: str, at: str) -> str:
            if turn and how in names and "b" in half:
                return names[how][half != "b"].format(at=at, n=apart)
            return form.format(half=half, at=f"({at})", n=apart)

        parts = re.split(r"s1(?=\[)(?!\[2 \*)", source)
        found = parts[0]
        for part in parts[1:]:
            half, rest = self._brackets(part)
            at, rest = self._brackets(rest)
            found += element(half, at) + rest
        return found

    @staticmethod
    def _brackets(text: str) -> tuple[str, str]:
        """What is in the first brackets of a text, and what follows them."""
        depth = 0
        for k, c in enumerate(text):
            depth += (c == "[") - (c == "]")
            if depth == 0:
                return text[1:k], text[k + 1 :]
        raise AssertionError(text)

    def _tile(self, store: str, many: bool, size: int) -> str:
        if many:
            return f"for (int e = t; e < {size}; e += {self.block[0]}) {store}"
        return f"{{ int e = t; {store} }}"
