// Transformer inference in int8: the encoder, a decoder step, beam search and top-k, each in one call.
//
// Mostly plain loops that the compiler vectorises for the processor at hand; explicit vectors where it would not.
// kernel_library.py compiles this file, kernel_interface.py has the signatures. Weights and inputs of matrix products
// are int8, the KV cache is bf16, everything else is fp32.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#if defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif
// TILES: use AMX, whose tile registers hold rows of bytes. Tests emulate it. clang++ 14 has its own name for the macro.
#if defined(EMULATE_TILES)
#include "tiles_emulated.h"
#define TILES
#elif (defined(__AMX_INT8__) || defined(__AMXINT8__)) && defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define TILES
#endif

namespace {

// Python fills these structures field by field (kernel_interface.py).

struct Norm {
    const float *gain, *shift;
    float epsilon;
};

// Linear layer, (inputs) -> (outputs). panels: int8 weights, see `panel_sums`. scale: of each output's weights. offset:
// contribution of the inputs' zero point to each output's sum.
struct Linear {
    const int8_t* panels;
    const float* scale;
    const int32_t* offset;
    const float* bias;
    long inputs, outputs;
};

// Layer of the encoder or the decoder. norms: those that follow the residual sums. An encoder layer has no `query`,
// `source_output` and second norm.
struct Layer {
    Linear query_key_value, output, query, source_output, inner, outer;
    Norm norms[3];
};

// first: norm before the first sublayer of a pre-norm model. last: of the encoder, projections to the keys and values
// of each decoder layer's cross-attention; of the decoder, the output layer.
struct Stack {
    const Layer* layers;
    long number_of_layers, d_model, heads, feed_forward, pre_norm, activation;
    Norm first;
    const Linear* last;
    long number_of_last;
};

enum Activation { RELU, GELU, SILU };

// Up to this many rows, waking threads costs more than it gains.
constexpr long MANY_ROWS = 32;
// Largest number of rows that one thread takes through all layers at once: their activations fit into a core's cache.
constexpr long TOGETHER = 96;

// log 0: finite, so that sums with it are, too.
constexpr float LEAST = -1e38f;
// Adding and subtracting it rounds a number below 2^22 to the nearest integer, ties to even, in two vector instructions
// that every processor has.
constexpr float ROUNDER = 12582912.0f;
// Ids of `</s>` and of the start symbol, as in tokenizer.py.
constexpr int64_t END = 2, START = 1;

// Uninitialised array.
template <class T>
std::unique_ptr<T[]> room_for(long count) {
    return std::unique_ptr<T[]>(new T[count]);
}

// Elements of the processor's vectors. The compiler splits longer ones, for some operations into single elements.
#if defined(__AVX512F__)
constexpr long WIDTH = 16;
#elif defined(__AVX__)
constexpr long WIDTH = 8;
#else
constexpr long WIDTH = 4;
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
#else
    typedef float Four __attribute__((vector_size(16)));
    Four parts[WIDTH / 4];
    std::memcpy(parts, &numbers, sizeof parts);
    for (long part = 1; part < WIDTH / 4; ++part) parts[0] += parts[part];
    return (parts[0][0] + parts[0][1]) + (parts[0][2] + parts[0][3]);
#endif
}

inline Wide all(float number) { return Wide{} + number; }

// Loads fewer than WIDTH numbers, followed by `rest`.
inline Wide load_some(const float* from, long count, float rest) {
    float numbers[WIDTH];
    std::fill_n(numbers, WIDTH, rest);
    std::copy_n(from, count, numbers);
    return load(numbers);
}

// Maximum and minimum; `one` if either is NaN. One instruction each, which compilers do not generate by themselves.
#if defined(__AVX512F__)
inline Wide larger(Wide one, Wide other) { return (Wide)_mm512_max_ps((__m512)other, (__m512)one); }
inline Wide smaller(Wide one, Wide other) { return (Wide)_mm512_min_ps((__m512)other, (__m512)one); }
#elif defined(__AVX__)
inline Wide larger(Wide one, Wide other) { return (Wide)_mm256_max_ps((__m256)other, (__m256)one); }
inline Wide smaller(Wide one, Wide other) { return (Wide)_mm256_min_ps((__m256)other, (__m256)one); }
#else
inline Wide larger(Wide one, Wide other) { return other > one ? other : one; }
inline Wide smaller(Wide one, Wide other) { return other < one ? other : one; }
#endif

// exp as 2^whole * 2^rest, the latter by its Taylor series; relative error at most 5e-7. The argument is clamped to
// +-87; NaN gives NaN.
inline Wide exponential(Wide number) {
    [[maybe_unused]] typedef int32_t Whole __attribute__((vector_size(4 * WIDTH)));
    const float LOG2_E = 1.44269504f, LN_2_HIGH = 0.693359375f, LN_2_LOW = -2.12194440e-4f;
    const Wide x = smaller(larger(number, all(-87.0f)), all(87.0f));
    const Wide whole = (x * LOG2_E + ROUNDER) - ROUNDER;
    const Wide rest = (x - whole * LN_2_HIGH) - whole * LN_2_LOW;
    Wide power = all(1 / 720.0f);
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

// Sum of term(x) over some numbers x, in several partial sums, because the compiler may not reorder additions.
// `nothing` is a number whose term is 0.
template <class Term>
inline float sum_of_terms(const float* numbers, long count, float nothing, Term term) {
    Wide sums = {}, others = {};
    long i = 0;
    for (; i + 2 * WIDTH <= count; i += 2 * WIDTH) {
        sums += term(load(numbers + i));
        others += term(load(numbers + i + WIDTH));
    }
    for (; i < count; i += WIDTH)
        sums += term(i + WIDTH <= count ? load(numbers + i) : load_some(numbers + i, count - i, nothing));
    return sum_of(sums + others);
}

inline float largest_in(Wide numbers) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)numbers);
#else
    float found = numbers[0];
    for (long lane = 1; lane < WIDTH; ++lane) found = std::max(found, numbers[lane]);
    return found;
#endif
}

// Maximum of some numbers in each lane, at least LEAST; NaN is ignored.
inline Wide largest_by_lane(const float* numbers, long count) {
    Wide parts[4] = {all(LEAST), all(LEAST), all(LEAST), all(LEAST)};           // four independent dependency chains
    long i = 0;
    for (; i + 4 * WIDTH <= count; i += 4 * WIDTH)
        for (long part = 0; part < 4; ++part) parts[part] = larger(parts[part], load(numbers + i + part * WIDTH));
    for (; i < count; i += WIDTH)
        parts[0] = larger(parts[0],
                          i + WIDTH <= count ? load(numbers + i) : load_some(numbers + i, count - i, LEAST));
    return larger(larger(parts[0], parts[1]), larger(parts[2], parts[3]));
}

// Bit mask of the numbers above a limit, with the first number in the lowest bit.
inline uint32_t above(Wide numbers, float limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)numbers, _mm512_set1_ps(limit), _CMP_GT_OQ);
#elif defined(__AVX__)
    return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps((__m256)numbers, _mm256_set1_ps(limit), _CMP_GT_OQ)));
#else
    uint32_t lanes = 0;
    for (long lane = 0; lane < WIDTH; ++lane) lanes |= uint32_t(numbers[lane] > limit) << lane;
    return lanes;
#endif
}

// sum = hidden + output; normed = layer norm of `sum`. `sum` may be `hidden`.
void add_and_norm(const float* hidden, const float* output, const Norm& norm, float* sum, float* normed, long rows,
                  long size) {
    for (long row = 0; row < rows; ++row) {
        const float *before = hidden + row * size, *added = output + row * size;
        float *total = sum + row * size, *result = normed + row * size;
        for (long i = 0; i < size; ++i) total[i] = before[i] + added[i];
        const float mean = sum_of_terms(total, size, 0, [](Wide number) { return number; }) / size;
        const float variance =
            sum_of_terms(total, size, mean, [=](Wide number) { return (number - mean) * (number - mean); });
        const float scale = 1 / std::sqrt(variance / size + norm.epsilon);
        for (long i = 0; i < size; ++i) result[i] = (total[i] - mean) * scale * norm.gain[i] + norm.shift[i];
    }
}

// Keys and values are bf16: half the bytes of fp32, and still finer than the int8 of the products.
typedef uint16_t Brief;

inline Wide load(const Brief* from) {
    typedef Brief Brevity __attribute__((vector_size(2 * WIDTH)));
    typedef uint32_t Bits __attribute__((vector_size(4 * WIDTH)));
    Brevity brief;
    std::memcpy(&brief, from, sizeof brief);
    const Bits bits = __builtin_convertvector(brief, Bits) << 16;
    Wide numbers;
    std::memcpy(&numbers, &bits, sizeof numbers);
    return numbers;
}

inline float number_of(Brief brief) {
    const uint32_t bits = uint32_t(brief) << 16;
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

inline uint32_t bits_of(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

constexpr uint32_t INFINITE = 0x7f800000, NO_NUMBER = 0x7fc00000;

// Rounds to the nearest, ties to even; NaN stays NaN.
inline Brief brief_of(float number) {
    const uint32_t bits = bits_of(number), rounded = bits + 0x7fff + (bits >> 16 & 1);
    return Brief(((bits & 0x7fffffff) > INFINITE ? bits | NO_NUMBER : rounded) >> 16);
}

void shorten(const float* numbers, Brief* brief, long count) {
    for (long i = 0; i < count; ++i) brief[i] = brief_of(numbers[i]);
}

// Writes keys and values of a source sentence in the layout that attention reads: first the keys, (features, count),
// then the values, (count, features). With transposed keys, the scores of WIDTH keys are computed in one vector.
// Attention reads up to WIDTH elements beyond the keys. A row of `keys_values` holds a token's keys of all heads, then
// its values.
void lay_out(const float* keys_values, long stride, Brief* block, long count, long features) {
    Brief* values = block + count * features;
    for (long token = 0; token < count; ++token, keys_values += stride) {
        for (long i = 0; i < features; ++i) block[i * count + token] = brief_of(keys_values[i]);
        shorten(keys_values + features, values + token * features, features);
    }
}

// Replaces `count` scores by exp(score - maximum) and returns 1 / their sum. `scores` has room for whole vectors.
float softmax_terms(float* scores, long count) {
    const float largest = largest_in(largest_by_lane(scores, count));
    const long filled = (count + WIDTH - 1) / WIDTH * WIDTH;
    std::fill(scores + count, scores + filled, 2 * LEAST);
    Wide totals = {};
    for (long begin = 0; begin < filled; begin += WIDTH) {
        const Wide powers = exponential(load(scores + begin) - largest);
        store(powers, scores + begin);
        totals += powers;
    }
    return 1 / sum_of(totals);
}

// Blocking of attention, such that the sums stay in registers: QUERIES rows that share their keys, COLUMNS vectors of a
// head's columns for each of them.
#if defined(__AVX512F__)
constexpr long QUERIES = 6, COLUMNS = 4, PARTIAL_SUMS = 4;
#else
constexpr long QUERIES = 4, COLUMNS = 2, PARTIAL_SUMS = 2;
#endif

// Sum of COUNT vectors of the values at value(0), value(1), …, weighted by each row's terms and scaled. The terms of
// successive rows are `filled` elements apart.
template <long ROWS, long COUNT, class Value>
inline void weigh_columns(const float* terms, long filled, const float* scale, long keys, Value value, float* result,
                          long result_stride) {
    Wide sums[ROWS][COUNT];
#pragma GCC unroll 6
    for (long row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (long column = 0; column < COUNT; ++column) sums[row][column] = Wide{};
    for (long n = 0; n < keys; ++n) {
        const Brief* from = value(n);
        Wide values[COUNT];
#pragma GCC unroll 4
        for (long column = 0; column < COUNT; ++column) values[column] = load(from + column * WIDTH);
#pragma GCC unroll 6
        for (long row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
            for (long column = 0; column < COUNT; ++column)
                sums[row][column] += all(terms[row * filled + n]) * values[column];
    }
#pragma GCC unroll 6
    for (long row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (long column = 0; column < COUNT; ++column)
            store(sums[row][column] * scale[row], result + row * result_stride + column * WIDTH);
}

// Weighted sum of a head's values, `size` elements for each key.
template <long ROWS, class Value>
inline void weigh(const float* terms, long filled, const float* scale, long keys, Value value, long size, float* result,
                  long result_stride) {
    long begin = 0;
    for (; begin + COLUMNS * WIDTH <= size; begin += COLUMNS * WIDTH)
        weigh_columns<ROWS, COLUMNS>(terms, filled, scale, keys, [=](long n) { return value(n) + begin; },
                                     result + begin, result_stride);
    for (; begin + WIDTH <= size; begin += WIDTH)
        weigh_columns<ROWS, 1>(terms, filled, scale, keys, [=](long n) { return value(n) + begin; }, result + begin,
                               result_stride);
    for (; begin < size; ++begin)
        for (long row = 0; row < ROWS; ++row) {
            float sum = 0;
            for (long n = 0; n < keys; ++n) sum += terms[row * filled + n] * number_of(value(n)[begin]);
            result[row * result_stride + begin] = sum * scale[row];
        }
}

// Attention of ROWS rows over the same source sentence. block: see `lay_out`. terms: room for ROWS rows of whole
// vectors.
template <long ROWS>
void attend_together(const float* query, long query_stride, const Brief* block, long count, float* result, long heads,
                     long size, float* terms) {
    const long features = heads * size, filled = (count + WIDTH - 1) / WIDTH * WIDTH;
    const float factor = 1 / std::sqrt(float(size));
    for (long head = 0; head < heads; ++head) {
        const float* own = query + head * size;
        for (long begin = 0; begin < count; begin += WIDTH) {
            const Brief* keys = block + head * size * count + begin;
            // Partial sums, because each addition to a sum waits for the one before.
            Wide sums[ROWS][PARTIAL_SUMS];
#pragma GCC unroll 6
            for (long row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
                for (long part = 0; part < PARTIAL_SUMS; ++part) sums[row][part] = Wide{};
            long i = 0;
            for (; i + PARTIAL_SUMS <= size; i += PARTIAL_SUMS)
#pragma GCC unroll 4
                for (long part = 0; part < PARTIAL_SUMS; ++part) {
                    const Wide key = load(keys + (i + part) * count);
#pragma GCC unroll 6
                    for (long row = 0; row < ROWS; ++row)
                        sums[row][part] += all(own[row * query_stride + i + part]) * key;
                }
            for (; i < size; ++i) {
                const Wide key = load(keys + i * count);
#pragma GCC unroll 6
                for (long row = 0; row < ROWS; ++row) sums[row][0] += all(own[row * query_stride + i]) * key;
            }
#pragma GCC unroll 6
            for (long row = 0; row < ROWS; ++row) {
                Wide sum = sums[row][0];
#pragma GCC unroll 4
                for (long part = 1; part < PARTIAL_SUMS; ++part) sum += sums[row][part];
                store(sum * factor, terms + row * filled + begin);
            }
        }
        float scale[ROWS];
        for (long row = 0; row < ROWS; ++row) scale[row] = softmax_terms(terms + row * filled, count);
        const Brief* values = block + count * features + head * size;
        weigh<ROWS>(terms, filled, scale, count, [=](long n) { return values + n * features; }, size,
                    result + head * size, features);
    }
}

// Attention of each row over its source sentence: count[row] tokens from token first[row] of `memory` on. Successive
// rows of the same sentence are computed together, with the same results as one by one.
void attend_sources(const float* query, long query_stride, const Brief* memory, const int32_t* first, const int32_t* count,
                   float* result, long rows, long heads, long size) {
    static constexpr decltype(&attend_together<1>) of_rows[] = {
        attend_together<1>, attend_together<2>, attend_together<3>, attend_together<4>,
#if defined(__AVX512F__)
        attend_together<5>, attend_together<6>,
#endif
    };
    static_assert(sizeof of_rows / sizeof *of_rows == QUERIES, "one for each number of rows");
    const long features = heads * size;
    std::vector<float> terms;
    for (long row = 0, together; row < rows; row += together) {
        for (together = 1; together < QUERIES && row + together < rows && first[row + together] == first[row] &&
                           count[row + together] == count[row];)
            ++together;
        terms.resize(QUERIES * (count[row] + WIDTH));
        of_rows[together - 1](query + row * query_stride, query_stride, memory + first[row] * 2 * features, count[row],
                              result + row * features, heads, size, terms.data());
    }
}

// Attention of each row over its own past: the length[row] cache rows whose indices begin at past + row * past_stride.
// A cache row holds the keys of all heads, then the values.
void attend_own(const float* query, long query_stride, const Brief* cache, const int32_t* past, long past_stride,
                 const int32_t* length, float* result, long rows, long heads, long size) {
    const long features = heads * size, whole = size / WIDTH * WIDTH;
    const float factor = 1 / std::sqrt(float(size));
    std::vector<float> terms;
    std::vector<const Brief*> places;
    for (long row = 0; row < rows; ++row, query += query_stride, past += past_stride, result += features) {
        const long keys = length[row], filled = (keys + WIDTH - 1) / WIDTH * WIDTH;
        terms.resize(heads * filled);
        places.resize(keys);
        for (long n = 0; n < keys; ++n) {
            const Brief* key = places[n] = cache + 2 * features * past[n];
            for (long i = 0; i < features; i += 64 / long(sizeof *key)) __builtin_prefetch(key + features + i);
            for (long head = 0; head < heads; ++head, key += size) {
                const float* own = query + head * size;
                Wide products = {};
                for (long i = 0; i < whole; i += WIDTH) products += load(own + i) * load(key + i);
                float score = sum_of(products);
                for (long i = whole; i < size; ++i) score += own[i] * number_of(key[i]);
                terms[head * filled + n] = score * factor;
            }
        }
        for (long head = 0; head < heads; ++head) {
            float* own = terms.data() + head * filled;
            const float scale = softmax_terms(own, keys);
            const long column = features + head * size;
            weigh<1>(own, filled, &scale, keys, [&](long n) { return places[n] + column; }, size, result + head * size,
                     features);
        }
    }
}

// Layout of int8 weights: panels of PANEL outputs; within a panel, for each GROUP of inputs, the weights of the first
// output, of the second, …. Sizes are padded with zeros.
constexpr long PANEL = 64, GROUP = 4;

// Quantised inputs, -127 to 127, are stored with the zero point ZERO_LEVEL added if the instruction needs unsigned
// bytes; `offset` holds its contribution to each output's sum. add_products adds to each int32 of `sums` the products
// of a group of inputs and weights. TILE rows are multiplied with VECTORS vectors of weights at once, so that the sums
// fill the processor's registers.
#if defined(__AVX512VNNI__)
typedef __m512i Sums;
#define VECTOR_PRODUCTS
constexpr long TILE = 6, VECTORS = 4, ZERO_LEVEL = 128;
inline Sums same_group(int32_t levels) { return _mm512_set1_epi32(levels); }
inline Sums add_products(Sums sums, Sums levels, Sums weights) { return _mm512_dpbusd_epi32(sums, levels, weights); }
#elif defined(__AVXVNNI__)
typedef __m256i Sums;
#define VECTOR_PRODUCTS
constexpr long TILE = 3, VECTORS = 4, ZERO_LEVEL = 128;
inline Sums same_group(int32_t levels) { return _mm256_set1_epi32(levels); }
inline Sums add_products(Sums sums, Sums levels, Sums weights) { return _mm256_dpbusd_avx_epi32(sums, levels, weights); }
#elif defined(__AVX2__) && !defined(TILES)
typedef __m256i Sums;
#define VECTOR_PRODUCTS
constexpr long TILE = 4, VECTORS = 2, ZERO_LEVEL = 0;
inline Sums same_group(int32_t levels) { return _mm256_set1_epi32(levels); }
inline Sums add_products(Sums sums, Sums levels, Sums weights) {
    // |input| times weight with the input's sign: then the sum of two products fits into an int16.
    const Sums pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(levels), _mm256_sign_epi8(weights, levels));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#else
constexpr long TILE = 6, ZERO_LEVEL = 128;
#endif

// Quantises rows to int8 with a scale of max |x| / 127 for each row; `stride`: bytes of a quantised row.
void quantise(const float* numbers, uint8_t* levels, float* scale, long rows, long size, long stride) {
    for (long row = 0; row < rows; ++row) {
        const float* own = numbers + row * size;
        uint8_t* levels_of_row = levels + row * stride;
        // Bit patterns of non-negative floats have the order of the numbers, with NaN last, which a comparison of
        // floats would lose. The compiler also vectorises the maximum of integers.
        uint32_t largest_bits = bits_of(1e-12f);
        for (long i = 0; i < size; ++i) largest_bits = std::max(largest_bits, bits_of(own[i]) & 0x7fffffff);
        if (largest_bits >= INFINITE) {
            std::memcpy(&scale[row], &NO_NUMBER, sizeof NO_NUMBER);
            std::memset(levels_of_row, ZERO_LEVEL, stride);
            continue;
        }
        float largest;
        std::memcpy(&largest, &largest_bits, sizeof largest);
        scale[row] = largest / 127;
        const float levels_of_one = 127 / largest;
        for (long i = 0; i < size; ++i)
            levels_of_row[i] =
                uint8_t(int32_t((own[i] * levels_of_one + ROUNDER) - ROUNDER) + int32_t(ZERO_LEVEL));
        std::memset(levels_of_row + size, ZERO_LEVEL, stride - size);
    }
}

// Integer sums of ROWS quantised rows with a panel, (ROWS, PANEL).
template <long ROWS>
void panel_sums(const uint8_t* levels, long stride, const int8_t* panel, int32_t* sums) {
#if defined(VECTOR_PRODUCTS)
    constexpr long SIZE = sizeof(Sums), OUTPUTS = VECTORS * SIZE / GROUP;
    for (long first = 0; first < PANEL; first += OUTPUTS) {
        // The loops are unrolled to keep the sums in registers; otherwise the compiler stores them in each iteration.
        Sums totals[ROWS][VECTORS], own[VECTORS];
#pragma GCC unroll 6
        for (long row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
            for (long v = 0; v < VECTORS; ++v) totals[row][v] = Sums{};
        const int8_t* weights = panel + first * GROUP;
        for (long i = 0; i < stride; i += GROUP, weights += GROUP * PANEL) {
#pragma GCC unroll 4
            for (long v = 0; v < VECTORS; ++v) std::memcpy(&own[v], weights + v * SIZE, SIZE);
#pragma GCC unroll 6
            for (long row = 0; row < ROWS; ++row) {
                int32_t group;
                std::memcpy(&group, levels + row * stride + i, sizeof group);
                const Sums same = same_group(group);
#pragma GCC unroll 4
                for (long v = 0; v < VECTORS; ++v) totals[row][v] = add_products(totals[row][v], same, own[v]);
            }
        }
#pragma GCC unroll 6
        for (long row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
            for (long v = 0; v < VECTORS; ++v)
                std::memcpy(sums + row * PANEL + first + v * SIZE / GROUP, &totals[row][v], SIZE);
    }
#else
    std::fill_n(sums, ROWS * PANEL, 0);
    for (long i = 0; i < stride; i += GROUP, panel += GROUP * PANEL)
        for (long row = 0; row < ROWS; ++row) {
            const uint8_t* group = levels + row * stride + i;
            for (long output = 0; output < PANEL; ++output)
                for (long part = 0; part < GROUP; ++part)
                    sums[row * PANEL + output] += int32_t(group[part]) * panel[output * GROUP + part];
        }
#endif
}

// Results of `rows` rows in fp32, from their sums with the panel of output `begin`. Rows of the result are
// `result_stride` elements apart.
void scale_sums(const Linear& linear, long begin, const int32_t* sums, const float* input_scale, float* result,
                long result_stride, long rows) {
    typedef int32_t Whole __attribute__((vector_size(4 * WIDTH)));
    const long outputs = std::min(PANEL, linear.outputs - begin);
    long i = 0;
    for (; i + WIDTH <= outputs; i += WIDTH) {
        Whole offset{}, sum;
        if (ZERO_LEVEL) std::memcpy(&offset, linear.offset + begin + i, sizeof offset);
        const Wide scale = load(linear.scale + begin + i), bias = linear.bias ? load(linear.bias + begin + i) : Wide{};
        for (long row = 0; row < rows; ++row) {
            std::memcpy(&sum, sums + row * PANEL + i, sizeof sum);
            store(__builtin_convertvector(sum - offset, Wide) * input_scale[row] * scale + bias,
                  result + row * result_stride + i);
        }
    }
    for (; i < outputs; ++i)
        for (long row = 0; row < rows; ++row)
            result[row * result_stride + i] =
                float(sums[row * PANEL + i] - (ZERO_LEVEL ? linear.offset[begin + i] : 0)) * input_scale[row] *
                    linear.scale[begin + i] +
                (linear.bias ? linear.bias[begin + i] : 0.0f);
}

#if defined(TILES)
// Largest number of rows of a tile, and of bytes of each.
constexpr long TILE_ROWS = 16, TILE_BYTES = 64;
// Fewer rows use vector instructions, which also read the weights only once and need no configuration. Not measured
// yet.
constexpr long ENOUGH_FOR_TILES = 4;

// Returns true if this process may use tiles. Linux grants it on request, because it must save larger registers.
bool tiles_granted() {
#if defined(EMULATE_TILES)
    return true;
#else
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    static const bool granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    return granted;
#endif
}

// Tile configuration of this thread, in the processor's format; in force during the lifetime of the object. Tiles 0 to
// 3 hold sums, 4 inputs and 5 weights; 6 and 7 hold the last inputs and their weights, because configuring another size
// would clear all tiles.
struct TileSizes {
    uint8_t palette = 1, first_row = 0, nothing[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    TileSizes(long rows_of_levels, long last) {
        for (long tile = 0; tile < 8; ++tile) {
            bytes[tile] = uint16_t(tile == 6 ? last : TILE_BYTES);
            rows[tile] = uint8_t(tile == 5 ? TILE_ROWS : tile == 7 ? last / GROUP : rows_of_levels);
        }
        // Barrier: g++ 12 assumes that the instruction reads eight bytes only.
        __asm__ volatile("" : : "r"(this) : "memory");
        _tile_loadconfig(this);
    }

    ~TileSizes() { _tile_release(); }
};

// Integer sums of the configured number of quantised rows with a panel, (rows, PANEL). One tile of inputs is multiplied
// with the four tiles of a panel's outputs, so that a panel is read once for 16 rows. This uses all eight tiles.
void tile_sums(const uint8_t* levels, long stride, const int8_t* panel, int32_t* sums) {
    constexpr long BETWEEN_GROUPS = GROUP * PANEL, BETWEEN_SUMS = PANEL * sizeof *sums;
    // Barrier: g++ 12 does not know that loading a tile reads memory.
    __asm__ volatile("" : : "r"(levels) : "memory");
    // A macro, because tile numbers must be literals.
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
    for (long left = stride; left > TILE_BYTES; left -= TILE_BYTES) {
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

// `product_of_levels` with AMX tiles.
void product_in_tiles(const Linear& linear, long first, long last, const uint8_t* levels, long stride,
                      const float* input_scale, float* result, long result_stride, long rows) {
    // All input tiles have the same number of rows, which avoids another configuration, and as few as possible.
    const long tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, size = (rows + tiles - 1) / tiles;
    const TileSizes sizes(size, (stride - 1) % TILE_BYTES + 1);
    alignas(64) int32_t sums[TILE_ROWS * PANEL];
    for (long begin = first; begin < last; begin += PANEL)
        for (long tile = 0; tile < tiles; ++tile) {
            const long row = std::min(tile * size, rows - size);                // the last tile recomputes some rows
            tile_sums(levels + row * stride, stride, linear.panels + begin * stride, sums);
            scale_sums(linear, begin, sums, input_scale + row, result + row * result_stride + begin - first,
                       result_stride, size);
        }
}
#endif

// Computes outputs `first` (the first one of a panel) to `last` for quantised rows; rows of the result are
// `result_stride` elements apart. A panel stays in the L1 cache while all rows use it.
void product_of_levels(const Linear& linear, long first, long last, const uint8_t* levels, long stride,
                       const float* input_scale, float* result, long result_stride, long rows) {
#if defined(TILES)
    if (rows >= ENOUGH_FOR_TILES && tiles_granted()) {
        product_in_tiles(linear, first, last, levels, stride, input_scale, result, result_stride, rows);
        return;
    }
#endif
    static constexpr decltype(&panel_sums<1>) of_rows[] = {panel_sums<1>, panel_sums<2>, panel_sums<3>,
                                                          panel_sums<4>, panel_sums<5>, panel_sums<6>};
    alignas(64) int32_t sums[TILE * PANEL];
    for (long begin = first; begin < last; begin += PANEL)
        for (long row = 0; row < rows; row += TILE) {
            const long tile = std::min(TILE, rows - row);
            of_rows[tile - 1](levels + row * stride, stride, linear.panels + begin * stride, sums);
            scale_sums(linear, begin, sums, input_scale + row, result + row * result_stride + begin - first,
                       result_stride, tile);
        }
}

// Quantised inputs of a product, with room for some rows of `inputs` elements.
struct Levels {
    const std::unique_ptr<uint8_t[]> levels;
    const std::unique_ptr<float[]> scale;
    long stride = 0;

    static long filled(long inputs) { return (inputs + GROUP - 1) / GROUP * GROUP; }

    Levels(long rows, long inputs) : levels(room_for<uint8_t>(rows * filled(inputs))), scale(room_for<float>(rows)) {}

    void take(const float* input, long rows, long inputs) {
        stride = filled(inputs);
        quantise(input, levels.get(), scale.get(), rows, inputs, stride);
    }

    // Computes outputs `first` to `last` for the rows given to `take`.
    void multiply(const Linear& linear, long first, long last, float* result, long result_stride, long rows) const {
        product_of_levels(linear, first, last, levels.get(), stride, scale.get(), result, result_stride, rows);
    }
};

void activate(float* numbers, long count, long activation) {
    if (activation == RELU)
        for (long i = 0; i < count; ++i) numbers[i] = std::max(numbers[i], 0.0f);
    else if (activation == GELU)
        for (long i = 0; i < count; ++i) numbers[i] *= 0.5f * (1 + std::erf(numbers[i] * float(M_SQRT1_2)));
    else
        for (long i = 0; i < count; i += WIDTH) {
            const long some = std::min(WIDTH, count - i);
            const Wide x = load_some(numbers + i, some, 0), result = x / (1.0f + exponential(-x));
            for (long lane = 0; lane < some; ++lane) numbers[i + lane] = result[lane];
        }
}

// Activations of some rows in a stack. hidden: residual stream. entering: input of a sublayer. output: its output.
struct Rows {
    const Stack& stack;
    const long d_model, head_size;
    long rows;                                                                  // at most the number at construction
    const std::unique_ptr<float[]> hidden, entering, output, projected, attended;
    Levels levels;

    Rows(const Stack& stack, long rows)
        : stack(stack), d_model(stack.d_model), head_size(d_model / stack.heads), rows(rows),
          hidden(room_for<float>(rows * d_model)), entering(room_for<float>(rows * d_model)),
          output(room_for<float>(rows * d_model)),
          projected(room_for<float>(rows * std::max(3 * d_model, stack.feed_forward))),
          attended(room_for<float>(rows * d_model)), levels(rows, std::max(d_model, stack.feed_forward)) {}

    // Called after `hidden` is filled.
    void begin() {
        std::copy_n(hidden.get(), rows * d_model, entering.get());
        std::fill_n(output.get(), rows * d_model, 0.0f);                        // the first norm adds nothing
        if (stack.pre_norm) leave(stack.first);
    }

    void multiply(const Linear& linear, const float* input, float* result) {
        levels.take(input, rows, linear.inputs);
        levels.multiply(linear, 0, linear.outputs, result, linear.outputs, rows);
    }

    void project(const Linear& linear) { multiply(linear, entering.get(), projected.get()); }

    void leave(const Norm& norm) {
        add_and_norm(hidden.get(), output.get(), norm, hidden.get(), entering.get(), rows, d_model);
        if (!stack.pre_norm) std::copy_n(entering.get(), rows * d_model, hidden.get());
    }

    // Called after `attended` is filled.
    void leave_attention(const Linear& out, const Norm& norm) {
        multiply(out, attended.get(), output.get());
        leave(norm);
    }

    void feed_forward(const Layer& layer) {
        project(layer.inner);
        activate(projected.get(), rows * stack.feed_forward, stack.activation);
        multiply(layer.outer, projected.get(), output.get());
        leave(layer.norms[2]);
    }
};

// Encodes the `tokens` embedded tokens from `begin` on, which are whole sentences, and writes the keys and values of
// cross-attention for each decoder layer, (layers, all_tokens, 2 * d_model) in the layout of `lay_out`. Token t belongs
// to the sentence of count[t] tokens from first[t] on.
void encode(const Stack& encoder, const float* embedded, const int32_t* first, const int32_t* count, Brief* memory,
            long begin, long tokens, long all_tokens) {
    Rows rows(encoder, tokens);
    const long d_model = rows.d_model;
    std::copy_n(embedded + begin * d_model, tokens * d_model, rows.hidden.get());
    rows.begin();
    std::vector<int32_t> first_here(tokens);
    for (long token = 0; token < tokens; ++token) first_here[token] = first[begin + token] - int32_t(begin);
    const auto lay_out_all = [&](const float* keys_values, long stride, Brief* blocks) {
        for (long token = 0; token < tokens; token += count[begin + token])
            lay_out(keys_values + token * stride, stride, blocks + token * 2 * d_model, count[begin + token], d_model);
    };
    const auto own = room_for<Brief>(tokens * 2 * d_model + WIDTH);
    for (long number = 0; number < encoder.number_of_layers; ++number) {
        const Layer& layer = encoder.layers[number];
        rows.project(layer.query_key_value);
        lay_out_all(rows.projected.get() + d_model, 3 * d_model, own.get());
        attend_sources(rows.projected.get(), 3 * d_model, own.get(), first_here.data(), count + begin,
                      rows.attended.get(), tokens, encoder.heads, rows.head_size);
        rows.leave_attention(layer.output, layer.norms[0]);
        rows.feed_forward(layer);
    }
    for (long number = 0; number < encoder.number_of_last; ++number) {
        rows.project(encoder.last[number]);
        lay_out_all(rows.projected.get(), 2 * d_model, memory + (number * all_tokens + begin) * 2 * d_model);
    }
}

// Input of a decoder step. The embedding of row r's token, times embedding_scale, is added to the encoding of position
// length[r] - 1. In layer l, its keys and values are written to row past[r * past_stride + length[r] - 1] of cache + l
// * layer_stride; it attends to the length[r] rows past[r * past_stride], … of that cache, and to the source sentence
// of count[r] tokens from first[r] on in memory + l * memory_stride.
struct Position {
    const float *embedding, *positions;
    float embedding_scale;
    const int64_t* tokens;
    Brief* cache;
    long layer_stride;
    const int32_t* past;
    long past_stride;
    const int32_t* length;
    const Brief* memory;
    long memory_stride;
    const int32_t *first, *count;
};

// Computes a decoder step of rows.rows rows from `begin` on; the result, after the last layer, is `rows.entering`.
void step(Rows& rows, const Position& at, long begin) {
    const Stack& decoder = rows.stack;
    const long d_model = rows.d_model;
    const int32_t *past = at.past + begin * at.past_stride, *length = at.length + begin;
    for (long row = 0; row < rows.rows; ++row) {
        const float *embedded = at.embedding + at.tokens[begin + row] * d_model,
                    *position = at.positions + (length[row] - 1) * d_model;
        for (long i = 0; i < d_model; ++i)
            rows.hidden[row * d_model + i] = embedded[i] * at.embedding_scale + position[i];
    }
    rows.begin();
    for (long number = 0; number < decoder.number_of_layers; ++number) {
        const Layer& layer = decoder.layers[number];
        Brief* cache = at.cache + number * at.layer_stride;
        rows.project(layer.query_key_value);
        for (long row = 0; row < rows.rows; ++row)
            shorten(rows.projected.get() + (3 * row + 1) * d_model,
                    cache + past[row * at.past_stride + length[row] - 1] * 2 * d_model, 2 * d_model);
        attend_own(rows.projected.get(), 3 * d_model, cache, past, at.past_stride, length, rows.attended.get(),
                    rows.rows, decoder.heads, rows.head_size);
        rows.leave_attention(layer.output, layer.norms[0]);
        rows.project(layer.query);
        attend_sources(rows.projected.get(), d_model, at.memory + number * at.memory_stride, at.first + begin,
                      at.count + begin, rows.attended.get(), rows.rows, decoder.heads, rows.head_size);
        rows.leave_attention(layer.source_output, layer.norms[1]);
        rows.feed_forward(layer);
    }
}

// Calls work(begin, count) for blocks of `rows`, in parallel; there are enough blocks for all threads.
template <class Work>
void in_parts(long rows, Work work) {
    long threads = 1;
#if defined(_OPENMP)
    threads = omp_get_max_threads();
#endif
    const long even = (rows + threads - 1) / threads, size = std::clamp((even + TILE - 1) / TILE * TILE, TILE, TOGETHER);
#pragma omp parallel for schedule(dynamic) if (rows > MANY_ROWS)
    for (long begin = 0; begin < rows; begin += size) work(begin, std::min(size, rows - begin));
}

// Continuation of hypothesis number `beam` of a group by `word`. total: log p of the continued hypothesis.
struct Continuation {
    float total;
    int32_t beam, word;
};

constexpr Continuation NONE = {LEAST, 0, 0};

// Inserts a continuation into `best`, the list of the best `count` so far, best first; initially all are NONE.
inline void consider(Continuation* best, long count, Continuation one) {
    long place = count - 1;
    if (!(one.total > best[place].total)) return;
    for (; place > 0 && best[place - 1].total < one.total; --place) best[place] = best[place - 1];
    best[place] = one;
}

// Vocabulary block whose logits fit into a core's cache.
constexpr long WORDS = 16 * PANEL;

// Top-k with log-softmax in one pass: for each row the log of the sum of exp of all logits, and the best words. `show`
// gets the logits in blocks of WORDS.
struct BestWords {
    const long count;                                                           // number of best words for each row
    std::vector<float> largest, sum, end;
    std::vector<Continuation> best;

    BestWords(long rows, long count) : count(count), largest(rows), sum(rows), end(rows), best(rows * count) {}

    void begin() {
        std::fill(largest.begin(), largest.end(), LEAST);
        std::fill(sum.begin(), sum.end(), 0.0f);
        std::fill(best.begin(), best.end(), NONE);
    }

    // Adds the logits of words `first` to `last`; overwrites those of forbidden words.
    void show(long row, float* logits, long first, long last, const int64_t* forbidden, long number_forbidden) {
        Wide of_panel[WORDS / PANEL], of_all = all(LEAST);
        for (long begin = first; begin < last; begin += PANEL) {
            Wide& found = of_panel[(begin - first) / PANEL];
            found = largest_by_lane(logits + begin - first, std::min(PANEL, last - begin));
            of_all = larger(of_all, found);
        }
        const float most = largest_in(of_all);
        if (most > largest[row]) {
            sum[row] *= std::exp(largest[row] - most);
            largest[row] = most;
        }
        const float reference = largest[row];
        sum[row] += sum_of_terms(logits, last - first, 2 * LEAST,
                                 [=](Wide logits) { return exponential(logits - reference); });
        if (first <= END && END < last) end[row] = logits[END - first];
        for (long i = 0; i < number_forbidden; ++i)
            if (first <= forbidden[i] && forbidden[i] < last) logits[forbidden[i] - first] = 2 * LEAST;
        Continuation* own = &best[row * count];
        for (long begin = first; begin < last; begin += PANEL) {
            if (!above(of_panel[(begin - first) / PANEL], own[count - 1].total)) continue;
            long i = begin;
            for (; i + WIDTH <= std::min(begin + PANEL, last); i += WIDTH)
                for (uint32_t lanes = above(load(logits + i - first), own[count - 1].total); lanes; lanes &= lanes - 1) {
                    const long word = i + __builtin_ctz(lanes);
                    consider(own, count, {logits[word - first], 0, int32_t(word)});
                }
            for (; i < std::min(begin + PANEL, last); ++i) consider(own, count, {logits[i - first], 0, int32_t(i)});
        }
    }

    // Finds the best `count` continuations of a group of `beam` hypotheses from row `first` on. before: their log p.
    // must_end: only `</s>` may follow. normalised: the logits are used as they are, without log-softmax.
    void topk(long first, long beam, const float* before, bool must_end, bool normalised, Continuation* found) const {
        std::fill_n(found, count, NONE);
        for (long place = 0; place < beam; ++place) {
            const long row = first + place;
            const float past = normalised ? before[place] : before[place] - (largest[row] + std::log(sum[row]));
            if (must_end) {
                consider(found, count, {past + end[row], int32_t(place), int32_t(END)});
                continue;
            }
            const Continuation* own = &best[row * count];
            for (long rank = 0; rank < count && own[rank].total > LEAST; ++rank)
                consider(found, count, {past + own[rank].total, int32_t(place), own[rank].word});
        }
    }
};

// Arguments of `search`, see below.
struct Search {
    const Stack& decoder;
    const float *embedding, *positions;
    float embedding_scale;
    const Brief* memory;
    long memory_stride;
    const int32_t *first, *count;
    const int64_t* limits;
    long sentences, beam, enough;
    const int64_t* forbidden;
    long number_forbidden, most, longest;
    int64_t* found;
    float* totals;
    int32_t *lengths, *tokens;
};

// Sentence in search, with `width` hypotheses of `length` words. slot: its block of cache rows.
struct Sentence {
    long number, slot, length, width;
};

// Hypotheses by row: their words, the cache row of each position, the last word and log p.
struct Hypotheses {
    long longest, rows = 0;
    std::vector<int32_t> words, past;
    std::vector<int64_t> last;
    std::vector<float> totals;

    Hypotheses(long capacity, long longest)
        : longest(longest), words(capacity * longest), past(capacity * longest), last(capacity), totals(capacity) {}

    void add(int64_t word, float total) {
        last[rows] = word;
        totals[rows++] = total;
    }

    // Adds row `parent` of `others`, continued by a word.
    void add_longer(const Hypotheses& others, long parent, long length, int32_t word, float total) {
        std::copy_n(&others.words[parent * longest], length, &words[rows * longest]);
        std::copy_n(&others.past[parent * longest], length + 1, &past[rows * longest]);
        words[rows * longest + length] = word;
        add(word, total);
    }
};

// Limit of a thread's KV cache in bytes; a single sentence may exceed it.
constexpr long CACHE_BYTES = 256 << 20;

// Searches up to `some` sentences at once, until take(), which returns the number of the next sentence, returns -1. A
// finished sentence is replaced by the next one at once, which keeps the number of rows in a step high.
template <class Take>
void search_some(const Search& given, long some, Take take) {
    const long d_model = given.decoder.d_model, words = given.decoder.last->outputs, candidates = 2 * given.beam;
    const long layers = given.decoder.number_of_layers, room = given.longest * given.beam;
    some = std::clamp(CACHE_BYTES / long(layers * room * 2 * d_model * sizeof(Brief)), 1L, some);
    const long capacity = some * given.beam, layer_stride = some * room * 2 * d_model;
    const auto cache = room_for<Brief>(layers * layer_stride);
    const auto logits = room_for<float>(capacity * WORDS);
    Rows rows(given.decoder, capacity);
    BestWords best_words(capacity, candidates);
    std::vector<Continuation> best(candidates);
    Hypotheses now(capacity, given.longest), after(capacity, given.longest);
    std::vector<int32_t> length(capacity), first(capacity), count(capacity);
    std::vector<Sentence> searched, stay;
    std::vector<long> slots, going;
    for (long slot = some - 1; slot >= 0; --slot) slots.push_back(slot);
    for (;;) {
        for (long number; !slots.empty() && (number = take()) >= 0; slots.pop_back()) {
            searched.push_back({number, slots.back(), 0, 1});
            now.add(START, 0.0f);
        }
        if (searched.empty()) return;
        long row = 0;
        for (const Sentence& one : searched)
            for (long place = 0; place < one.width; ++place, ++row) {
                now.past[row * given.longest + one.length] =
                    int32_t(one.slot * room + one.length * given.beam + place);
                length[row] = int32_t(one.length + 1);
                first[row] = given.first[one.number];
                count[row] = given.count[one.number];
            }
        rows.rows = now.rows;
        step(rows, {given.embedding, given.positions, given.embedding_scale, now.last.data(), cache.get(), layer_stride,
                    now.past.data(), given.longest, length.data(), given.memory, given.memory_stride, first.data(),
                    count.data()}, 0);
        rows.levels.take(rows.entering.get(), rows.rows, d_model);
        best_words.begin();
        for (long begin = 0; begin < words; begin += WORDS) {
            const long end = std::min(begin + WORDS, words);
            rows.levels.multiply(*given.decoder.last, begin, end, logits.get(), WORDS, rows.rows);
            for (row = 0; row < rows.rows; ++row)
                best_words.show(row, &logits[row * WORDS], begin, end, given.forbidden, given.number_forbidden);
        }
        row = 0;
        stay.clear();
        after.rows = 0;
        for (const Sentence& one : searched) {
            best_words.topk(row, one.width, &now.totals[row], given.limits[one.number] <= one.length + 1, false, best.data());
            int64_t& found = given.found[one.number];
            for (long rank = 0; rank < given.beam; ++rank) {
                if (best[rank].word != END || !(best[rank].total > LEAST)) continue;
                const long place = one.number * given.most + found++;
                given.totals[place] = best[rank].total;
                given.lengths[place] = int32_t(one.length);
                std::copy_n(&now.words[(row + best[rank].beam) * given.longest], one.length,
                            given.tokens + place * given.longest);
            }
            going.clear();
            for (long rank = 0; rank < candidates && long(going.size()) < given.beam; ++rank)
                if (best[rank].word != END && best[rank].total > LEAST) going.push_back(rank);
            if (found >= given.enough || going.empty()) {
                slots.push_back(one.slot);
            } else {
                stay.push_back({one.number, one.slot, one.length + 1, given.beam});
                for (long place = 0; place < given.beam; ++place) {
                    // If fewer hypotheses remain than the beam is wide, copies of the first one with log p = -inf fill
                    // it.
                    const bool hopeful = place < long(going.size());
                    const Continuation& next = best[going[hopeful ? place : 0]];
                    after.add_longer(now, row + next.beam, one.length, next.word, hopeful ? next.total : -INFINITY);
                }
            }
            row += one.width;
        }
        std::swap(now, after);
        std::swap(searched, stay);
    }
}

}  // namespace

extern "C" {

void topk(float* logits, const float* totals, long groups, long beam, long words, const int64_t* forbidden,
          long number_forbidden, const bool* must_end, bool normalised, float* best_totals, int64_t* beams, int64_t* ids,
          long count) {
#pragma omp parallel for if (groups * beam > MANY_ROWS)
    for (long group = 0; group < groups; ++group) {
        BestWords best_words(beam, count);
        best_words.begin();
        for (long row = 0; row < beam; ++row)
            for (long begin = 0; begin < words; begin += WORDS)
                best_words.show(row, logits + (group * beam + row) * words + begin, begin, std::min(begin + WORDS, words),
                                forbidden, number_forbidden);
        std::vector<Continuation> found(count);
        best_words.topk(0, beam, totals + group * beam, must_end && must_end[group], normalised, found.data());
        for (long rank = 0; rank < count; ++rank) {
            best_totals[group * count + rank] = found[rank].total;
            beams[group * count + rank] = found[rank].beam;
            ids[group * count + rank] = found[rank].word;
        }
    }
}

// Functions that only the self-check calls.

void add_and_norm(const float* hidden, const float* output, const Norm* norm, float* sum, float* normed, long rows,
                  long size) {
    add_and_norm(hidden, output, *norm, sum, normed, rows, size);
}

void attend_past(const float* query, long query_stride, const Brief* cache, const int32_t* past, long past_stride,
                 const int32_t* length, float* result, long rows, long heads, long size) {
    attend_own(query, query_stride, cache, past, past_stride, length, result, rows, heads, size);
}

void attend_source(const float* query, long query_stride, const Brief* memory, const int32_t* first, const int32_t* count,
                   float* result, long rows, long heads, long size) {
    attend_sources(query, query_stride, memory, first, count, result, rows, heads, size);
}

void product(const Linear* linear, const float* input, float* result, long rows) {
    in_parts(rows, [&](long begin, long count) {
        Levels levels(count, linear->inputs);
        levels.take(input + begin * linear->inputs, count, linear->inputs);
        levels.multiply(*linear, 0, linear->outputs, result + begin * linear->outputs, linear->outputs, count);
    });
}

void encode(const Stack* encoder, const float* embedded, const int32_t* first, const int32_t* count, Brief* memory,
            const int64_t* ends, long parts) {
#pragma omp parallel for schedule(dynamic) if (parts > 1)
    for (long part = 0; part < parts; ++part) {
        const long begin = part ? ends[part - 1] : 0;
        encode(*encoder, embedded, first, count, memory, begin, ends[part] - begin, ends[parts - 1]);
    }
}

void step(const Stack* decoder, const float* embedding, const float* positions, float scale, const int64_t* tokens,
          Brief* cache, long layer_stride, const int32_t* past, long past_stride, const int32_t* length,
          const Brief* memory, long memory_stride, const int32_t* first, const int32_t* count, float* logits, long rows) {
    const Position at = {embedding, positions,   scale,  tokens, cache,         layer_stride,
                         past,      past_stride, length, memory, memory_stride, first,        count};
    in_parts(rows, [&](long begin, long number) {
        Rows part(*decoder, number);
        step(part, at, begin);
        part.multiply(*decoder->last, part.entering.get(), logits + begin * decoder->last->outputs);
    });
}

// Same search as `search` in search.py without hooks. Writes the finished hypotheses of each sentence in the order in
// which they ended: found: (sentences,), their number; totals: (sentences, most), log p; lengths: (sentences, most),
// number of words; tokens: (sentences, most, longest). A sentence is done when `enough` hypotheses have ended. limits:
// longest target of each sentence, `</s>` included. memory: as in `step`; first, count: of each sentence.
void search(const Stack* decoder, const float* embedding, const float* positions, float scale, const Brief* memory,
            long memory_stride, const int32_t* first, const int32_t* count, const int64_t* limits, long sentences,
            long beam, long enough, const int64_t* forbidden, long number_forbidden, long most, long longest,
            int64_t* found, float* totals, int32_t* lengths, int32_t* tokens) {
    const Search given = {*decoder, embedding, positions, scale,     memory,           memory_stride, first,
                          count,    limits,    sentences, beam,      enough,           forbidden,     number_forbidden,
                          most,     longest,   found,     totals,    lengths,          tokens};
    std::fill_n(found, sentences, 0);
    long threads = 1;
#if defined(_OPENMP)
    if (sentences * beam > MANY_ROWS) threads = std::min<long>(omp_get_max_threads(), sentences);
#endif
    const long some = std::clamp((sentences + threads - 1) / threads, 1L, std::max(1L, TOGETHER / beam));
    std::atomic<long> next{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
    search_some(given, some, [&] {
        const long number = next++;
        return number < sentences ? number : -1;
    });
}

}  // extern "C"
