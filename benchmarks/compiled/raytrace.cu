// A kernel of about a hundred lines: spheres over a chequered floor, with shadows and mirrors; a thread per pixel.
struct Vector {
    float x, y, z;
};

__device__ Vector operator+(Vector a, Vector b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
__device__ Vector operator-(Vector a, Vector b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
__device__ Vector operator*(Vector a, float s) { return {a.x * s, a.y * s, a.z * s}; }
__device__ float dot(Vector a, Vector b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ Vector unit(Vector a) { return a * rsqrtf(dot(a, a)); }

struct Sphere {
    Vector center;
    float radius;
    Vector colour;
    float mirror;
};

struct Hit {
    float distance;
    Vector place, normal, colour;
    float mirror;
};

// Distance along a ray to a sphere, or a negative number.
__device__ float meet(Sphere s, Vector origin, Vector direction) {
    Vector to = s.center - origin;
    float middle = dot(to, direction);
    float inside = s.radius * s.radius - (dot(to, to) - middle * middle);
    if (inside < 0.0f) return -1.0f;
    float half = sqrtf(inside);
    if (middle - half > 1e-3f) return middle - half;
    return middle + half > 1e-3f ? middle + half : -1.0f;
}

// The nearest thing that a ray meets; distance is negative if there is none.
__device__ Hit nearest(const Sphere* spheres, int count, Vector origin, Vector direction) {
    Hit hit = {-1.0f};
    for (int k = 0; k < count; k++) {
        float d = meet(spheres[k], origin, direction);
        if (d < 0.0f || (hit.distance > 0.0f && d > hit.distance)) continue;
        hit.distance = d;
        hit.place = origin + direction * d;
        hit.normal = unit(hit.place - spheres[k].center);
        hit.colour = spheres[k].colour;
        hit.mirror = spheres[k].mirror;
    }
    if (direction.y < -1e-4f) {
        float d = (-1.0f - origin.y) / direction.y;
        if (d > 1e-3f && (hit.distance < 0.0f || d < hit.distance)) {
            hit.distance = d;
            hit.place = origin + direction * d;
            hit.normal = {0.0f, 1.0f, 0.0f};
            bool dark = ((int)floorf(hit.place.x) + (int)floorf(hit.place.z)) & 1;
            hit.colour = dark ? Vector{0.1f, 0.1f, 0.1f} : Vector{0.9f, 0.9f, 0.8f};
            hit.mirror = 0.15f;
        }
    }
    return hit;
}

__device__ unsigned char byte(float v) { return (unsigned char)(255.0f * __saturatef(powf(v, 1.0f / 2.2f))); }

extern "C" __global__ void raytrace(int width, int height, const Sphere* spheres, int count, Vector light, uchar4* image) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= width || row >= height) return;
    float scale = 2.0f / height;
    Vector origin = {0.0f, 0.5f, -4.0f};
    Vector direction = unit({(column + 0.5f - 0.5f * width) * scale, (0.5f * height - row - 0.5f) * scale, 2.0f});
    Vector colour = {0.0f, 0.0f, 0.0f};
    float weight = 1.0f;
    for (int bounce = 0; bounce < 5 && weight > 0.02f; bounce++) {
        Hit hit = nearest(spheres, count, origin, direction);
        if (hit.distance < 0.0f) {
            float sky = 0.5f * (direction.y + 1.0f);
            colour = colour + Vector{0.6f + 0.1f * sky, 0.7f + 0.1f * sky, 1.0f} * weight;
            break;
        }
        Vector to_light = light - hit.place;
        float reach = sqrtf(dot(to_light, to_light));
        to_light = to_light * (1.0f / reach);
        float bright = 0.1f;
        Hit blocker = nearest(spheres, count, hit.place, to_light);
        if (blocker.distance < 0.0f || blocker.distance > reach) {
            float facing = dot(hit.normal, to_light);
            if (facing > 0.0f) {
                Vector halfway = unit(to_light - direction);
                bright += 0.8f * facing;
                colour = colour + Vector{1.0f, 1.0f, 1.0f} * (weight * 0.4f * powf(fmaxf(dot(hit.normal, halfway), 0.0f), 50.0f));
            }
        }
        colour = colour + hit.colour * (weight * bright * (1.0f - hit.mirror));
        weight *= hit.mirror;
        direction = direction - hit.normal * (2.0f * dot(direction, hit.normal));
        origin = hit.place;
    }
    image[row * width + column] = make_uchar4(byte(colour.x), byte(colour.y), byte(colour.z), 255);
}
