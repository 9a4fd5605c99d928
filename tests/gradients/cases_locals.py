"""Kernels with local arrays whose indices are data: filled up to a count, sorted, kept in order."""

from __future__ import annotations

import torch

from tests.gradients.cases import case


def _corners(box):
    x, y, width, height, angle = box
    c, s = torch.cos(angle), torch.sin(angle)
    sides = [(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)]
    return [(x + a * width * c - b * height * s, y + a * width * s + b * height * c) for a, b in sides]


def _overlap(first, second):
    """The area that two convex polygons share: one is cut by each side of the other."""
    for (ax, ay), (bx, by) in zip(second, [*second[1:], second[0]], strict=True):
        distances = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for x, y in first]
        cut = []
        for k, (d, (x, y)) in enumerate(zip(distances, first, strict=True)):
            before, (px, py) = distances[k - 1], first[k - 1]
            if (before >= 0) != (d >= 0):
                at = before / (before - d)
                cut.append((px + at * (x - px), py + at * (y - py)))
            if d >= 0:
                cut.append((x, y))
        first = cut
    return sum((first[k - 1][0] * y - first[k - 1][1] * x for k, (x, y) in enumerate(first)), 0.0 * second[0][0]) / 2


@case("""
struct Corner {
    float x, y;
    __device__ Corner() {}
    __device__ Corner(float a, float b) { x = a; y = b; }
    __device__ void turn(const Corner& around, float c, float s) {
        float u = x - around.x, v = y - around.y;
        x = around.x + u * c - v * s;
        y = around.y + u * s + v * c;
    }
    __device__ Corner operator-(const Corner& o) const { return Corner(x - o.x, y - o.y); }
};
__device__ inline float wedge(const Corner& a, const Corner& b) { return a.x * b.y - a.y * b.x; }
__device__ inline void corners_of(const float* box, Corner* found) {
    Corner middle(box[0], box[1]);
    float w = box[2] / 2, h = box[3] / 2, c = cosf(box[4]), s = sinf(box[4]);
    found[0] = Corner(middle.x - w, middle.y - h);
    found[1] = Corner(middle.x + w, middle.y - h);
    found[2] = Corner(middle.x + w, middle.y + h);
    found[3] = Corner(middle.x - w, middle.y + h);
    for (int k = 0; k < 4; k++) found[k].turn(middle, c, s);
    found[4] = found[0];
}
__device__ inline int meet(const Corner& a, const Corner& b, const Corner& c, const Corner& d, Corner& at) {
    float across = wedge(b - a, d - c);
    if (fabsf(across) < 1e-9f) return 0;
    float t = wedge(c - a, d - c) / across, u = wedge(c - a, b - a) / across;
    if (t <= 0 || t >= 1 || u <= 0 || u >= 1) return 0;
    at = Corner(a.x + t * (b.x - a.x), a.y + t * (b.y - a.y));
    return 1;
}
__device__ inline int holds(const Corner* box, const Corner& p) {
    for (int k = 0; k < 4; k++)
        if (wedge(box[k + 1] - box[k], p - box[k]) < 0) return 0;
    return 1;
}
__global__ void overlaps(const float* a, const float* b, float* area, int n, int m) {
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    if (row >= n || column >= m) return;
    Corner first[5], second[5], shared[24], middle(0.0f, 0.0f);
    corners_of(a + row * 5, first);
    corners_of(b + column * 5, second);
    int count = 0;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (meet(first[i], first[i + 1], second[j], second[j + 1], shared[count])) count++;
    for (int k = 0; k < 4; k++) {
        if (holds(first, second[k])) shared[count++] = second[k];
        if (holds(second, first[k])) shared[count++] = first[k];
    }
    for (int k = 0; k < count; k++) {
        middle.x += shared[k].x / count;
        middle.y += shared[k].y / count;
    }
    for (int j = 0; j < count - 1; j++) {
        for (int i = 0; i < count - j - 1; i++) {
            Corner p = shared[i] - middle, q = shared[i + 1] - middle;
            if (atan2f(p.y, p.x) > atan2f(q.y, q.x)) {
                Corner t = shared[i];
                shared[i] = shared[i + 1];
                shared[i + 1] = t;
            }
        }
    }
    float sum = 0.0f;
    for (int k = 0; k < count - 1; k++) sum += wedge(shared[k] - shared[0], shared[k + 1] - shared[0]);
    area[row * m + column] = sum / 2;
}""", (16, 16), (1, 1), lambda r: (r(4, 5) + 1.2, r(6, 5) + 1.2, r(4, 6), 4, 6), name="overlaps")  # fmt: skip
def overlaps(a, b, area, n, m):
    """Of rectangles (x, y, width, height, angle): all crossings and inner corners, by their angles."""
    shapes = [[_corners(box) for box in boxes] for boxes in (a, b)]
    return {"area": torch.stack([torch.stack([_overlap(p, q) for q in shapes[1]]) for p in shapes[0]])}


@case("""
#define KEPT 5
__global__ void largest(const float* x, const float* w, float* y, int rows, int columns) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float best[KEPT];
        for (int k = 0; k < KEPT; ++k) best[k] = -1e30f;
        for (int j = 0; j < columns; ++j) {
            float v = x[row * columns + j];
            for (int k = 0; k < KEPT; ++k) {
                if (v > best[k]) {
                    float t = best[k];
                    best[k] = v;
                    v = t;
                }
            }
        }
        int n = min(KEPT, columns);
        for (int k = 0; k < n; ++k) best[k] = best[k] * best[n - 1] * w[k];
        float sum = 0.0f;
        for (int k = 0; k < n; ++k) sum += sinf(best[k]);
        y[row] = sum;
    }
}""", 32, 2, lambda r: (r(40, 24), r(5), r(40), 40, 24), name="largest", max_iterations=24)  # fmt: skip
def largest(x, w, y, rows, columns):
    """A queue of the largest so far; the last of them is overwritten at the end."""
    best = x.topk(5).values
    first, last = best[:, :4] * best[:, 4:] * w[:4], best[:, 4:] * best[:, 4:] * w[4]
    return {"y": torch.cat([first, last], 1).sin().sum(1)}


@case("""
__global__ void histogram_of_each(const float* x, const int* bins, const float* w, float* y, int n, int length) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sums[8] = {0.0f}, total = 0.0f;
    for (int j = 0; j < length; ++j) sums[bins[i * length + j]] += x[i * length + j] * x[i * length + j];
    for (int k = 0; k < 8; ++k) total += w[k] * sqrtf(sums[k] + 1.0f);
    for (int k = 1; k < 8; ++k) sums[k] += 0.5f * sums[k - 1];
    y[i] = total * sums[bins[i * length]];
}""", 32, 2, lambda r: (r(40, 9), (r(40, 9).abs() * 7).int(), r(8), r(40), 40, 9), name="histogram_of_each",
      wrt=("x", "w"))  # fmt: skip
def histogram_of_each(x, bins, w, y, n, length):
    """Sums by a bin that is data, read both before and after they are overwritten."""
    sums = torch.zeros(n, 8, dtype=torch.float64).scatter_add(1, bins.long(), x * x)
    total = (w * (sums + 1).sqrt()).sum(1)
    after = [sums[:, 0]]
    for k in range(1, 8):
        after.append(sums[:, k] + 0.5 * after[-1])
    return {"y": total * torch.stack(after, 1).gather(1, bins[:, :1].long())[:, 0]}
