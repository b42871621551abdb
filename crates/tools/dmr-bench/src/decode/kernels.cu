// The kernels of the decode loop, but for its matrix products. `kernels.ptx` is this file, compiled by NVRTC for
// compute_80. Every sum is in a fixed order, so that two runs have the same bytes.

// x[i] is a pseudo-random number between -scale and scale.
extern "C" __global__ void decode_weights(float *x, unsigned n, unsigned seed, float scale) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned h = (i + seed) * 2654435761u;
    h = (h ^ (h >> 15)) * 2246822519u;
    h = (h ^ (h >> 13)) * 3266489917u;
    h ^= h >> 16;
    x[i] = ((float)(h >> 8) * (1.0f / 8388608.0f) - 1.0f) * scale;
}

// Row b of x becomes the embedding of token b. A block for each row.
extern "C" __global__ void decode_embed(const float *table, const int *tokens, float *x, unsigned hidden) {
    unsigned long long from = (unsigned long long)tokens[blockIdx.x] * hidden;
    for (unsigned i = threadIdx.x; i < hidden; i += blockDim.x) x[blockIdx.x * hidden + i] = table[from + i];
}

// y = x * w, for where there is no cuBLAS: a thread for each of the `rows * outputs` elements.
extern "C" __global__ void decode_product(const float *w, const float *x, float *y, unsigned inputs, unsigned outputs,
                                          unsigned rows) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * outputs) return;
    unsigned row = i / outputs, column = i % outputs;
    float sum = 0.0f;
    for (unsigned k = 0; k < inputs; k++) sum += x[row * inputs + k] * w[k * outputs + column];
    y[i] = sum;
}

// Appends the key and the value of each row to its cache, and attends over all positions so far: 256 at most. A block
// of blockDim.x = hidden / heads threads for each head and row. The cache of a row has `context` keys, then values.
extern "C" __global__ void decode_attend(const float *qkv, const int *positions, float *cache, float *out,
                                         unsigned hidden, unsigned context) {
    __shared__ float scores[256];
    unsigned column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    unsigned position = positions[row];
    const float *query = qkv + row * 3 * hidden;
    float *keys = cache + (unsigned long long)row * 2 * context * hidden;
    float *values = keys + (unsigned long long)context * hidden;
    keys[position * hidden + column] = query[hidden + column];
    values[position * hidden + column] = query[2 * hidden + column];
    __syncthreads();
    unsigned head = blockIdx.x * blockDim.x;
    for (unsigned t = threadIdx.x; t <= position; t += blockDim.x) {
        float dot = 0.0f;
        for (unsigned d = 0; d < blockDim.x; d++) dot += query[head + d] * keys[t * hidden + head + d];
        scores[t] = dot * rsqrtf((float)blockDim.x);
    }
    __syncthreads();
    float most = scores[0];
    for (unsigned t = 1; t <= position; t++) most = fmaxf(most, scores[t]);
    float total = 0.0f, sum = 0.0f;
    for (unsigned t = 0; t <= position; t++) {
        float weight = __expf(scores[t] - most);
        total += weight;
        sum += weight * values[t * hidden + column];
    }
    out[row * hidden + column] = __fdividef(sum, total);
}

// x += y, then each row is divided by its root mean square. A block of 128 threads for each row.
extern "C" __global__ void decode_add_norm(const float *y, float *x, unsigned hidden) {
    __shared__ float squares[128];
    unsigned row = blockIdx.x * hidden;
    float sum = 0.0f;
    for (unsigned i = threadIdx.x; i < hidden; i += 128) {
        float value = x[row + i] + y[row + i];
        x[row + i] = value;
        sum += value * value;
    }
    squares[threadIdx.x] = sum;
    __syncthreads();
    sum = 0.0f;
    for (unsigned t = 0; t < 128; t++) sum += squares[t];
    float scale = rsqrtf(__fdividef(sum, (float)hidden) + 1e-6f);
    for (unsigned i = threadIdx.x; i < hidden; i += 128) x[row + i] *= scale;
}

// x = x * sigmoid(x).
extern "C" __global__ void decode_silu(float *x, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = __fdividef(x[i], 1.0f + __expf(-x[i]));
}

// The next token of each row is the first with the highest logit; it and its logit go into the row's history. A block
// of 128 threads for each row.
extern "C" __global__ void decode_argmax(const float *logits, int *tokens, int *positions, int *history, float *scores,
                                         unsigned vocabulary, unsigned context) {
    __shared__ float values[128];
    __shared__ unsigned indices[128];
    unsigned row = blockIdx.x, best = threadIdx.x;
    const float *x = logits + (unsigned long long)row * vocabulary;
    for (unsigned i = threadIdx.x; i < vocabulary; i += 128)
        if (x[i] > x[best]) best = i;
    values[threadIdx.x] = x[best];
    indices[threadIdx.x] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (unsigned t = 1; t < 128; t++)
        if (values[t] > values[0] || (values[t] == values[0] && indices[t] < indices[0])) {
            values[0] = values[t];
            indices[0] = indices[t];
        }
    unsigned position = positions[row];
    tokens[row] = indices[0];
    history[row * context + position] = indices[0];
    scores[row * context + position] = values[0];
    positions[row] = position + 1;
}
