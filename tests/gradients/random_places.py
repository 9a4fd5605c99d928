"""Random kernels that reach memory by casts and moving pointers; half precision, dynamic shared memory, macros."""

from __future__ import annotations

from tests.gradients.random_kernels import FUNCTIONS, Program, arguments

MACROS = """
#include <cuda_fp16.h>
#define FLOAT4(v) (reinterpret_cast<const float4*>(&(v))[0])
#define SQUARE(v) ((v) * (v))
#define MIX(a, b) \\
    lerp(a, b, SQUARE(0.5f))
#ifdef NEVER
#error never
#elif defined(SQUARE) && !defined(MIXED)
#define STEPS (2 + 1)
#endif
"""
SHARED = 2048  # elements of dynamic shared memory, at most


class Places(Program):
    """As `Program`, of which it takes all but the ways to memory."""

    functions, weights_type = MACROS + FUNCTIONS, "const half*"

    def __init__(self, seed: int) -> None:
        self.taken = 0  # elements of dynamic shared memory
        super().__init__(seed)
        self.shared_mem = 4 * self.taken

    def arguments(self) -> tuple:
        x, w, *rest = arguments(self.seed)
        return (x, w.half(), *rest)

    def weight(self, at: str) -> str:
        return self.r.choice([f"__half2float(w[{at}])", f"(float)w[{at}]"])

    def array(self, extent: str = "[64]") -> str:
        """A part of the dynamic memory."""
        count = int(extent.strip("[]"))
        count += -count % 4
        name, start = self.fresh("p"), self.taken
        assert start + count <= SHARED
        self.taken += count
        self.shared.append((name, start))
        return name

    def declarations(self) -> str:
        if not self.shared:
            return ""
        if self.r.random() < 0.5:
            return "    extern __shared__ float s0[];\n" + "".join(
                f"    float* {name} = s0 + {start};\n" for name, start in self.shared
            )
        return "    extern __shared__ unsigned char s0[];\n" + "".join(
            f"    float* {name} = (float*)(s0 + {start} * sizeof(float));\n" for name, start in self.shared
        )

    def more(self) -> list:
        found = [self.vectors, self.walk, self.walk, self.macros, self.halves, self.local, self.pieces]
        found += [self.breaks, self.choice, self.nearest]
        return [*found, self.tile_of_vectors] if self.uniform else found

    # Statements -----------------------------------------------------------------------------------------------------

    def vectors(self) -> None:
        name, r = self.fresh("q"), self.r
        text = r.choice(["reinterpret_cast<const float4*>(x)[c / 4]", "*(const float4*)(x + c / 4 * 4)", "FLOAT4(x[c / 4 * 4])",
                         "((const float4*)x)[(c + 7) % n / 4]", "__ldg((const float4*)x + t % 30)"])  # fmt: skip
        self.say(f"float4 {name} = {text};")
        self.declare(f"{name}.x * {name}.{r.choice('yzw')} + {self.value(1)}")
        if r.random() < 0.5:
            self.say(f"{name}.{r.choice('xyzw')} = {self.value(1)};")
            self.declare(f"sinf({name}.y + {name}.w)")

    def walk(self) -> None:
        """A pointer that moves in a loop, or on one side of a branch."""
        p, k, name, r = self.fresh("at"), self.fresh("k"), self.declare("0.0f"), self.r
        self.say(f"const float* {p} = x + (c < n - 8 ? c : n - 8);")
        self.say(f"for (int {k} = 0; {k} < {r.choice(['3', 'STEPS', 't % 3 + 1'])}; ++{k}) {{")
        self.say(
            f"    {name} += {r.choice([f'*{p}', f'{p}[1]', f'sinf({p}[0] * {self.names[0]})'])}; {p} {r.choice(['+= 2', '++', '+= 1'])};"
        )
        self.say("}")
        if r.random() < 0.5:
            self.say(f"if (t > 9) {p} -= 1; else {p} = x + 3;")
        self.declare(f"{p}[0] * {name}")

    def macros(self) -> None:
        self.declare(f"MIX({self.value(1)}, SQUARE(0.5f * {self.names[-1]}))")

    def halves(self) -> None:
        name, r = self.fresh("h"), self.r
        self.say(f"half {name} = __float2half(0.5f * sinf({self.value(1)}));")
        self.say(
            f"{name} = {r.choice([f'{name} * w[t % 7]', f'__hmul({name}, {name})', f'__hadd({name}, w[t % 7])', name])};"
        )
        self.declare(f"__half2float({name})")

    def local(self) -> None:
        """A local array that is also one of vectors."""
        name = self.fresh("own")
        self.say(f"float {name}[4] = {{{self.value(1)}, {self.names[-1]}, 0.25f}};")
        self.say(f"((float2*){name})[1] = make_float2({self.value(1)}, {name}[1]);")
        self.declare(f"{name}[2] * {name}[0] + ((float2*){name})[1].y")

    def pieces(self) -> None:
        """Vectors whose start is not a multiple of their length: read one by one."""
        name = self.fresh("u")
        self.say(f"float2 {name} = *(const float2*)(x + (t % 8) * {self.r.choice([2, 4, 6])});")
        self.declare(f"{name}.x * cosf({name}.y)")

    def breaks(self) -> None:
        """A loop that is left early, by all threads at a time of their own."""
        name, k, r = self.declare("0.1f"), self.fresh("k"), self.r
        term = r.choice([f"x[(c + {k}) % n] * {self.names[0]}", f"sinf({self.value(1)} * {k})"])
        change = r.choice([f"{name} += {term};", f"{name} = 0.5f * {name} + {term};"])
        leave = r.choice([f"if ({name} > 0.4f) break;", f"if (({k} + t) % 4 == 3) {{ {name} *= 0.5f; break; }}"])
        inner = " ".join(r.sample([change, leave], 2))
        if r.random() < 0.6:
            self.say(f"for (int {k} = 0; {k} < 5; ++{k}) {{ {inner} }}")
        else:
            self.say(f"int {k} = 0; do {{ {inner} }} while (++{k} < {r.choice(['4', 't % 3 + 1'])});")

    def choice(self) -> None:
        name = self.declare(self.value(1))
        self.say(f"switch ((t + {self.names[0]} > 0.2f) + c % 2) {{")
        self.say(f"    case 0: {name} = {self.value(1)}; break;")
        self.say(f"    case 1: {{ {name} *= {self.value(1)}; break; }}")
        self.say(f"    default: {name} += x[c];")
        self.say("}")

    def nearest(self) -> None:
        name, at, k = self.declare("0.0f"), self.fresh("at"), self.fresh("k")
        term, test = self.fresh("v"), self.r.choice(["<", ">", ">="])
        self.say(f"int {at} = 0;")
        self.say(f"for (int {k} = 0; {k} < 6; ++{k}) {{")
        self.say(f"    float {term} = x[(c + {k}) % n] * {self.value(1)};")
        sets = self.r.choice([f"{{ {name} = {term}; {at} = {k}; }}", f"{name} = {term};"])
        self.say(f"    if ({k} == 0 || {term} {test} {name}) {sets}")
        self.say("}")
        self.declare(f"{name} * x[{at}]")

    def tile_of_vectors(self) -> None:
        s = self.array()
        self.say(
            f"if (t < 16) *(float4*)&{s}[t * 4] = make_float4({self.value(1)}, {self.value(1)}, 0.5f, {self.names[-1]});"
        )
        self.say("__syncthreads();")
        text = self.r.choice([f"{s}[t] * {s}[63 - t]", f"((float2*){s})[t / 2].x", f"((float4*)({s} + 32))[t % 8].w"])
        self.declare(text)
        self.say("__syncthreads();")

    def last(self) -> None:
        if self.r.random() < 0.4:
            a, b = self.value(1), self.value(1)
            self.say(f"if (i < n / 4) ((float4*)y)[i] = make_float4({a}, {self.names[-1]} * {b}, x[c], {a});")
        else:
            super().last()
