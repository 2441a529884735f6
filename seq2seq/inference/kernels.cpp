// Transformer inference in int8 or fp32: the encoder, a decoder step, beam search and top-k, each in one call.
//
// The compiler vectorises most loops. The other loops use explicit vectors. setup.py compiles this file for each
// precision and instruction set in kernel_library.py, which also contains the signatures. In int8, weights and inputs
// of matrix products are int8, keys and values of attention are bf16, and all other numbers are fp32. In fp32
// (-DFLOAT32), all numbers are fp32.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
// TILES is defined if AMX is used. AMX has tile registers, which contain rows of bytes. Tests emulate AMX (macro
// EMULATE_TILES). In clang++ 14, the macro for AMX is __AMXINT8__.
#if defined(EMULATE_TILES)
#include "tiles_emulated.h"
#define TILES
#elif !defined(FLOAT32) && (defined(__AMX_INT8__) || defined(__AMXINT8__)) && defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define TILES
#endif

namespace {

// Sizes, counts and indices. On Windows, `long` has only 32 bits.
typedef std::ptrdiff_t Size;

// Python fills these structures field by field (kernel_library.py).

// Layer norm; without a shift, the root-mean-square norm, which subtracts no mean.
struct Norm {
    const float *gain, *shift;
    float epsilon;
};

// Type of weights.
#if defined(FLOAT32)
typedef float Weight;
#else
typedef int8_t Weight;
#endif

// Linear layer, (inputs) -> (outputs). panels: weights, see PANEL. scale: scale of each output's weights. offset:
// contribution of the inputs' zero point to each output's sum. In fp32, both are null. bias: may be null.
struct Linear {
    const Weight* panels;
    const float* scale;
    const int32_t* offset;
    const float* bias;
    Size inputs, outputs;
};

// Layer of the encoder or the decoder. norms: the norm after each residual sum. Encoder layers do not use `query`,
// `source_output` or the second norm. If the feed-forward sublayer is gated, the first outputs of `inner` are gates.
struct Layer {
    Linear query_key_value, output, query, source_output, inner, outer;
    Norm norms[3];
};

// Bias of the scores of self-attention by distance, the position of the key minus that of the query. here: bias of the
// first head at distance 0; null: there is no bias. stride: number of distances of a head. The heads follow one another.
struct Relative {
    const float* here;
    Size stride;

    // Adds the bias to the scores of a query and successive keys. distance: of the first of these keys.
    void add(float* scores, Size head, Size distance, Size keys) const {
        if (!here) return;
        const float* bias = here + head * stride + distance;
        for (Size n = 0; n < keys; ++n) scores[n] += bias[n];
    }
};

// Encoder or decoder. feed_forward: number of hidden units of the feed-forward sublayers; if `gated`, they are multiplied
// by as many gates. first: norm before the first sublayer of a pre-norm model. last: linear layers that follow `layers`:
// in an encoder, the projections to keys and values of cross-attention, one for each decoder layer; in a decoder, the
// output layer. The input of the first layer is embedding_scale * embedding of the token + encoding of its position,
// normalised if embedding_norm has a gain. window: maximum distance between a query and its keys in self-attention;
// negative: no limit.
struct Stack {
    const Layer* layers;
    Size number_of_layers, d_model, heads, head_size, feed_forward, gated, pre_norm, activation;
    Norm first;
    const Linear* last;
    Size number_of_last;
    const float *embedding, *positions;
    float embedding_scale;
    Size window;
    Norm embedding_norm;
    Relative relative;
};

enum Activation { RELU, GELU, SILU, GELU_TANH };

// Up to this number of rows, a single thread does all the work, because waking other threads would take longer.
constexpr Size MAX_SERIAL_ROWS = 32;
// Maximum number of rows that a thread passes through the layers together. Their activations fit into a core's cache.
constexpr Size MAX_BLOCK_ROWS = 96;

// Log-probability of impossible tokens. It is finite, because -infinity minus -infinity would be NaN.
constexpr float LOG_ZERO = -1e38f;
// If this number is added to a number below 2^22 in magnitude and then subtracted, the result is the nearest integer,
// ties to even. Unlike rounding, addition and subtraction are vector instructions on every processor.
constexpr float ROUNDER = 12582912.0f;
constexpr float SQRT_HALF = 0.70710678f;                                        // 1 / sqrt(2), for GELU
constexpr float TWICE_ROOT_2_BY_PI = 1.59576912f;                               // for the approximation of GELU
// Id of `</s>`, as in tokenizers/vocabulary.py.
constexpr int64_t END = 2;

// Returns an uninitialised array.
template <class T>
std::unique_ptr<T[]> allocate(Size count) {
    return std::unique_ptr<T[]>(new T[count]);
}

// Number of floats in the longest vector of the instruction set. On longer vectors, the compiler would generate one
// instruction per element for some operations.
#if defined(__AVX512F__)
constexpr Size WIDTH = 16;
#elif defined(__AVX__)
constexpr Size WIDTH = 8;
#else
constexpr Size WIDTH = 4;
#endif
typedef float Wide __attribute__((vector_size(4 * WIDTH)));

inline Wide load(const float* from) {
    Wide numbers;
    std::memcpy(&numbers, from, sizeof numbers);
    return numbers;
}

inline void store(Wide numbers, float* to) { std::memcpy(to, &numbers, sizeof numbers); }

inline float sum_of(Wide numbers) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)numbers);
#elif defined(__aarch64__)
    return vaddvq_f32((float32x4_t)numbers);
#else
    typedef float Four __attribute__((vector_size(16)));
    Four parts[WIDTH / 4];
    std::memcpy(parts, &numbers, sizeof parts);
    for (Size part = 1; part < WIDTH / 4; ++part) parts[0] += parts[part];
    return (parts[0][0] + parts[0][1]) + (parts[0][2] + parts[0][3]);
#endif
}

inline Wide broadcast(float number) { return number - Wide{}; }                  // an addition of 0 would change -0

// Loads `count` numbers, at most WIDTH, and sets the other elements of the vector to `rest`.
inline Wide load_some(const float* from, Size count, float rest) {
    float numbers[WIDTH];
    std::fill_n(numbers, WIDTH, rest);
    std::copy_n(from, count, numbers);
    return load(numbers);
}

// Maximum and minimum of two vectors in each lane. If either number is NaN, the result is the number in `one`. The
// intrinsics are necessary because compilers do not generate these instructions from comparisons.
#if defined(__AVX512F__)
inline Wide maximum(Wide one, Wide other) { return (Wide)_mm512_max_ps((__m512)other, (__m512)one); }
inline Wide minimum(Wide one, Wide other) { return (Wide)_mm512_min_ps((__m512)other, (__m512)one); }
#elif defined(__AVX__)
inline Wide maximum(Wide one, Wide other) { return (Wide)_mm256_max_ps((__m256)other, (__m256)one); }
inline Wide minimum(Wide one, Wide other) { return (Wide)_mm256_min_ps((__m256)other, (__m256)one); }
#else
inline Wide maximum(Wide one, Wide other) { return other > one ? other : one; }
inline Wide minimum(Wide one, Wide other) { return other < one ? other : one; }
#endif

// exp(x), computed as 2^whole * exp(rest). exp(rest) is computed by its Taylor series. The relative error is at most
// 5e-7. x is clamped to the range from -87 to 87. exp(NaN) is NaN.
inline Wide exponential(Wide number) {
    [[maybe_unused]] typedef int32_t Whole __attribute__((vector_size(4 * WIDTH)));
    const float LOG2_E = 1.44269504f, LN_2_HIGH = 0.693359375f, LN_2_LOW = -2.12194440e-4f;
    const Wide x = minimum(maximum(number, broadcast(-87.0f)), broadcast(87.0f));
    const Wide whole = (x * LOG2_E + ROUNDER) - ROUNDER;
    const Wide rest = (x - whole * LN_2_HIGH) - whole * LN_2_LOW;
    Wide power = broadcast(1 / 720.0f);
    power = power * rest + 1 / 120.0f;
    power = power * rest + 1 / 24.0f;
    power = power * rest + 1 / 6.0f;
    power = power * rest + 0.5f;
    power = power * rest * rest + rest + 1.0f;
#if defined(__AVX512F__)
    return (Wide)_mm512_scalef_ps((__m512)power, (__m512)whole);
#else
    const Whole bits = (__builtin_convertvector(whole, Whole) + 127) << 23;
    Wide two_to_whole;
    std::memcpy(&two_to_whole, &bits, sizeof two_to_whole);
    return power * two_to_whole;
#endif
}

// Sum of term(x) over the numbers x. `nothing` is a number whose term is negligible. The additions to the two partial
// sums overlap in time. The compiler does not split the sum itself, because it may not reorder additions.
template <class Term>
inline float sum_of_terms(const float* numbers, Size count, float nothing, Term term) {
    Wide sums = {}, others = {};
    Size i = 0;
    for (; i + 2 * WIDTH <= count; i += 2 * WIDTH) {
        sums += term(load(numbers + i));
        others += term(load(numbers + i + WIDTH));
    }
    for (; i < count; i += WIDTH)
        sums += term(i + WIDTH <= count ? load(numbers + i) : load_some(numbers + i, count - i, nothing));
    return sum_of(sums + others);
}

inline float max_of(Wide numbers) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)numbers);
#elif defined(__aarch64__)
    return vmaxvq_f32((float32x4_t)numbers);
#else
    float found = numbers[0];
    for (Size lane = 1; lane < WIDTH; ++lane) found = std::max(found, numbers[lane]);
    return found;
#endif
}

// Maximum of LOG_ZERO and the numbers in each lane. NaN is ignored.
inline Wide max_by_lane(const float* numbers, Size count) {
    // The operations on the four partial maxima overlap in time.
    Wide parts[4] = {broadcast(LOG_ZERO), broadcast(LOG_ZERO), broadcast(LOG_ZERO), broadcast(LOG_ZERO)};
    Size i = 0;
    for (; i + 4 * WIDTH <= count; i += 4 * WIDTH)
        for (Size part = 0; part < 4; ++part) parts[part] = maximum(parts[part], load(numbers + i + part * WIDTH));
    for (; i < count; i += WIDTH)
        parts[0] = maximum(parts[0],
                           i + WIDTH <= count ? load(numbers + i) : load_some(numbers + i, count - i, LOG_ZERO));
    return maximum(maximum(parts[0], parts[1]), maximum(parts[2], parts[3]));
}

// Bit mask of the numbers above a limit. The lowest bit belongs to the first number.
inline uint32_t above(Wide numbers, float limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)numbers, _mm512_set1_ps(limit), _CMP_GT_OQ);
#elif defined(__AVX__)
    return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps((__m256)numbers, _mm256_set1_ps(limit), _CMP_GT_OQ)));
#else
    uint32_t lanes = 0;
    for (Size lane = 0; lane < WIDTH; ++lane) lanes |= uint32_t(numbers[lane] > limit) << lane;
    return lanes;
#endif
}

// sum = hidden + output; normed = norm of `sum`. `sum` may be the same array as `hidden`.
void add_and_norm(const float* hidden, const float* output, const Norm& norm, float* sum, float* normed, Size rows,
                  Size size) {
    for (Size row = 0; row < rows; ++row) {
        const float *before = hidden + row * size, *added = output + row * size;
        float *total = sum + row * size, *result = normed + row * size;
        for (Size i = 0; i < size; ++i) total[i] = before[i] + added[i];
        const float mean =
            norm.shift ? sum_of_terms(total, size, 0, [](Wide number) { return number; }) / size : 0;
        const float variance =
            sum_of_terms(total, size, mean, [=](Wide number) { return (number - mean) * (number - mean); });
        const float scale = 1 / std::sqrt(variance / size + norm.epsilon);
        if (norm.shift)
            for (Size i = 0; i < size; ++i) result[i] = (total[i] - mean) * scale * norm.gain[i] + norm.shift[i];
        else
            for (Size i = 0; i < size; ++i) result[i] = total[i] * scale * norm.gain[i];
    }
}

inline uint32_t bits_of(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

#if defined(FLOAT32)
// Type of stored keys and values.
typedef float Stored;

inline float to_float(float number) { return number; }
inline float to_stored(float number) { return number; }
#else
// Type of stored keys and values: bf16, with half the bytes of fp32 numbers.
typedef uint16_t Stored;

constexpr uint32_t INFINITY_BITS = 0x7f800000, NAN_BITS = 0x7fc00000;

inline Wide load(const Stored* from) {
#if defined(__aarch64__)
    return (Wide)vshll_n_u16(vld1_u16(from), 16);                               // g++ converts number by number
#else
    typedef Stored Bf16Vector __attribute__((vector_size(2 * WIDTH)));
    typedef uint32_t Bits __attribute__((vector_size(4 * WIDTH)));
    Bf16Vector bf16;
    std::memcpy(&bf16, from, sizeof bf16);
    const Bits bits = __builtin_convertvector(bf16, Bits) << 16;
    Wide numbers;
    std::memcpy(&numbers, &bits, sizeof numbers);
    return numbers;
#endif
}

inline float to_float(Stored bf16) {
    const uint32_t bits = uint32_t(bf16) << 16;
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

// Rounds to the nearest bf16, ties to even. NaN stays NaN.
inline Stored to_stored(float number) {
    const uint32_t bits = bits_of(number), rounded = bits + 0x7fff + (bits >> 16 & 1);
    return Stored(((bits & 0x7fffffff) > INFINITY_BITS ? bits | NAN_BITS : rounded) >> 16);
}
#endif

void convert_to_stored(const float* numbers, Stored* stored, Size count) {
    for (Size i = 0; i < count; ++i) stored[i] = to_stored(numbers[i]);
}

// Writes keys and values of a source sentence in the layout that attention reads: first the keys, (features, count),
// then the values, (count, features). Because the keys are transposed, attention computes the scores of WIDTH keys as
// one vector. The last vector may extend up to WIDTH - 1 elements beyond the keys. A row of `keys_values` contains the
// keys of a token for all heads, then the values of the token. Rows are `stride` elements apart.
void transpose_keys(const float* keys_values, Size stride, Stored* block, Size count, Size features) {
    Stored* values = block + count * features;
    for (Size token = 0; token < count; ++token, keys_values += stride) {
        for (Size i = 0; i < features; ++i) block[i * count + token] = to_stored(keys_values[i]);
        convert_to_stored(keys_values + features, values + token * features, features);
    }
}

// Replaces `count` scores by exp(score - maximum) and returns 1 / (sum of the results). Overwrites the elements after
// the scores, too, up to a multiple of WIDTH.
float softmax_terms(float* scores, Size count) {
    const float largest = max_of(max_by_lane(scores, count));
    const Size filled = (count + WIDTH - 1) / WIDTH * WIDTH;
    std::fill(scores + count, scores + filled, 2 * LOG_ZERO);
    Wide totals = {};
    for (Size begin = 0; begin < filled; begin += WIDTH) {
        const Wide powers = exponential(load(scores + begin) - largest);
        store(powers, scores + begin);
        totals += powers;
    }
    return 1 / sum_of(totals);
}

// Block sizes of attention. With these sizes, the sums stay in registers. QUERY_BLOCK: number of rows that are computed
// together from the same keys. COLUMN_BLOCK: number of vectors of a head's values that are summed together for each
// row. PARTIAL_SUMS: number of partial sums of a score.
#if defined(__AVX512F__)
constexpr Size QUERY_BLOCK = 6, COLUMN_BLOCK = 4, PARTIAL_SUMS = 4;
#elif defined(__aarch64__)
constexpr Size QUERY_BLOCK = 4, COLUMN_BLOCK = 4, PARTIAL_SUMS = 4;
#else
constexpr Size QUERY_BLOCK = 4, COLUMN_BLOCK = 2, PARTIAL_SUMS = 2;
#endif

// For each of ROWS rows, computes COUNT vectors of result = scale * sum_n terms[n] * value(n), where value(n) points to
// the value of key n. The terms of successive rows are `filled` elements apart.
template <Size ROWS, Size COUNT, class Value>
inline void weigh_columns(const float* terms, Size filled, const float* scale, Size keys, Value value, float* result,
                          Size result_stride) {
    Wide sums[ROWS][COUNT];
#pragma GCC unroll 6
    for (Size row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (Size column = 0; column < COUNT; ++column) sums[row][column] = Wide{};
    for (Size n = 0; n < keys; ++n) {
        const Stored* from = value(n);
        Wide values[COUNT];
#pragma GCC unroll 4
        for (Size column = 0; column < COUNT; ++column) values[column] = load(from + column * WIDTH);
#pragma GCC unroll 6
        for (Size row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
            for (Size column = 0; column < COUNT; ++column)
                sums[row][column] += broadcast(terms[row * filled + n]) * values[column];
    }
#pragma GCC unroll 6
    for (Size row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (Size column = 0; column < COUNT; ++column)
            store(sums[row][column] * scale[row], result + row * result_stride + column * WIDTH);
}

// Computes the weighted sum of a head's values, `size` elements for each key. Arguments: as in `weigh_columns`.
template <Size ROWS, class Value>
inline void weigh(const float* terms, Size filled, const float* scale, Size keys, Value value, Size size, float* result,
                  Size result_stride) {
    Size begin = 0;
    for (; begin + COLUMN_BLOCK * WIDTH <= size; begin += COLUMN_BLOCK * WIDTH)
        weigh_columns<ROWS, COLUMN_BLOCK>(terms, filled, scale, keys, [=](Size n) { return value(n) + begin; },
                                     result + begin, result_stride);
    for (; begin + WIDTH <= size; begin += WIDTH)
        weigh_columns<ROWS, 1>(terms, filled, scale, keys, [=](Size n) { return value(n) + begin; }, result + begin,
                               result_stride);
    for (; begin < size; ++begin)
        for (Size row = 0; row < ROWS; ++row) {
            float sum = 0;
            for (Size n = 0; n < keys; ++n) sum += terms[row * filled + n] * to_float(value(n)[begin]);
            result[row * result_stride + begin] = sum * scale[row];
        }
}

// Computes attention of ROWS rows over the same source sentence. block: keys and values in the layout of
// `transpose_keys`. terms: buffer for ROWS rows of scores, each padded to whole vectors. relative: bias of the scores.
// position: of the first row, for this bias; the others follow it.
template <Size ROWS>
void attend_together(const float* query, Size query_stride, const Stored* block, Size count, float* result,
                     Size heads, Size size, float* terms, const Relative& relative, Size position) {
    const Size features = heads * size, filled = (count + WIDTH - 1) / WIDTH * WIDTH;
    const float factor = 1 / std::sqrt(float(size));
    for (Size head = 0; head < heads; ++head) {
        const float* own = query + head * size;
        for (Size begin = 0; begin < count; begin += WIDTH) {
            const Stored* keys = block + head * size * count + begin;
            // The additions to different partial sums overlap in time.
            Wide sums[ROWS][PARTIAL_SUMS];
#pragma GCC unroll 6
            for (Size row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
                for (Size part = 0; part < PARTIAL_SUMS; ++part) sums[row][part] = Wide{};
            Size i = 0;
            for (; i + PARTIAL_SUMS <= size; i += PARTIAL_SUMS)
#pragma GCC unroll 4
                for (Size part = 0; part < PARTIAL_SUMS; ++part) {
                    const Wide key = load(keys + (i + part) * count);
#pragma GCC unroll 6
                    for (Size row = 0; row < ROWS; ++row)
                        sums[row][part] += broadcast(own[row * query_stride + i + part]) * key;
                }
            for (; i < size; ++i) {
                const Wide key = load(keys + i * count);
#pragma GCC unroll 6
                for (Size row = 0; row < ROWS; ++row) sums[row][0] += broadcast(own[row * query_stride + i]) * key;
            }
#pragma GCC unroll 6
            for (Size row = 0; row < ROWS; ++row) {
                Wide sum = sums[row][0];
#pragma GCC unroll 4
                for (Size part = 1; part < PARTIAL_SUMS; ++part) sum += sums[row][part];
                store(sum * factor, terms + row * filled + begin);
            }
        }
        float scale[ROWS];
        for (Size row = 0; row < ROWS; ++row) {
            relative.add(terms + row * filled, head, -(position + row), count);
            scale[row] = softmax_terms(terms + row * filled, count);
        }
        const Stored* values = block + count * features + head * size;
        weigh<ROWS>(terms, filled, scale, count, [=](Size n) { return values + n * features; }, size,
                    result + head * size, features);
    }
}

// Computes attention of each row over its source sentence. The sentence has count[row] tokens in `memory`, beginning at
// token first[row]. Successive rows of the same sentence are computed together, which does not change their results.
// relative: bias of the scores, if the rows are the tokens in `memory`.
void attend_sources(const float* query, Size query_stride, const Stored* memory, const int32_t* first,
                    const int32_t* count, float* result, Size rows, Size heads, Size size,
                    const Relative& relative = {}) {
    static constexpr decltype(&attend_together<1>) of_rows[] = {
        attend_together<1>, attend_together<2>, attend_together<3>, attend_together<4>,
#if defined(__AVX512F__)
        attend_together<5>, attend_together<6>,
#endif
    };
    static_assert(sizeof of_rows / sizeof *of_rows == QUERY_BLOCK, "one function for each number of rows");
    const Size features = heads * size;
    std::vector<float> terms;
    for (Size row = 0, together; row < rows; row += together) {
        for (together = 1; together < QUERY_BLOCK && row + together < rows && first[row + together] == first[row] &&
                           count[row + together] == count[row];)
            ++together;
        terms.resize(QUERY_BLOCK * (count[row] + WIDTH));
        of_rows[together - 1](query + row * query_stride, query_stride, memory + first[row] * 2 * features, count[row],
                              result + row * features, heads, size, terms.data(), relative, row - first[row]);
    }
}

// Computes attention of each row over its own past: length[row] cache rows. The indices of these cache rows begin at
// past + row * past_stride. A cache row contains the keys of all heads, then the values. relative: bias of the scores.
// after: number of keys of a row that are after its own position.
void attend_own(const float* query, Size query_stride, const Stored* cache, const int32_t* past, Size past_stride,
                const int32_t* length, float* result, Size rows, Size heads, Size size, const Relative& relative = {},
                Size after = 0) {
    const Size features = heads * size, whole = size / WIDTH * WIDTH;
    const float factor = 1 / std::sqrt(float(size));
    std::vector<float> terms;
    std::vector<const Stored*> cached_keys;
    for (Size row = 0; row < rows; ++row, query += query_stride, past += past_stride, result += features) {
        const Size keys = length[row], filled = (keys + WIDTH - 1) / WIDTH * WIDTH;
        terms.resize(heads * filled);
        cached_keys.resize(keys);
        for (Size n = 0; n < keys; ++n) {
            const Stored* key = cached_keys[n] = cache + 2 * features * past[n];
            for (Size i = 0; i < features; i += 64 / Size(sizeof *key)) __builtin_prefetch(key + features + i);
            for (Size head = 0; head < heads; ++head, key += size) {
                const float* own = query + head * size;
                Wide products = {};
                for (Size i = 0; i < whole; i += WIDTH) products += load(own + i) * load(key + i);
                float score = sum_of(products);
                for (Size i = whole; i < size; ++i) score += own[i] * to_float(key[i]);
                terms[head * filled + n] = score * factor;
            }
        }
        for (Size head = 0; head < heads; ++head) {
            float* own = terms.data() + head * filled;
            relative.add(own, head, after - (keys - 1), keys);
            const float scale = softmax_terms(own, keys);
            const Size column = features + head * size;
            weigh<1>(own, filled, &scale, keys, [&](Size n) { return cached_keys[n] + column; }, size,
                     result + head * size, features);
        }
    }
}

#if defined(FLOAT32)
// Layout of fp32 weights: as of int8 weights below, in groups of a single input, but a panel is divided into parts of
// COLUMNS outputs, one after the other, because a whole panel is larger than the first-level cache. TILE rows are
// multiplied by VECTORS vectors of weights at a time. With these sizes, the sums fill the processor's registers.
constexpr Size PANEL = 64, GROUP = 1;
#if defined(__AVX512F__)
constexpr Size TILE = 6, VECTORS = 4;
#elif defined(__AVX__)
constexpr Size TILE = 6, VECTORS = 2;
#elif defined(__aarch64__)
constexpr Size TILE = 3, VECTORS = 8;
#else
constexpr Size TILE = 3, VECTORS = 4;
#endif
constexpr Size COLUMNS = VECTORS * WIDTH;

// Index of the weight of an input and an output, for linear layers with `inputs` inputs.
constexpr Size weight_index(Size output, Size input, Size inputs) {
    return (output / COLUMNS * inputs + input) * COLUMNS + output % COLUMNS;
}

// Computes the products of ROWS rows with COUNT vectors of outputs, whose weights begin at `panel`. indices: the
// `number` inputs to multiply, if POSITIVE is set; the other inputs are 0. outputs: number of outputs of the result.
// bias: of these outputs, or null.
template <Size ROWS, bool POSITIVE, Size COUNT = VECTORS>
void panel_products(const float* input, Size stride, const float* panel, const int32_t* indices, Size number,
                    const float* bias, float* result, Size result_stride, Size outputs) {
    Wide sums[ROWS][COUNT], own[COUNT];
#pragma GCC unroll 6
    for (Size row = 0; row < ROWS; ++row)
#pragma GCC unroll 16
        for (Size v = 0; v < COUNT; ++v) sums[row][v] = Wide{};
    for (Size n = 0; n < number; ++n) {
        const Size i = POSITIVE ? indices[n] : n;
#pragma GCC unroll 16
        for (Size v = 0; v < COUNT; ++v) own[v] = load(panel + weight_index(v * WIDTH, i, stride));
#pragma GCC unroll 6
        for (Size row = 0; row < ROWS; ++row) {
            const Wide same = broadcast(input[row * stride + i]);
#pragma GCC unroll 16
            for (Size v = 0; v < COUNT; ++v) sums[row][v] += same * own[v];
        }
    }
#pragma GCC unroll 6
    for (Size row = 0; row < ROWS; ++row)
#pragma GCC unroll 16
        for (Size v = 0; v < COUNT; ++v) {
            const Size begin = v * WIDTH, count = std::min(WIDTH, outputs - begin);
            float* to = result + row * result_stride + begin;
            if (count == WIDTH)
                store(bias ? sums[row][v] + load(bias + begin) : sums[row][v], to);
            else
                for (Size lane = 0; lane < count; ++lane)
                    to[lane] = sums[row][v][lane] + (bias ? bias[begin + lane] : 0);
        }
}

// Inputs of matrix products: at most `rows` rows of at most `inputs` elements. After ReLU, most inputs are 0. The
// weights of inputs that are 0 in TILE rows are not read.
struct Levels {
    const Size capacity;
    const std::unique_ptr<float[]> activated;
    // Of each TILE rows, the inputs other than 0, and their number. They exist if the inputs are `positive`.
    const std::unique_ptr<int32_t[]> indices;
    std::vector<Size> number;
    const float* input = nullptr;
    Size stride = 0;
    bool positive = false;

    static Size filled(Size inputs) { return inputs; }

    Levels(Size rows, Size inputs)
        : capacity(inputs), activated(allocate<float>(rows * inputs)),
          indices(allocate<int32_t>((rows + TILE - 1) / TILE * inputs)), number((rows + TILE - 1) / TILE) {}

    // The caller keeps the input until the last product.
    void quantise(const float* numbers, Size, Size inputs) {
        positive = false, stride = inputs, input = numbers;
        std::fill(number.begin(), number.end(), inputs);
    }

    // The inputs are max(x, 0) for each number x.
    void quantise_relu(const float* numbers, Size rows, Size inputs) {
        positive = true, stride = inputs, input = activated.get();
        float* to = activated.get();
        for (Size i = 0; i < rows * inputs; ++i) to[i] = std::max(numbers[i], 0.0f);
        for (Size first = 0; first < rows; first += TILE) {
            int32_t* own = indices.get() + first / TILE * capacity;
            Size count = 0;
            for (Size i = 0; i < inputs; ++i) {
                uint32_t all = 0;
                for (Size row = first; row < std::min(first + TILE, rows); ++row) all |= bits_of(to[row * inputs + i]);
                own[count] = int32_t(i);
                count += (all | -all) >> 31;                                    // 1 if not 0; a branch would be slow
            }
            number[first / TILE] = count;
        }
    }

    // Computes outputs `first` (included; the first one of a panel) to `last` (excluded). Rows of the result are
    // `result_stride` elements apart. A panel stays in a core's cache while all rows use it.
    void multiply(const Linear& linear, Size first, Size last, float* result, Size result_stride, Size rows) const {
        static constexpr decltype(&panel_products<1, false>) of_rows[2][6] = {
            {panel_products<1, false>, panel_products<2, false>, panel_products<3, false>, panel_products<4, false>,
             panel_products<5, false>, panel_products<6, false>},
            {panel_products<1, true>, panel_products<2, true>, panel_products<3, true>, panel_products<4, true>,
             panel_products<5, true>, panel_products<6, true>}};
        static constexpr decltype(&panel_products<1, false>) of_one_row[2] = {
            panel_products<1, false, PANEL / WIDTH>, panel_products<1, true, PANEL / WIDTH>};
        const Size columns = rows == 1 ? PANEL : COLUMNS;
        for (Size begin = first; begin < last; begin += columns)
            for (Size row = 0; row < rows; row += TILE) {
                const auto function =
                    rows == 1 ? of_one_row[positive] : of_rows[positive][std::min(TILE, rows - row) - 1];
                function(input + row * stride, stride, linear.panels + begin * stride,
                         indices.get() + row / TILE * capacity, number[row / TILE],
                         linear.bias ? linear.bias + begin : nullptr, result + row * result_stride + begin - first,
                         result_stride, std::min(columns, last - begin));
            }
    }
};
#else
// Layout of int8 weights: the outputs are divided into panels of PANEL outputs, and the inputs into groups of GROUP
// inputs. For each group of inputs, a panel contains the weights of the panel's first output, then the weights of its
// second output, and so on. Incomplete panels and groups are padded with zeros. A group is as many inputs as an
// instruction adds up.
constexpr Size PANEL = 64;
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr Size GROUP = 8;
#else
constexpr Size GROUP = 4;
#endif

// Index of the weight of an output and the first input of a group. stride: number of inputs, rounded up to groups.
constexpr Size weight_index(Size output, Size input, Size stride) {
    return (output / PANEL * stride + input) * PANEL + output % PANEL * GROUP;
}

// Quantised inputs are from -127 to 127. INPUT_ZERO_POINT is added to them: 128 if the inputs are unsigned bytes, else
// 0. same_group repeats a group of inputs in a vector. add_products adds the products of this group and the weights of
// one output to each int32 of `sums`. TILE rows are multiplied by VECTORS vectors of weights at a time. With these
// sizes, the sums fill the processor's registers.
//
// AVX2 can multiply unsigned inputs by signed weights, too, but it adds two products in an int16. With inputs up to
// 255, such a sum may overflow. So the inputs are |x|, and MAGNITUDES is defined: a second array contains a byte of
// ones for each negative input. The exclusive or of this byte and a weight is -weight - 1. The sums are therefore too
// small by the sum of |x| of a row's negative inputs; they begin with this number instead of 0. The instruction that
// multiplies by a sign would be simpler, but on Zen 3 products take 1.25 times as long with it, because few units
// execute it.
#if defined(__AVX512VNNI__)
typedef __m512i Sums;
#define VECTOR_PRODUCTS
constexpr Size TILE = 6, VECTORS = 4, INPUT_ZERO_POINT = 128;
inline Sums same_group(int32_t levels) { return _mm512_set1_epi32(levels); }
inline Sums add_products(Sums sums, Sums levels, Sums weights) { return _mm512_dpbusd_epi32(sums, levels, weights); }
#elif defined(__AVXVNNI__)
typedef __m256i Sums;
#define VECTOR_PRODUCTS
constexpr Size TILE = 3, VECTORS = 4, INPUT_ZERO_POINT = 128;
inline Sums same_group(int32_t levels) { return _mm256_set1_epi32(levels); }
inline Sums add_products(Sums sums, Sums levels, Sums weights) {
    return _mm256_dpbusd_avx_epi32(sums, levels, weights);
}
#elif defined(__AVX2__) && !defined(TILES)
typedef __m256i Sums;
#define VECTOR_PRODUCTS
#define MAGNITUDES
constexpr Size TILE = 3, VECTORS = 4, INPUT_ZERO_POINT = 0;
inline Sums same_group(int32_t levels) { return _mm256_set1_epi32(levels); }
inline Sums add_products(Sums sums, Sums levels, Sums weights) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(levels, weights), _mm256_set1_epi16(1)));
}
#elif defined(__ARM_FEATURE_MATMUL_INT8)
// The instruction smmla multiplies two rows of 8 inputs by the weights of two outputs: twice as many products as sdot
// computes, with the same throughput on Neoverse V1, N2 and V2.
typedef int32x4_t Sums;
constexpr Size TILE = 4, VECTORS = 8, INPUT_ZERO_POINT = 0;
#elif defined(__ARM_FEATURE_DOTPROD)
typedef int32x4_t Sums;
#define VECTOR_PRODUCTS
constexpr Size TILE = 3, VECTORS = 8, INPUT_ZERO_POINT = 0;
inline Sums same_group(int32_t levels) { return vdupq_n_s32(levels); }
inline Sums add_products(Sums sums, Sums levels, Sums weights) {
    return vdotq_s32(sums, vreinterpretq_s8_s32(levels), vreinterpretq_s8_s32(weights));
}
#else
constexpr Size TILE = 6, INPUT_ZERO_POINT = 128;
#endif
#if defined(MAGNITUDES)
constexpr bool SIGNS_APART = true;
#else
constexpr bool SIGNS_APART = false;
#endif

// Number of bytes of a row of quantised inputs: `stride` levels; with SIGNS_APART, also the bytes for negative inputs
// and the first value of the sums.
constexpr Size row_bytes(Size stride) { return SIGNS_APART ? 2 * stride + Size(sizeof(int32_t)) : stride; }

// Returns the bits of the largest |x|, or of the largest x if POSITIVE is set. The bits of |x|, as integers, have the
// same order as |x|, and the bits of NaN are the largest. A maximum of floats would ignore NaN.
template <bool POSITIVE>
uint32_t max_magnitude_bits(const float* numbers, Size size) {
    typedef int32_t Whole __attribute__((vector_size(4 * WIDTH)));
    const auto larger = [](Whole largest, Wide x) {
        Whole bits;
        if (POSITIVE) x = maximum(x, Wide{});
        std::memcpy(&bits, &x, sizeof bits);
        bits &= 0x7fffffff;
#if defined(__AVX512F__)
        return (Whole)_mm512_max_epi32((__m512i)largest, (__m512i)bits);
#elif defined(__AVX2__)
        return (Whole)_mm256_max_epi32((__m256i)largest, (__m256i)bits);
#else
        return bits > largest ? bits : largest;
#endif
    };
    Whole one{}, other{};
    Size i = 0;
    for (; i + 2 * WIDTH <= size; i += 2 * WIDTH) {
        one = larger(one, load(numbers + i));
        other = larger(other, load(numbers + i + WIDTH));
    }
    for (; i < size; i += WIDTH)
        one = larger(one, i + WIDTH <= size ? load(numbers + i) : load_some(numbers + i, size - i, 0));
    int32_t found = 0;
    for (Size lane = 0; lane < WIDTH; ++lane) found = std::max({found, one[lane], other[lane]});
    return uint32_t(found);
}

// Quantises rows to int8. The scale of a row is max |x| / 127. If the row contains NaN or infinity, its scale is NaN.
// stride: number of levels of a quantised row. POSITIVE: quantises max(x, 0), with zero point 0.
template <bool POSITIVE>
void quantise_rows(const float* numbers, uint8_t* levels, float* scale, Size rows, Size size, Size stride) {
    constexpr int32_t ZERO_POINT = POSITIVE ? 0 : INPUT_ZERO_POINT;
    constexpr bool WITH_SIGNS = SIGNS_APART && !POSITIVE;
    const auto input = [](float number) { return POSITIVE ? std::max(number, 0.0f) : number; };
    for (Size row = 0; row < rows; ++row) {
        const float* own = numbers + row * size;
        uint8_t *levels_of_row = levels + row * row_bytes(stride), *negative = levels_of_row + stride;
        const uint32_t largest_bits = std::max(bits_of(1e-12f), max_magnitude_bits<POSITIVE>(own, size));
        if (largest_bits >= INFINITY_BITS) {
            std::memcpy(&scale[row], &NAN_BITS, sizeof NAN_BITS);
            std::memset(levels_of_row, ZERO_POINT, row_bytes(stride));
            continue;
        }
        float largest;
        std::memcpy(&largest, &largest_bits, sizeof largest);
        scale[row] = largest / 127;
        const float levels_of_one = 127 / largest;
        Size i = 0;
        int32_t missing = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
        // The compiler would generate twice as many instructions.
        __m256i missing_parts = {};
        for (; i + 32 <= size; i += 32) {
            const auto eight = [&](Size first) {
                const Wide x = POSITIVE ? maximum(load(own + i + first), Wide{}) : load(own + i + first);
                // The nearest integer is in the low bits of the sum, and the bits of ROUNDER are added to it.
                return _mm256_sub_epi32((__m256i)(x * levels_of_one + ROUNDER), _mm256_set1_epi32(0x4b400000));
            };
            const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(eight(0), eight(8)),
                                                     _mm256_packs_epi32(eight(16), eight(24)));
            __m256i block = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            if constexpr (WITH_SIGNS) {
                const __m256i signs = _mm256_cmpgt_epi8(__m256i{}, block);
                block = _mm256_abs_epi8(block);
                missing_parts += _mm256_sad_epu8(block & signs, __m256i{});
                std::memcpy(negative + i, &signs, sizeof signs);
            } else if constexpr (ZERO_POINT) {
                block ^= _mm256_set1_epi8(int8_t(ZERO_POINT));
            }
            std::memcpy(levels_of_row + i, &block, sizeof block);
        }
        for (Size part = 0; part < 4; ++part) missing += int32_t(missing_parts[part]);
#endif
        for (; i < size; ++i) {
            const int32_t level = int32_t((input(own[i]) * levels_of_one + ROUNDER) - ROUNDER);
            levels_of_row[i] = uint8_t((WITH_SIGNS ? std::abs(level) : level) + ZERO_POINT);
            if constexpr (WITH_SIGNS) {
                negative[i] = uint8_t(level >> 31);
                missing += std::max(-level, 0);
            }
        }
        std::memset(levels_of_row + size, ZERO_POINT, stride - size);
        if constexpr (WITH_SIGNS) {
            std::memset(negative + size, 0, stride - size);
            std::memcpy(negative + stride, &missing, sizeof missing);
        }
    }
}

// Computes the integer products of ROWS quantised rows with a panel, (ROWS, PANEL). POSITIVE: as in `quantise_rows`.
// groups: if POSITIVE is set, the first inputs of the `number` groups to multiply; the inputs of other groups are 0.
template <Size ROWS, bool POSITIVE>
void panel_sums(const uint8_t* levels, Size stride, const int8_t* panel, const int32_t* groups, Size number,
                int32_t* sums) {
#if defined(VECTOR_PRODUCTS)
    // A single row is multiplied by all weights of a group, which are read from memory in their order.
    constexpr Size SIZE = sizeof(Sums), COUNT = ROWS == 1 ? PANEL * GROUP / SIZE : VECTORS;
    constexpr Size OUTPUTS = COUNT * SIZE / GROUP;
    const auto repeated = [](const uint8_t* group) {
        int32_t bytes;
        std::memcpy(&bytes, group, sizeof bytes);
        return same_group(bytes);
    };
    for (Size first = 0; first < PANEL; first += OUTPUTS) {
        // The loops are unrolled to keep the sums in registers. Otherwise the compiler writes the sums to memory in
        // each iteration.
        Sums totals[ROWS][COUNT], own[COUNT];
#pragma GCC unroll 6
        for (Size row = 0; row < ROWS; ++row)
#pragma GCC unroll 16
            for (Size v = 0; v < COUNT; ++v)
                totals[row][v] =
                    SIGNS_APART && !POSITIVE ? repeated(levels + row * row_bytes(stride) + 2 * stride) : Sums{};
        for (Size n = 0; n < number; ++n) {
            const Size i = POSITIVE ? groups[n] : n * GROUP;
            const int8_t* weights = panel + first * GROUP + i * PANEL;
#pragma GCC unroll 16
            for (Size v = 0; v < COUNT; ++v) std::memcpy(&own[v], weights + v * SIZE, SIZE);
#pragma GCC unroll 6
            for (Size row = 0; row < ROWS; ++row) {
                const uint8_t* group = levels + row * row_bytes(stride) + i;
                const Sums same = repeated(group),
                           flip = SIGNS_APART && !POSITIVE ? repeated(group + stride) : Sums{};
#pragma GCC unroll 16
                for (Size v = 0; v < COUNT; ++v) totals[row][v] = add_products(totals[row][v], same, own[v] ^ flip);
            }
        }
#pragma GCC unroll 6
        for (Size row = 0; row < ROWS; ++row)
#pragma GCC unroll 16
            for (Size v = 0; v < COUNT; ++v)
                std::memcpy(sums + row * PANEL + first + v * SIZE / GROUP, &totals[row][v], SIZE);
    }
#elif defined(__ARM_FEATURE_MATMUL_INT8)
    // A vector contains the sums of two rows and two outputs. If the number of rows is odd, the last one is multiplied
    // twice.
    constexpr Size PAIRS = (ROWS + 1) / 2, OUTPUTS = 2 * VECTORS;
    for (Size first = 0; first < PANEL; first += OUTPUTS) {
        Sums totals[PAIRS][VECTORS] = {};
        for (Size n = 0; n < number; ++n) {
            const Size i = POSITIVE ? groups[n] : n * GROUP;
            const int8_t* weights = panel + first * GROUP + i * PANEL;
            int8x16_t inputs[PAIRS];
#pragma GCC unroll 2
            for (Size pair = 0; pair < PAIRS; ++pair) {
                const uint8_t *one = levels + 2 * pair * stride + i, *other = 2 * pair + 1 < ROWS ? one + stride : one;
                inputs[pair] = vreinterpretq_s8_u8(vcombine_u8(vld1_u8(one), vld1_u8(other)));
            }
#pragma GCC unroll 8
            for (Size v = 0; v < VECTORS; ++v) {
                const int8x16_t own = vld1q_s8(weights + 2 * v * GROUP);
#pragma GCC unroll 2
                for (Size pair = 0; pair < PAIRS; ++pair)
                    totals[pair][v] = vmmlaq_s32(totals[pair][v], inputs[pair], own);
            }
        }
#pragma GCC unroll 2
        for (Size pair = 0; pair < PAIRS; ++pair)
#pragma GCC unroll 8
            for (Size v = 0; v < VECTORS; ++v) {
                int32_t* to = sums + 2 * pair * PANEL + first + 2 * v;
                vst1_s32(to, vget_low_s32(totals[pair][v]));
                if (2 * pair + 1 < ROWS) vst1_s32(to + PANEL, vget_high_s32(totals[pair][v]));
            }
    }
#else
    std::fill_n(sums, ROWS * PANEL, 0);
    for (Size n = 0; n < number; ++n) {
        const Size i = POSITIVE ? groups[n] : n * GROUP;
        const int8_t* weights = panel + i * PANEL;
        for (Size row = 0; row < ROWS; ++row) {
            const uint8_t* group = levels + row * stride + i;
            for (Size output = 0; output < PANEL; ++output)
                for (Size part = 0; part < GROUP; ++part)
                    sums[row * PANEL + output] += int32_t(group[part]) * weights[output * GROUP + part];
        }
    }
#endif
}

// Computes fp32 results of `rows` rows from their integer products with a panel. The first output of the panel is
// `begin`. Rows of the result are `result_stride` elements apart. positive: the inputs have zero point 0.
void scale_sums(const Linear& linear, Size begin, bool positive, const int32_t* sums, const float* input_scale,
                float* result, Size result_stride, Size rows) {
    typedef int32_t Whole __attribute__((vector_size(4 * WIDTH)));
    const Size outputs = std::min(PANEL, linear.outputs - begin);
    const bool shifted = INPUT_ZERO_POINT && !positive;
    Size i = 0;
    for (; i + WIDTH <= outputs; i += WIDTH) {
        Whole offset{}, sum;
        if (shifted) std::memcpy(&offset, linear.offset + begin + i, sizeof offset);
        const Wide scale = load(linear.scale + begin + i), bias = linear.bias ? load(linear.bias + begin + i) : Wide{};
        for (Size row = 0; row < rows; ++row) {
            std::memcpy(&sum, sums + row * PANEL + i, sizeof sum);
            store(__builtin_convertvector(sum - offset, Wide) * input_scale[row] * scale + bias,
                  result + row * result_stride + i);
        }
    }
    for (; i < outputs; ++i)
        for (Size row = 0; row < rows; ++row)
            result[row * result_stride + i] =
                float(sums[row * PANEL + i] - (shifted ? linear.offset[begin + i] : 0)) * input_scale[row] *
                    linear.scale[begin + i] +
                (linear.bias ? linear.bias[begin + i] : 0.0f);
}

#if defined(TILES)
// Maximum number of rows of a tile, and maximum number of bytes of a row.
constexpr Size TILE_ROWS = 16, TILE_BYTES = 64;
// Minimum number of rows for which tiles are used. For fewer rows, vector instructions also read the weights only once,
// and they need no configuration. The value 4 was chosen without measurements.
constexpr Size MIN_TILE_ROWS = 4;

// Asks Linux for permission to use tiles, and returns true if this process has the permission. The permission is
// necessary because Linux must save larger registers for processes that use tiles.
bool tiles_granted() {
#if defined(EMULATE_TILES)
    return true;
#else
    constexpr Size ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    static const bool granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    return granted;
#endif
}

// Tile configuration of this thread, in the processor's format. It is active during the lifetime of the object. Tiles 0
// to 3 contain sums, tile 4 inputs and tile 5 weights. Tile 6 contains the last `last` bytes of each row of inputs, and
// tile 7 their weights. All sizes are configured in advance, because a new configuration clears all tiles.
struct TileSizes {
    uint8_t palette = 1, first_row = 0, nothing[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    TileSizes(Size rows_of_levels, Size last) {
        for (Size tile = 0; tile < 8; ++tile) {
            bytes[tile] = uint16_t(tile == 6 ? last : TILE_BYTES);
            rows[tile] = uint8_t(tile == 5 ? TILE_ROWS : tile == 7 ? last / GROUP : rows_of_levels);
        }
        // Barrier: g++ 12 assumes that the instruction reads only eight bytes.
        __asm__ volatile("" : : "r"(this) : "memory");
        _tile_loadconfig(this);
    }

    ~TileSizes() { _tile_release(); }
};

// Computes the integer products of quantised rows with a panel, (rows, PANEL). The tile configuration determines the
// number of rows. The outputs of a panel are divided into four tiles. Each tile of inputs is multiplied by the weights
// of all four tiles of outputs, so a panel is read only once for up to 16 rows.
void tile_sums(const uint8_t* levels, Size stride, const int8_t* panel, int32_t* sums) {
    constexpr Size BETWEEN_GROUPS = GROUP * PANEL, BETWEEN_SUMS = PANEL * sizeof *sums;
    // Barrier: g++ 12 does not know that loading a tile reads memory.
    __asm__ volatile("" : : "r"(levels) : "memory");
    // This is a macro, because tile numbers must be literals.
#define ADD_PRODUCTS(LEVELS, WEIGHTS)                                     \
    _tile_loadd(LEVELS, levels, stride);                                  \
    _tile_loadd(WEIGHTS, panel, BETWEEN_GROUPS);                          \
    _tile_dpbusd(0, LEVELS, WEIGHTS);                                     \
    _tile_loadd(WEIGHTS, panel + BETWEEN_GROUPS / 4, BETWEEN_GROUPS);     \
    _tile_dpbusd(1, LEVELS, WEIGHTS);                                     \
    _tile_loadd(WEIGHTS, panel + BETWEEN_GROUPS / 2, BETWEEN_GROUPS);     \
    _tile_dpbusd(2, LEVELS, WEIGHTS);                                     \
    _tile_loadd(WEIGHTS, panel + BETWEEN_GROUPS / 4 * 3, BETWEEN_GROUPS); \
    _tile_dpbusd(3, LEVELS, WEIGHTS);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (Size left = stride; left > TILE_BYTES; left -= TILE_BYTES) {
        ADD_PRODUCTS(4, 5)
        levels += TILE_BYTES;
        panel += TILE_BYTES * PANEL;
    }
    ADD_PRODUCTS(6, 7)
#undef ADD_PRODUCTS
    _tile_stored(0, sums, BETWEEN_SUMS);
    _tile_stored(1, sums + PANEL / 4, BETWEEN_SUMS);
    _tile_stored(2, sums + PANEL / 2, BETWEEN_SUMS);
    _tile_stored(3, sums + PANEL / 4 * 3, BETWEEN_SUMS);
}

// Computes the same as `product_of_levels`, with AMX tiles.
void product_in_tiles(const Linear& linear, Size first, Size last, const uint8_t* levels, Size stride, bool positive,
                      const float* input_scale, float* result, Size result_stride, Size rows) {
    // All input tiles have the same number of rows. One configuration is therefore enough.
    const Size tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, size = (rows + tiles - 1) / tiles;
    const TileSizes sizes(size, (stride - 1) % TILE_BYTES + 1);
    alignas(64) int32_t sums[TILE_ROWS * PANEL];
    for (Size begin = first; begin < last; begin += PANEL)
        for (Size tile = 0; tile < tiles; ++tile) {
            const Size row = std::min(tile * size, rows - size);                // the last tile may recompute rows
            tile_sums(levels + row * stride, stride, linear.panels + begin * stride, sums);
            scale_sums(linear, begin, positive, sums, input_scale + row,
                       result + row * result_stride + begin - first, result_stride, size);
        }
}
#endif

// Quantised inputs of matrix products: at most `rows` rows of at most `inputs` elements. After ReLU, the inputs are
// often 0: 85 % in a trained model, and all four of 55 % of the groups. The weights of such groups are
// not read.
struct Levels {
    const Size filled_capacity;
    const std::unique_ptr<uint8_t[]> levels;
    const std::unique_ptr<float[]> scale;
    // Of each TILE rows, the groups with inputs other than 0, and their number. If the inputs are not `positive`,
    // `number` counts all groups.
    const std::unique_ptr<int32_t[]> groups;
    std::vector<Size> number;
    typedef std::conditional_t<GROUP == 8, uint64_t, uint32_t> Group;           // the inputs of a group
    std::vector<Group> any;                                                     // bitwise or of the rows
    Size stride = 0;
    bool positive = false;

    static Size filled(Size inputs) { return (inputs + GROUP - 1) / GROUP * GROUP; }

    Levels(Size rows, Size inputs)
        : filled_capacity(filled(inputs)), levels(allocate<uint8_t>(rows * row_bytes(filled_capacity))),
          scale(allocate<float>(rows)),
          groups(allocate<int32_t>((rows + TILE - 1) / TILE * (filled_capacity / GROUP))),
          number((rows + TILE - 1) / TILE), any(filled_capacity / GROUP) {}

    void quantise(const float* input, Size rows, Size inputs) {
        positive = false, stride = filled(inputs);
        quantise_rows<false>(input, levels.get(), scale.get(), rows, inputs, stride);
        std::fill(number.begin(), number.end(), stride / GROUP);
    }

    // Quantises max(x, 0) for each input x.
    void quantise_relu(const float* input, Size rows, Size inputs) {
        positive = true, stride = filled(inputs);
        quantise_rows<true>(input, levels.get(), scale.get(), rows, inputs, stride);
        for (Size first = 0; first < rows; first += TILE) {
            const uint8_t* of_tile = levels.get() + first * row_bytes(stride);
            const Size tile = std::min(TILE, rows - first), end = stride;       // local: bytes may alias members
            std::memcpy(any.data(), of_tile, end);
            for (Size row = 1; row < tile; ++row) {
                const uint8_t* __restrict own = of_tile + row * row_bytes(end);
                Group* __restrict all = any.data();
                for (Size n = 0; n < end / GROUP; ++n) {
                    Group group;
                    std::memcpy(&group, own + n * GROUP, sizeof group);
                    all[n] |= group;
                }
            }
            const Group* all = any.data();
            int32_t* own = groups_of(first);
            Size count = 0;
            for (Size n = 0; n < end / GROUP; ++n) {
                own[count] = int32_t(n * GROUP);
                count += Size((all[n] | -all[n]) >> (8 * GROUP - 1));            // 1 if not 0; a branch would be slow
            }
            number[first / TILE] = count;
        }
    }

    // Computes outputs `first` (included; the first one of a panel) to `last` (excluded) for the rows in the buffer.
    // Rows of the result are `result_stride` elements apart. A panel stays in a core's cache while all rows use it.
    void multiply(const Linear& linear, Size first, Size last, float* result, Size result_stride, Size rows) const {
#if defined(TILES)
        if (rows >= MIN_TILE_ROWS && tiles_granted()) {
            product_in_tiles(linear, first, last, levels.get(), stride, positive, scale.get(), result, result_stride,
                             rows);
            return;
        }
#endif
        if (positive)
            multiply_panels<true>(linear, first, last, result, result_stride, rows);
        else
            multiply_panels<false>(linear, first, last, result, result_stride, rows);
    }

  private:
    int32_t* groups_of(Size row) const { return groups.get() + row / TILE * (filled_capacity / GROUP); }

    template <bool POSITIVE>
    void multiply_panels(const Linear& linear, Size first, Size last, float* result, Size result_stride,
                         Size rows) const {
        static constexpr decltype(&panel_sums<1, POSITIVE>) of_rows[] = {
            panel_sums<1, POSITIVE>, panel_sums<2, POSITIVE>, panel_sums<3, POSITIVE>,
            panel_sums<4, POSITIVE>, panel_sums<5, POSITIVE>, panel_sums<6, POSITIVE>};
        alignas(64) int32_t sums[TILE * PANEL];
        for (Size begin = first; begin < last; begin += PANEL)
            for (Size row = 0; row < rows; row += TILE) {
                const Size tile = std::min(TILE, rows - row);
                of_rows[tile - 1](levels.get() + row * row_bytes(stride), stride, linear.panels + begin * stride,
                                  groups_of(row), number[row / TILE], sums);
                scale_sums(linear, begin, POSITIVE, sums, scale.get() + row,
                           result + row * result_stride + begin - first, result_stride, tile);
            }
    }
};

#endif

// Applies an activation. Without a gate, `Levels` applies ReLU.
void activate(float* numbers, Size count, Size activation) {
    if (activation == RELU)
        for (Size i = 0; i < count; ++i) numbers[i] = std::max(numbers[i], 0.0f);
    else if (activation == GELU)
        for (Size i = 0; i < count; ++i) numbers[i] *= 0.5f * (1 + std::erf(numbers[i] * SQRT_HALF));
    else
        for (Size i = 0; i < count; i += WIDTH) {
            const Size some = std::min(WIDTH, count - i);
            const Wide x = load_some(numbers + i, some, 0);
            // 1 + tanh(y) = 2 / (1 + exp(-2 y))
            const Wide exponent = activation == SILU ? x : TWICE_ROOT_2_BY_PI * (x + 0.044715f * x * x * x);
            const Wide result = x / (1.0f + exponential(-exponent));
            for (Size lane = 0; lane < some; ++lane) numbers[i + lane] = result[lane];
        }
}

// Activations of rows in a stack. hidden: sum of the residual connections. sublayer_input, output: input and output of
// a sublayer. projected: result of the first linear layer of a sublayer. attended: result of attention, with `features`
// numbers for each row.
struct Activations {
    const Stack& stack;
    const Size d_model, features, head_size;
    Size rows;                                                                  // at most the constructor's `rows`
    const std::unique_ptr<float[]> hidden, sublayer_input, output, projected, attended;
    Levels levels;

    Activations(const Stack& stack, Size rows)
        : stack(stack), d_model(stack.d_model), features(stack.heads * stack.head_size), head_size(stack.head_size),
          rows(rows), hidden(allocate<float>(rows * d_model)), sublayer_input(allocate<float>(rows * d_model)),
          output(allocate<float>(rows * d_model)),
          projected(allocate<float>(rows * std::max(3 * features, (1 + stack.gated) * stack.feed_forward))),
          attended(allocate<float>(rows * features)),
          levels(rows, std::max({d_model, features, stack.feed_forward})) {}

    void embed(Size row, int64_t token, Size position) {
        const float *embedded = stack.embedding + token * d_model, *encoding = stack.positions + position * d_model;
        for (Size i = 0; i < d_model; ++i) hidden[row * d_model + i] = embedded[i] * stack.embedding_scale + encoding[i];
    }

    // Computes the input of the first sublayer. The caller has called `embed` for every row.
    void begin() {
        std::fill_n(output.get(), rows * d_model, 0.0f);                        // no sublayer output to add yet
        if (const Norm& norm = stack.embedding_norm; norm.gain)
            add_and_norm(hidden.get(), output.get(), norm, sublayer_input.get(), hidden.get(), rows, d_model);
        std::copy_n(hidden.get(), rows * d_model, sublayer_input.get());
        if (stack.pre_norm) finish_sublayer(stack.first);
    }

    void multiply(const Linear& linear, const float* input, float* result) {
        levels.quantise(input, rows, linear.inputs);
        levels.multiply(linear, 0, linear.outputs, result, linear.outputs, rows);
    }

    void project(const Linear& linear) { multiply(linear, sublayer_input.get(), projected.get()); }

    // Adds the output of a sublayer to `hidden` and computes the input of the next sublayer.
    void finish_sublayer(const Norm& norm) {
        add_and_norm(hidden.get(), output.get(), norm, hidden.get(), sublayer_input.get(), rows, d_model);
        if (!stack.pre_norm) std::copy_n(sublayer_input.get(), rows * d_model, hidden.get());
    }

    // Applies the output projection to `attended`, which the caller has filled, and finishes the sublayer.
    void finish_attention(const Linear& out, const Norm& norm) {
        multiply(out, attended.get(), output.get());
        finish_sublayer(norm);
    }

    // Multiplies the hidden units in `projected` by their activated gates, which precede them in each row.
    void apply_gates() {
        const Size units = stack.feed_forward;
        for (Size row = 0; row < rows; ++row) {
            float *gates = projected.get() + row * 2 * units, *result = projected.get() + row * units;
            activate(gates, units, stack.activation);
            for (Size i = 0; i < units; ++i) result[i] = gates[i] * gates[units + i];
        }
    }

    void feed_forward(const Layer& layer) {
        project(layer.inner);
        if (stack.gated) {
            apply_gates();
            multiply(layer.outer, projected.get(), output.get());
        } else if (stack.activation == RELU) {
            levels.quantise_relu(projected.get(), rows, stack.feed_forward);
            levels.multiply(layer.outer, 0, d_model, output.get(), d_model, rows);
        } else {
            activate(projected.get(), rows * stack.feed_forward, stack.activation);
            multiply(layer.outer, projected.get(), output.get());
        }
        finish_sublayer(layer.norms[2]);
    }
};

// Computes self-attention of each row over its own past, see `attend_own`. With a window, a row attends only to the
// last window + 1 of its cache rows.
void attend_recent(const Activations& rows, const Stored* cache, const int32_t* past, Size past_stride,
                   const int32_t* length) {
    const Size features = rows.features, heads = rows.stack.heads, window = rows.stack.window;
    if (window < 0) {
        attend_own(rows.projected.get(), 3 * features, cache, past, past_stride, length, rows.attended.get(), rows.rows,
                   heads, rows.head_size, rows.stack.relative);
        return;
    }
    for (Size row = 0; row < rows.rows; ++row) {
        const int32_t keys = int32_t(std::min<Size>(length[row], window + 1));
        attend_own(rows.projected.get() + row * 3 * features, 3 * features, cache,
                   past + row * past_stride + length[row] - keys, past_stride, &keys,
                   rows.attended.get() + row * features, 1, heads, rows.head_size, rows.stack.relative);
    }
}

// Encodes a block of whole sentences: sentences `begin` (included) to `end` (excluded). Writes keys and values of
// cross-attention for each decoder layer, (layers, all tokens, 2 * features), in the layout of `transpose_keys`; layers
// are memory_stride elements apart. offsets: index of the first token of each sentence, then the number of tokens.
void encode(const Stack& encoder, const int64_t* tokens, const int32_t* offsets, Stored* memory, Size memory_stride,
            Size begin, Size end) {
    const Size first_token = offsets[begin], number_of_tokens = offsets[end] - first_token, window = encoder.window;
    Activations rows(encoder, number_of_tokens);
    const Size features = rows.features;
    std::vector<int32_t> first(number_of_tokens), count(number_of_tokens), every(window < 0 ? 0 : number_of_tokens);
    for (Size sentence = begin, row = 0; sentence < end; ++sentence)
        for (Size token = offsets[sentence]; token < offsets[sentence + 1]; ++token, ++row) {
            rows.embed(row, tokens[token], token - offsets[sentence]);
            first[row] = int32_t(offsets[sentence] - first_token);
            count[row] = offsets[sentence + 1] - offsets[sentence];
        }
    rows.begin();
    const auto transpose_all_keys = [&](const float* keys_values, Size stride, Stored* blocks) {
        for (Size token = 0; token < number_of_tokens; token += count[token])
            transpose_keys(keys_values + token * stride, stride, blocks + token * 2 * features, count[token], features);
    };
    for (Size token = 0; token < Size(every.size()); ++token) every[token] = int32_t(token);
    const auto own = allocate<Stored>(number_of_tokens * 2 * features + WIDTH);
    const auto attend_to_window = [&](const float* projected) {
        for (Size token = 0; token < number_of_tokens; ++token)
            convert_to_stored(projected + (3 * token + 1) * features, &own[token * 2 * features], 2 * features);
        for (Size token = 0; token < number_of_tokens; ++token) {
            const Size from = std::max<Size>(first[token], token - window),
                       to = std::min<Size>(first[token] + count[token], token + window + 1);
            const int32_t keys = int32_t(to - from);
            attend_own(projected + 3 * token * features, 3 * features, own.get(), &every[from], 0, &keys,
                       &rows.attended[token * features], 1, encoder.heads, rows.head_size, encoder.relative,
                       to - 1 - token);
        }
    };
    for (Size number = 0; number < encoder.number_of_layers; ++number) {
        const Layer& layer = encoder.layers[number];
        rows.project(layer.query_key_value);
        if (window < 0) {
            transpose_all_keys(rows.projected.get() + features, 3 * features, own.get());
            attend_sources(rows.projected.get(), 3 * features, own.get(), first.data(), count.data(),
                           rows.attended.get(), number_of_tokens, encoder.heads, rows.head_size, encoder.relative);
        } else {
            attend_to_window(rows.projected.get());
        }
        rows.finish_attention(layer.output, layer.norms[0]);
        rows.feed_forward(layer);
    }
    for (Size number = 0; number < encoder.number_of_last; ++number) {
        rows.project(encoder.last[number]);
        transpose_all_keys(rows.projected.get(), 2 * features,
                           memory + number * memory_stride + first_token * 2 * features);
    }
}

// Input of a decoder step.
//
// Row r reads its token at position length[r] - 1. The cache of layer l begins at cache + l * layer_stride.
// past[r * past_stride], … are the length[r] cache rows to which row r attends. The step writes the keys and values of
// row r into the last of these cache rows. The memory of layer l begins at memory + l * memory_stride. Row r attends to
// count[r] source tokens of the memory, beginning at token first[r].
struct StepInput {
    const int64_t* tokens;
    Stored* cache;
    Size layer_stride;
    const int32_t* past;
    Size past_stride;
    const int32_t* length;
    const Stored* memory;
    Size memory_stride;
    const int32_t *first, *count;
};

// Computes a decoder step of rows.rows rows, from row `begin` of the input. The result is in `rows.sublayer_input`; the
// output layer reads it. The keys and values of all these rows are written before one of them attends to its past.
// ends_at(layer) is called when rows.projected contains the queries of a layer's cross-attention; if it returns true,
// the step ends there.
template <class EndsAt>
void step(Activations& rows, const StepInput& input, Size begin, EndsAt ends_at) {
    const Stack& decoder = rows.stack;
    const Size features = rows.features;
    const int32_t *past = input.past + begin * input.past_stride, *length = input.length + begin;
    for (Size row = 0; row < rows.rows; ++row) rows.embed(row, input.tokens[begin + row], length[row] - 1);
    rows.begin();
    for (Size number = 0; number < decoder.number_of_layers; ++number) {
        const Layer& layer = decoder.layers[number];
        Stored* cache = input.cache + number * input.layer_stride;
        rows.project(layer.query_key_value);
        for (Size row = 0; row < rows.rows; ++row)
            convert_to_stored(rows.projected.get() + (3 * row + 1) * features,
                            cache + past[row * input.past_stride + length[row] - 1] * 2 * features, 2 * features);
        attend_recent(rows, cache, past, input.past_stride, length);
        rows.finish_attention(layer.output, layer.norms[0]);
        rows.project(layer.query);
        if (ends_at(number)) return;
        attend_sources(rows.projected.get(), features, input.memory + number * input.memory_stride, input.first + begin,
                       input.count + begin, rows.attended.get(), rows.rows, decoder.heads, rows.head_size);
        rows.finish_attention(layer.source_output, layer.norms[1]);
        rows.feed_forward(layer);
    }
}

// Computes the attention weights of each row over its source sentence. Arguments: as in `attend_sources`. Calls
// receive(row, head, terms, scale): the weight of source token n is terms[n] * scale.
template <class Receive>
void weigh_sources(const float* query, const Stored* memory, const int32_t* first, const int32_t* count, Size rows,
                   Size heads, Size size, Receive receive) {
    const float factor = 1 / std::sqrt(float(size));
    std::vector<float> terms;
    for (Size row = 0; row < rows; ++row) {
        terms.resize(count[row] + WIDTH);
        for (Size head = 0; head < heads; ++head, query += size) {
            const Stored* keys = memory + (first[row] * 2 * heads + head * count[row]) * size;
            for (Size begin = 0; begin < count[row]; begin += WIDTH) {
                Wide sum = {};
                for (Size i = 0; i < size; ++i) sum += broadcast(query[i]) * load(keys + i * count[row] + begin);
                store(sum * factor, &terms[begin]);
            }
            receive(row, head, terms.data(), softmax_terms(terms.data(), count[row]));
        }
    }
}

// Divides `rows` rows among the threads, in blocks whose size is a multiple of TILE and at most MAX_BLOCK_ROWS. Calls
// work(begin, count) for the blocks in parallel.
template <class Work>
void in_parallel_blocks(Size rows, int threads, Work work) {
    const Size even = (rows + threads - 1) / threads;
    const Size size = std::clamp((even + TILE - 1) / TILE * TILE, TILE, MAX_BLOCK_ROWS);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (rows > MAX_SERIAL_ROWS)
    for (Size begin = 0; begin < rows; begin += size) work(begin, std::min(size, rows - begin));
}

// Groups successive sentences into blocks of about MAX_BLOCK_ROWS tokens, whose activations fit into a core's cache.
// Calls work(begin, end) for the sentences of the blocks in parallel. offsets: index of each sentence's first token,
// then the number of tokens.
template <class Work>
void in_blocks_of_sentences(const int32_t* offsets, Size sentences, int threads, Work work) {
    std::vector<Size> begins = {0};
    for (Size sentence = 1; sentence < sentences; ++sentence)
        if (offsets[sentence + 1] / MAX_BLOCK_ROWS != offsets[sentence] / MAX_BLOCK_ROWS) begins.push_back(sentence);
    const Size blocks = Size(begins.size());
    begins.push_back(sentences);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (blocks > 1)
    for (Size block = 0; block < blocks; ++block) work(begins[block], begins[block + 1]);
}

// Continuation of hypothesis number `beam` of a group by `word`. Here, "word" means a target token. total: log p of the
// hypothesis with this word.
struct Continuation {
    float total;
    int32_t beam, word;
};

constexpr Continuation NONE = {LOG_ZERO, 0, 0};

// Inserts a continuation into `best`, the sorted list of the `count` best continuations so far. Initially, all elements
// of the list are NONE.
inline void insert(Continuation* best, Size count, Continuation one) {
    Size rank = count - 1;
    if (!(one.total > best[rank].total)) return;
    for (; rank > 0 && best[rank - 1].total < one.total; --rank) best[rank] = best[rank - 1];
    best[rank] = one;
}

// Number of words in a block of the vocabulary. The logits of a block fit into a core's cache.
constexpr Size VOCABULARY_BLOCK = 16 * PANEL;

// Sum of exp(logit - reference).
inline float sum_of_exponentials(const float* logits, Size count, float reference) {
    return sum_of_terms(logits, count, 2 * LOG_ZERO, [=](Wide logits) { return exponential(logits - reference); });
}

// Top-k with log-softmax in one pass over the logits. The caller adds the logits of one block of the vocabulary after
// the other. The fields describe the words added so far for each row. largest: the maximum logit. sum: the sum of
// exp(logit - largest). end: the logit of `</s>`. best: the best words, with their logits as totals.
struct BestWords {
    const Size count;                                                           // number of best words for each row
    const bool skip_log_softmax;                                                // logits are scores
    std::vector<float> largest, sum, end;
    std::vector<Continuation> best;

    BestWords(Size rows, Size count, bool skip_log_softmax = false)
        : count(count), skip_log_softmax(skip_log_softmax), largest(rows), sum(rows), end(rows), best(rows * count) {}

    void begin() {
        std::fill(largest.begin(), largest.end(), LOG_ZERO);
        std::fill(sum.begin(), sum.end(), 0.0f);
        std::fill(best.begin(), best.end(), NONE);
    }

    // Adds the logits of words `first` (included) to `last` (excluded). Overwrites the logits of banned words.
    void add_logits(Size row, float* logits, Size first, Size last, const int64_t* banned, Size number_banned) {
        Wide of_panel[VOCABULARY_BLOCK / PANEL], of_all = broadcast(LOG_ZERO);
        for (Size begin = first; begin < last; begin += PANEL) {
            Wide& found = of_panel[(begin - first) / PANEL];
            found = max_by_lane(logits + begin - first, std::min(PANEL, last - begin));
            of_all = maximum(of_all, found);
        }
        if (!skip_log_softmax) {
            const float block_maximum = max_of(of_all);
            if (block_maximum > largest[row]) {
                sum[row] *= std::exp(largest[row] - block_maximum);
                largest[row] = block_maximum;
            }
            sum[row] += sum_of_exponentials(logits, last - first, largest[row]);
        }
        if (first <= END && END < last) end[row] = logits[END - first];
        for (Size i = 0; i < number_banned; ++i)
            if (first <= banned[i] && banned[i] < last) logits[banned[i] - first] = 2 * LOG_ZERO;
        Continuation* own = &best[row * count];
        for (Size begin = first; begin < last; begin += PANEL) {
            if (!above(of_panel[(begin - first) / PANEL], own[count - 1].total)) continue;
            Size i = begin;
            for (; i + WIDTH <= std::min(begin + PANEL, last); i += WIDTH)
                for (uint32_t lanes = above(load(logits + i - first), own[count - 1].total); lanes; lanes &= lanes - 1) {
                    const Size word = i + __builtin_ctz(lanes);
                    insert(own, count, {logits[word - first], 0, int32_t(word)});
                }
            for (; i < std::min(begin + PANEL, last); ++i) insert(own, count, {logits[i - first], 0, int32_t(i)});
        }
    }

    // Computes the best `count` continuations of a group of `beam` hypotheses. The group begins at row `first`. before:
    // log p of the hypotheses. must_end: only `</s>` may follow.
    void topk(Size first, Size beam, const float* before, bool must_end, Continuation* result) const {
        std::fill_n(result, count, NONE);
        for (Size hypothesis = 0; hypothesis < beam; ++hypothesis) {
            const Size row = first + hypothesis;
            const float past =
                skip_log_softmax ? before[hypothesis] : before[hypothesis] - (largest[row] + std::log(sum[row]));
            if (must_end) {
                insert(result, count, {past + end[row], int32_t(hypothesis), int32_t(END)});
                continue;
            }
            const Continuation* own = &best[row * count];
            for (Size rank = 0; rank < count && own[rank].total > LOG_ZERO; ++rank)
                insert(result, count, {past + own[rank].total, int32_t(hypothesis), own[rank].word});
        }
    }
};

// Log-sum-exp of the logits of a row.
float log_sum_exp(const float* logits, Size words) {
    const float largest = max_of(max_by_lane(logits, words));
    if (LOG_ZERO < largest && largest < INFINITY)
        return largest + std::log(sum_of_exponentials(logits, words, largest));
    float sum = 0;                                                              // -inf, infinity or NaN
    for (Size word = 0; word < words; ++word) sum += std::exp(logits[word]);
    return std::log(sum);
}

// Samples a word by inverting the cumulative distribution, as `sample_tokens` and `truncate` in search/sampling.py do.
// A sampler is used for one row after the other.
//
// weights: of each word, the probability divided by the largest one; 0 for words of negligible probability. sums: the
// sums of the weights of each panel of words.
struct Sampler {
    const Size words;
    const float temperature, log_min_p;
    const Size top_k;
    const double top_p;
    std::vector<float> weights, sums;
    std::vector<Size> candidates;

    Sampler(Size words, float temperature, Size top_k, double top_p, double min_p)
        : words(words), temperature(temperature), log_min_p(float(std::log(min_p))),
          top_k(0 < top_k && top_k < words ? top_k : 0), top_p(top_p), weights(words),
          sums((words + PANEL - 1) / PANEL) {}

    // number: random number in [0, 1). If no word has a probability, or the logits contain NaN, the result is 0.
    Size sample(const float* logits, double number) {
        const float largest = max_of(max_by_lane(logits, words)) / temperature;
        const Wide least = exponential(broadcast(-INFINITY));
        const auto weigh = [&](Wide some) {
            return maximum(exponential(some / temperature - largest) - least, broadcast(0.0f));
        };
        double total = 0;
        for (Size begin = 0; begin < words; begin += PANEL) {
            const Size end = std::min(begin + PANEL, words);
            Wide sum = {};
            for (Size i = begin; i < end; i += WIDTH) {
                const bool whole = i + WIDTH <= end;
                const Wide some = weigh(whole ? load(logits + i) : load_some(logits + i, end - i, 2 * LOG_ZERO));
                if (whole) {
                    store(some, &weights[i]);
                } else {
                    for (Size rest = i; rest < end; ++rest) weights[rest] = some[rest - i];
                }
                sum += some;
            }
            total += sums[begin / PANEL] = sum_of(sum);
        }
        if (!(0 < total && total < INFINITY)) return 0;
        const auto is_kept = [&](Size word) { return !(logits[word] / temperature < largest + log_min_p); };
        if (!top_k && !(top_p < 1) && log_min_p == -INFINITY) return invert(number * total);
        candidates.clear();
        if (top_k || top_p < 1) {
            truncate(total);
            candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                            [&](Size word) { return !is_kept(word); }), candidates.end());
            std::sort(candidates.begin(), candidates.end());
        } else {
            for (Size word = 0; word < words; ++word)
                if (is_kept(word)) candidates.push_back(word);
        }
        double kept = 0, sum = 0;
        for (const Size word : candidates) kept += weights[word];
        for (const Size word : candidates)
            if ((sum += weights[word]) > number * kept) return word;
        return candidates.back();
    }

   private:
    // Finds the candidates that top-k and top-p keep. total: sum of all weights.
    void truncate(double total) {
        // More than `limit` is the weight of words that both may keep: the best k words have at least the k-th largest
        // maximum of a panel, and all words below the limit together have a probability below 1 - p.
        float limit = top_k ? 0.0f : float(0.9 * (1 - top_p) * total / words);
        if (top_k && top_k < Size(sums.size())) {
            for (Size begin = 0; begin < words; begin += PANEL)
                sums[begin / PANEL] = max_of(max_by_lane(&weights[begin], std::min(PANEL, words - begin)));
            std::nth_element(sums.begin(), sums.begin() + top_k - 1, sums.end(), std::greater<float>());
            limit = std::nextafter(sums[top_k - 1], 0.0f);
        }
        for (Size begin = 0, i; begin < words; begin += WIDTH) {
            if (begin + WIDTH <= words) {
                for (uint32_t lanes = above(load(&weights[begin]), limit); lanes; lanes &= lanes - 1)
                    candidates.push_back(begin + __builtin_ctz(lanes));
            } else {
                for (i = begin; i < words; ++i)
                    if (weights[i] > limit) candidates.push_back(i);
            }
        }
        // The heap gives the candidates in order of their weights; of equals, the smallest word first.
        const auto comes_later = [&](Size one, Size other) {
            return weights[one] != weights[other] ? weights[one] < weights[other] : one > other;
        };
        auto rest = candidates.end();
        std::make_heap(candidates.begin(), rest, comes_later);
        if (top_k) {
            const Size count = std::min<Size>(top_k, candidates.size());
            for (Size i = 0; i < count; ++i) std::pop_heap(candidates.begin(), rest--, comes_later);
            std::rotate(candidates.begin(), rest, candidates.end());
            candidates.resize(count);
            total = 0;
            for (const Size word : candidates) total += weights[word];
            std::make_heap(candidates.begin(), rest = candidates.end(), comes_later);
        }
        if (!(top_p < 1)) return;
        double sum = 0;
        do {
            std::pop_heap(candidates.begin(), rest--, comes_later);
            sum += weights[*rest] / total;
        } while (rest != candidates.begin() && sum < top_p);                   // the words so far do not suffice
        candidates.erase(candidates.begin(), rest);
    }

    // Returns the first word up to which the weights of all words sum to more than the threshold.
    Size invert(double threshold) const {
        double sum = 0;
        Size panel = 0, found = 0;
        while (panel + 1 < Size(sums.size()) && sum + sums[panel] <= threshold) sum += sums[panel++];
        for (Size word = panel * PANEL; word < std::min(panel * PANEL + PANEL, words); ++word) {
            // Rounding may bring the sum below that of the panel; then the last possible word of it is chosen.
            if (weights[word] > 0) found = word;
            if ((sum += weights[word]) > threshold) return word;
        }
        return found;
    }
};

// Arguments of the function `search`; its comment describes them.
struct Search {
    const Stack& decoder;
    const Stored* memory;
    Size memory_stride;
    const int32_t *first, *count;
    const int64_t* limits;
    Size sentences, beam, finished_per_group;
    const int64_t* banned;
    Size number_banned, max_finished, longest;
    int64_t* finished;
    float* totals;
    int32_t *lengths, *tokens;
    const int64_t* source;
    const int32_t *shortlist, *shortlist_offsets;
    Size words_per_token;
    int64_t start, first_word;
};

// Sentence number `number`, whose search has begun, with `width` hypotheses of `length` words. slot: index of its block
// of cache rows.
struct Sentence {
    Size number, slot, length, width;
};

// Hypotheses by row. words: all words of each hypothesis. past: cache row of each position. last: last word. totals:
// log p.
struct Hypotheses {
    Size longest, rows = 0;
    std::vector<int32_t> words, past;
    std::vector<int64_t> last;
    std::vector<float> totals;

    Hypotheses(Size capacity, Size longest)
        : longest(longest), words(capacity * longest), past(capacity * longest), last(capacity), totals(capacity) {}

    void add(int64_t word, float total) {
        last[rows] = word;
        totals[rows++] = total;
    }

    // Adds the hypothesis in row `parent` of `others`, continued by a word.
    void add_longer(const Hypotheses& others, Size parent, Size length, int32_t word, float total) {
        std::copy_n(&others.words[parent * longest], length, &words[rows * longest]);
        std::copy_n(&others.past[parent * longest], length + 1, &past[rows * longest]);
        words[rows * longest + length] = word;
        add(word, total);
    }
};

// Output layer of the sentences that are searched together. With shortlists, it has the weights of the words in the
// shortlists of all these sentences. A sentence is searched with the words of its own shortlist, so that its result does
// not depend on the other sentences.
struct OutputLayer {
    static constexpr Size CACHE_LINE = 64;                                      // in bytes

    // Shortlist of a sentence, ascending. outputs: index of each word in `words`. banned: indices of banned words in
    // `outputs`.
    struct Shortlist {
        std::vector<int32_t> outputs;
        std::vector<int64_t> banned;
    };

    const Search& search;
    const Linear& all;
    Linear linear;                                                              // the output layer
    std::vector<int32_t> words, output_of;
    std::vector<Shortlist> by_slot;
    std::vector<uint8_t> is_banned, listed;
    std::vector<Weight> panels;
    std::vector<float> scale, bias;
    std::vector<int32_t> offset;

    OutputLayer(const Search& search, Size slots) : search(search), all(*search.decoder.last), linear(all) {
        if (!search.shortlist) return;
        by_slot.resize(slots);
        output_of.resize(all.outputs);
        is_banned.resize(all.outputs);
        for (Size i = 0; i < search.number_banned; ++i) is_banned[search.banned[i]] = 1;
    }

    // Calls use(word) for the words of a sentence's shortlist, more than once for some words. The words up to `</s>`
    // are in every shortlist. Therefore END is the index of `</s>` in a shortlist, too.
    template <class Use>
    void for_each_word(const Sentence& one, Use use) const {
        for (int32_t word = 0; word <= END; ++word) use(word);
        const int64_t* tokens = search.source + search.first[one.number];
        for (Size i = 0; i < search.count[one.number]; ++i) {
            const int32_t begin = search.shortlist_offsets[tokens[i]], end = search.shortlist_offsets[tokens[i] + 1];
            const Size count = tokens[i] == END ? end - begin : std::min<Size>(end - begin, search.words_per_token);
            std::for_each(search.shortlist + begin, search.shortlist + begin + count, use);
        }
    }

    // Makes the output layer of some sentences.
    void select(const std::vector<Sentence>& sentences) {
        listed.assign(all.outputs, 0);
        for (const Sentence& one : sentences) for_each_word(one, [&](int32_t word) { listed[word] = 1; });
        words.resize(all.outputs);
        Size outputs = 0;
        for (int32_t word = 0; word < all.outputs; outputs += listed[word++]) {   // without branches
            output_of[word] = int32_t(outputs);
            words[outputs] = word;
        }
        words.resize(outputs);
        for (const Sentence& one : sentences) {
            Shortlist& own = by_slot[one.slot];
            own.outputs.clear();
            own.banned.clear();
            listed.assign(words.size(), 0);
            for_each_word(one, [&](int32_t word) { listed[output_of[word]] = 1; });
            for (int32_t output = 0; output < outputs; ++output) {
                if (!listed[output]) continue;
                if (is_banned[words[output]]) own.banned.push_back(int64_t(own.outputs.size()));
                own.outputs.push_back(output);
            }
        }
        const Size stride = Levels::filled(all.inputs);
        panels.resize((outputs + PANEL - 1) / PANEL * PANEL * stride + CACHE_LINE);
        Weight* aligned = panels.data();
        while (uintptr_t(aligned) % CACHE_LINE) ++aligned;
        scale.resize(outputs);
        offset.resize(outputs);
        bias.resize(outputs);
        for (Size output = 0; output < outputs; ++output) {
            const Size word = words[output];
            for (Size i = 0; i < stride; i += GROUP)
                std::memcpy(aligned + weight_index(output, i, stride), all.panels + weight_index(word, i, stride),
                            GROUP * sizeof(Weight));
            if (all.scale) scale[output] = all.scale[word], offset[output] = all.offset[word];   // null in fp32
            if (all.bias) bias[output] = all.bias[word];
        }
        linear = {aligned, scale.data(), offset.data(), all.bias ? bias.data() : nullptr, all.inputs, outputs};
    }

    // Adds the logits of a sentence's row to its best words. The logits are those of outputs `first` (included) to
    // `last` (excluded).
    void add_logits(BestWords& best_words, Size row, Size slot, float* logits, Size first, Size last) const {
        if (!search.shortlist) {
            best_words.add_logits(row, logits, first, last, search.banned, search.number_banned);
            return;
        }
        const Shortlist& own = by_slot[slot];
        const auto index_of = [&](Size output) {
            return std::lower_bound(own.outputs.begin(), own.outputs.end(), output) - own.outputs.begin();
        };
        const Size begin = index_of(first), end = index_of(last);
        // The logits of the sentence's outputs are moved to the front. No logit moves backwards.
        if (end - begin < last - first)
            for (Size i = begin; i < end; ++i) logits[i - begin] = logits[own.outputs[i] - first];
        best_words.add_logits(row, logits, begin, end, own.banned.data(), Size(own.banned.size()));
    }

    // Returns the id of the word with an index that `add_logits` has given to `best_words`.
    int32_t word(Size slot, int32_t index) const {
        return search.shortlist ? words[by_slot[slot].outputs[index]] : index;
    }
};

// Maximum size of a thread's KV cache in bytes. If the cache of a single sentence is larger, it is allocated anyway.
constexpr Size MAX_CACHE_BYTES = 256 << 20;

// Searches the sentences whose indices next_sentence() returns, until it returns -1. At most `max_sentences` sentences
// are searched together. The next sentence immediately replaces a finished one, to keep the number of rows large. With
// shortlists, sentences are replaced when a quarter of them is finished, because the output layer is then made anew.
template <class NextSentence>
void search_batch(const Search& search, Size max_sentences, NextSentence next_sentence) {
    const Size features = search.decoder.heads * search.decoder.head_size, candidates = 2 * search.beam;
    const Size layers = search.decoder.number_of_layers, slot_rows = search.longest * search.beam;
    const Size slot_bytes = layers * slot_rows * 2 * features * sizeof(Stored);
    max_sentences = std::clamp(MAX_CACHE_BYTES / slot_bytes, Size(1), max_sentences);
    const Size capacity = max_sentences * search.beam, layer_stride = max_sentences * slot_rows * 2 * features;
    const auto cache = allocate<Stored>(layers * layer_stride);
    const auto logits = allocate<float>(capacity * VOCABULARY_BLOCK);
    Activations rows(search.decoder, capacity);
    BestWords best_words(capacity, candidates);
    std::vector<Continuation> best(candidates);
    Hypotheses now(capacity, search.longest), after(capacity, search.longest);
    std::vector<int32_t> length(capacity), first(capacity), count(capacity);
    std::vector<Sentence> searched, remaining;
    std::vector<Size> slots, unfinished;
    for (Size slot = max_sentences - 1; slot >= 0; --slot) slots.push_back(slot);
    OutputLayer output(search, max_sentences);
    const Size min_slots = search.shortlist ? (max_sentences + 3) / 4 : 1;
    for (;;) {
        const bool adds = Size(slots.size()) >= min_slots;
        const size_t before = searched.size();
        for (Size number; adds && !slots.empty() && (number = next_sentence()) >= 0; slots.pop_back()) {
            searched.push_back({number, slots.back(), 0, 1});
            now.add(search.start, 0.0f);
        }
        if (searched.empty()) return;
        if (search.shortlist && searched.size() > before) output.select(searched);
        Size row = 0;
        for (const Sentence& one : searched)
            for (Size hypothesis = 0; hypothesis < one.width; ++hypothesis, ++row) {
                now.past[row * search.longest + one.length] =
                    int32_t(one.slot * slot_rows + one.length * search.beam + hypothesis);
                length[row] = int32_t(one.length + 1);
                first[row] = search.first[one.number];
                count[row] = search.count[one.number];
            }
        rows.rows = now.rows;
        const StepInput input = {now.last.data(), cache.get(),   layer_stride,         now.past.data(), search.longest,
                                 length.data(),   search.memory, search.memory_stride, first.data(),    count.data()};
        step(rows, input, 0, [](Size) { return false; });
        rows.levels.quantise(rows.sublayer_input.get(), rows.rows, rows.d_model);
        best_words.begin();
        for (Size begin = 0; begin < output.linear.outputs; begin += VOCABULARY_BLOCK) {
            const Size end = std::min(begin + VOCABULARY_BLOCK, output.linear.outputs);
            rows.levels.multiply(output.linear, begin, end, logits.get(), VOCABULARY_BLOCK, rows.rows);
            row = 0;
            for (const Sentence& one : searched)
                for (Size hypothesis = 0; hypothesis < one.width; ++hypothesis, ++row)
                    output.add_logits(best_words, row, one.slot, &logits[row * VOCABULARY_BLOCK], begin, end);
        }
        row = 0;
        remaining.clear();
        after.rows = 0;
        for (const Sentence& one : searched) {
            const bool must_end = search.limits[one.number] <= one.length + 1;
            const bool is_given = search.first_word >= 0 && one.length == 0 && !must_end;
            if (is_given) {
                std::fill(best.begin(), best.end(), NONE);
                best[0] = {0, 0, int32_t(search.first_word)};
            } else {
                best_words.topk(row, one.width, &now.totals[row], must_end, best.data());
            }
            int64_t& finished = search.finished[one.number];
            for (Size rank = 0; rank < search.beam; ++rank) {
                if (best[rank].word != END || !(best[rank].total > LOG_ZERO)) continue;
                const Size index = one.number * search.max_finished + finished++;
                search.totals[index] = best[rank].total;
                search.lengths[index] = int32_t(one.length);
                std::copy_n(&now.words[(row + best[rank].beam) * search.longest], one.length,
                            search.tokens + index * search.longest);
            }
            unfinished.clear();
            for (Size rank = 0; rank < candidates && Size(unfinished.size()) < search.beam; ++rank)
                if (best[rank].word != END && best[rank].total > LOG_ZERO) unfinished.push_back(rank);
            if (finished >= search.finished_per_group || unfinished.empty()) {
                slots.push_back(one.slot);
            } else {
                remaining.push_back({one.number, one.slot, one.length + 1, search.beam});
                for (Size hypothesis = 0; hypothesis < search.beam; ++hypothesis) {
                    // If too few hypotheses remain, copies of the first one with log p = -inf fill the beam.
                    const bool exists = hypothesis < Size(unfinished.size());
                    const Continuation& next = best[unfinished[exists ? hypothesis : 0]];
                    after.add_longer(now, row + next.beam, one.length,
                                     is_given ? next.word : output.word(one.slot, next.word),
                                     exists ? next.total : -INFINITY);
                }
            }
            row += one.width;
        }
        std::swap(now, after);
        std::swap(searched, remaining);
    }
}

}  // namespace

extern "C" {

// Callers allocate weights, keys and values.
Size group_size() { return GROUP; }
Size weight_bytes() { return sizeof(Weight); }
Size stored_bytes() { return sizeof(Stored); }

// Returns the flags of the processor that libraries for x86-64 need, with the names of Linux (kernel_library.py).
const char* processor_flags() {
    static const std::string flags = [] {
        std::string found;
#if defined(__x86_64__)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx2")) found += "avx2 ";
        if (__builtin_cpu_supports("fma")) found += "fma ";
        if (__builtin_cpu_supports("avx512f")) found += "avx512f ";
        if (__builtin_cpu_supports("avx512bw")) found += "avx512bw ";
        if (__builtin_cpu_supports("avx512dq")) found += "avx512dq ";
        if (__builtin_cpu_supports("avx512vl")) found += "avx512vl ";
        if (__builtin_cpu_supports("avx512vnni")) found += "avx512_vnni ";
#endif
        return found;
    }();
    return flags.c_str();
}

void topk(float* logits, const float* totals, Size groups, Size beam, Size words, const int64_t* banned,
          Size number_banned, const bool* must_end, bool skip_log_softmax, float* best_totals, int64_t* beams,
          int64_t* ids, Size count, int threads) {
#pragma omp parallel for num_threads(threads) if (groups * beam > MAX_SERIAL_ROWS)
    for (Size group = 0; group < groups; ++group) {
        BestWords best_words(beam, count, skip_log_softmax);
        best_words.begin();
        for (Size row = 0; row < beam; ++row)
            for (Size begin = 0; begin < words; begin += VOCABULARY_BLOCK)
                best_words.add_logits(row, logits + (group * beam + row) * words + begin, begin,
                                      std::min(begin + VOCABULARY_BLOCK, words), banned, number_banned);
        std::vector<Continuation> best(count);
        best_words.topk(0, beam, totals + group * beam, must_end && must_end[group], best.data());
        for (Size rank = 0; rank < count; ++rank) {
            best_totals[group * count + rank] = best[rank].total > LOG_ZERO ? best[rank].total : -INFINITY;
            beams[group * count + rank] = best[rank].beam;
            ids[group * count + rank] = best[rank].word;
        }
    }
}

// Writes the log-sum-exp of each row.
void log_sum_exp(const float* logits, float* result, Size rows, Size words, int threads) {
#pragma omp parallel for num_threads(threads) if (rows > MAX_SERIAL_ROWS)
    for (Size row = 0; row < rows; ++row) result[row] = log_sum_exp(logits + row * words, words);
}

// Samples a word for each row. The other arguments: see `Sampler`.
void sample(const float* logits, const double* numbers, int64_t* sampled, Size rows, Size words, float temperature,
            Size top_k, double top_p, double min_p, int threads) {
#pragma omp parallel num_threads(threads) if (rows > MAX_SERIAL_ROWS)
    {
        Sampler sampler(words, temperature, top_k, top_p, min_p);
#pragma omp for
        for (Size row = 0; row < rows; ++row) sampled[row] = sampler.sample(logits + row * words, numbers[row]);
    }
}

// Only tests call the next four functions.

void add_and_norm(const float* hidden, const float* output, const Norm* norm, float* sum, float* normed, Size rows,
                  Size size) {
    add_and_norm(hidden, output, *norm, sum, normed, rows, size);
}

void attend_past(const float* query, Size query_stride, const Stored* cache, const int32_t* past, Size past_stride,
                 const int32_t* length, float* result, Size rows, Size heads, Size size) {
    attend_own(query, query_stride, cache, past, past_stride, length, result, rows, heads, size);
}

void attend_source(const float* query, Size query_stride, const Stored* memory, const int32_t* first,
                   const int32_t* count, float* result, Size rows, Size heads, Size size) {
    attend_sources(query, query_stride, memory, first, count, result, rows, heads, size);
}

void product(const Linear* linear, const float* input, float* result, Size rows, bool relu, int threads) {
    in_parallel_blocks(rows, threads, [&](Size begin, Size count) {
        Levels levels(count, linear->inputs);
        const float* own = input + begin * linear->inputs;
        relu ? levels.quantise_relu(own, count, linear->inputs) : levels.quantise(own, count, linear->inputs);
        levels.multiply(*linear, 0, linear->outputs, result + begin * linear->outputs, linear->outputs, count);
    });
}

// Returns the number of bytes of the packed weights of a linear layer.
Size packed_size(Size outputs, Size inputs) { return (outputs + PANEL - 1) / PANEL * PANEL * Levels::filled(inputs); }

// Writes a weight matrix, (outputs, inputs), in the layout of `Linear`. In int8, quantises it, with a scale for each
// output. A row that contains NaN or infinity gets a scale that is not finite.
void pack(const float* weights, Size outputs, Size inputs, Weight* panels, float* scale, int32_t* offset) {
    const Size stride = Levels::filled(inputs);
#if defined(FLOAT32)
    (void)scale, (void)offset;
    for (Size output = 0; output < (outputs + PANEL - 1) / PANEL * PANEL; ++output)
        for (Size i = 0; i < inputs; ++i)
            panels[weight_index(output, i, stride)] = output < outputs ? weights[output * inputs + i] : 0;
#else
    std::vector<int8_t> levels(stride);
    for (Size output = 0; output < (outputs + PANEL - 1) / PANEL * PANEL; ++output) {
        int8_t* packed = panels + output / PANEL * PANEL * stride + output % PANEL * GROUP;
        if (output < outputs) {
            const float* own = weights + output * inputs;
            uint32_t largest_bits = bits_of(1e-12f);                            // see `quantise_rows`
            for (Size i = 0; i < inputs; ++i) largest_bits = std::max(largest_bits, bits_of(own[i]) & 0x7fffffff);
            float largest;
            std::memcpy(&largest, &largest_bits, sizeof largest);
            const float step = scale[output] = largest / 127;
            int32_t sum = 0;
            const bool finite = largest_bits < INFINITY_BITS;
            for (Size i = 0; finite && i < inputs; ++i) {
                const int32_t level = int32_t((own[i] / step + ROUNDER) - ROUNDER);
                levels[i] = int8_t(level);
                sum += level;
            }
            if (!finite) std::fill(levels.begin(), levels.end(), int8_t(0));
            offset[output] = int32_t(INPUT_ZERO_POINT) * sum;
        } else {
            std::fill(levels.begin(), levels.end(), int8_t(0));
        }
        for (Size i = 0; i < stride; i += GROUP) std::memcpy(packed + i * PANEL, &levels[i], GROUP);
    }
#endif
}

// Encodes sentences. tokens, offsets: the source, as in `Stepwise.start`. memory: output, see the other `encode`.
void encode(const Stack* encoder, const int64_t* tokens, const int32_t* offsets, Size sentences, Stored* memory,
            Size memory_stride, int threads) {
    in_blocks_of_sentences(offsets, sentences, threads, [&](Size begin, Size end) {
        encode(*encoder, tokens, offsets, memory, memory_stride, begin, end);
    });
}

// attention: (rows, attention_stride), filled with zeros, to which the attention weights of the last layer are added,
// the mean over its heads; or null.
void step(const Stack* decoder, const int64_t* tokens, Stored* cache, Size layer_stride, const int32_t* past,
          Size past_stride, const int32_t* length, const Stored* memory, Size memory_stride, const int32_t* first,
          const int32_t* count, float* logits, float* attention, Size attention_stride, Size rows, int threads) {
    const StepInput input = {tokens, cache,  layer_stride,  past,  past_stride,
                             length, memory, memory_stride, first, count};
    const Size last = decoder->number_of_layers - 1;
    in_parallel_blocks(rows, threads, [&](Size begin, Size number) {
        Activations part(*decoder, number);
        step(part, input, begin, [&](Size layer) {
            if (attention && layer == last)
                weigh_sources(part.projected.get(), memory + layer * memory_stride, first + begin, count + begin,
                              number, decoder->heads, part.head_size,
                              [&](Size row, Size, const float* terms, float scale) {
                                  float* own = attention + (begin + row) * attention_stride;
                                  for (Size n = 0; n < count[begin + row]; ++n)
                                      own[n] += terms[n] * (scale / decoder->heads);
                              });
            return false;
        });
        part.multiply(*decoder->last, part.sublayer_input.get(), logits + begin * decoder->last->outputs);
    });
}

// Computes cross-attention of decoder layer number `layer`, from 0, for given targets (teacher forcing).
//
// tokens, target_offsets: the input of the decoder: for each sentence the start symbol and its target without `</s>`.
// source_offsets: of the sentences in `memory`, see `StepInput`. weights: output; the weights of a sentence, (heads,
// target tokens, source tokens), begin at weights + weight_offsets[sentence].
void cross_attention(const Stack* decoder, const int64_t* tokens, const int32_t* target_offsets, Size sentences,
                     const Stored* memory, Size memory_stride, const int32_t* source_offsets, Size layer,
                     float* weights, const int64_t* weight_offsets, int threads) {
    in_blocks_of_sentences(target_offsets, sentences, threads, [&](Size begin, Size end) {
        const Size first_row = target_offsets[begin], rows = target_offsets[end] - first_row;
        Activations part(*decoder, rows);
        // Each target token is a row. Its past is a part of `every`: its sentence up to itself. A row reads the cache
        // of a layer only while this layer is computed, so all layers share one cache.
        const auto cache = allocate<Stored>(rows * 2 * part.features);
        std::vector<int32_t> past, length(rows), first(rows), count(rows);
        std::vector<Size> sentence_of(rows);
        Size longest = 0;
        for (Size sentence = begin; sentence < end; ++sentence)
            longest = std::max<Size>(longest, target_offsets[sentence + 1] - target_offsets[sentence]);
        past.resize(rows * longest);
        for (Size sentence = begin, row = 0; sentence < end; ++sentence)
            for (Size token = target_offsets[sentence]; token < target_offsets[sentence + 1]; ++token, ++row) {
                length[row] = int32_t(token - target_offsets[sentence] + 1);
                for (Size n = 0; n < length[row]; ++n)
                    past[row * longest + n] = int32_t(target_offsets[sentence] - first_row + n);
                sentence_of[row] = sentence;
                first[row] = source_offsets[sentence];
                count[row] = source_offsets[sentence + 1] - source_offsets[sentence];
            }
        const StepInput input = {tokens + first_row, cache.get(), 0,            past.data(),  longest,
                                 length.data(),      memory,      memory_stride, first.data(), count.data()};
        step(part, input, 0, [&](Size number) {
            if (number == layer)
                weigh_sources(part.projected.get(), memory + layer * memory_stride, first.data(), count.data(), rows,
                              decoder->heads, part.head_size,
                              [&](Size row, Size head, const float* terms, float scale) {
                                  const Size sentence = sentence_of[row],
                                             targets = target_offsets[sentence + 1] - target_offsets[sentence];
                                  float* own = weights + weight_offsets[sentence] +
                                               (head * targets + length[row] - 1) * count[row];
                                  for (Size n = 0; n < count[row]; ++n) own[n] = terms[n] * scale;
                              });
            return number == layer;
        });
    });
}

// Does the same beam search as `search` in search/beam.py without hooks. Writes the finished hypotheses of each
// sentence in the order in which they ended.
//
// Outputs: finished: (sentences,), number of finished hypotheses of each sentence. totals: (sentences, max_finished),
// log p. lengths: (sentences, max_finished), number of words without `</s>`. tokens: (sentences, max_finished,
// longest), words.
//
// Inputs: finished_per_group: number of finished hypotheses with which a sentence is finished. limits: maximum length of
// each target, `</s>` included. memory: as in `StepInput`. first, count: (sentences,), first source token and number of
// source tokens of each sentence. source: the source tokens. shortlist: for each source token, the words that translate
// it, in order of preference; those of token t begin at shortlist + shortlist_offsets[t] and end where those of t + 1
// begin. A translation has only words among the first `words_per_token` of each of its tokens, among all of `</s>`, which
// closes every sentence, and `</s>`. A null pointer: all words. start: token that the decoder reads first. first_word:
// word with which each hypothesis of at least one word begins, with log p = 0; -1: there is none.
void search(const Stack* decoder, const Stored* memory, Size memory_stride, const int32_t* first,
            const int32_t* count, const int64_t* limits, Size sentences, Size beam, Size finished_per_group,
            const int64_t* banned, Size number_banned, Size max_finished, Size longest, int64_t* finished,
            float* totals, int32_t* lengths, int32_t* tokens, const int64_t* source, const int32_t* shortlist,
            const int32_t* shortlist_offsets, Size words_per_token, int64_t start, int64_t first_word, int threads) {
    const Search search = {*decoder, memory,        memory_stride, first,   count,    limits, sentences, beam,
                           finished_per_group, banned, number_banned, max_finished, longest, finished, totals,
                           lengths,  tokens,        source,  shortlist, shortlist_offsets, words_per_token,
                           start,    first_word};
    std::fill_n(finished, sentences, 0);
    const Size parts = sentences * beam > MAX_SERIAL_ROWS ? std::min<Size>(threads, sentences) : 1;
    const Size most = std::max(Size(1), MAX_BLOCK_ROWS / beam);
    const Size max_sentences = std::clamp((sentences + parts - 1) / parts, Size(1), most);
    std::atomic<Size> next{0};
#pragma omp parallel num_threads(int(parts)) if (parts > 1)
    search_batch(search, max_sentences, [&] {
        const Size number = next++;
        return number < sentences ? number : -1;
    });
}

}  // extern "C"
