// A Transformer in int8: its encoder and its decoder step in one call each, and the choice of the best continuations.
//
// Plain loops that the compiler vectorises for the processor at hand, and vectors where it would not; kernel_library.py
// compiles them, kernel_interface.py has the signatures. Weights and the inputs of products are int8, all else is fp32.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif
// Tiles: registers of AMX with rows of bytes, and their products. Tests emulate them. clang++ 14 names AMX in a way of
// its own.
#if defined(EMULATE_TILES)
#include "tiles_emulated.h"
#define TILES
#elif (defined(__AMX_INT8__) || defined(__AMXINT8__)) && defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define TILES
#endif

namespace {

// The structures are filled by Python (kernel_interface.py), field by field.

struct Norm {
    const float *gain, *shift;
    float epsilon;
};

// (inputs) -> (outputs). panels: the weights in int8, see `panel_sums`; scale: the step of each output's levels. offset:
// what the zero of the inputs' levels adds to each output's sum.
struct Linear {
    const int8_t* panels;
    const float* scale;
    const int32_t* offset;
    const float* bias;
    long inputs, outputs;
};

// Of the encoder or the decoder. An encoder's layer has no `query` and `source_output`, and of `norms`, which follow the
// sums, not the second.
struct Layer {
    Linear query_key_value, output, query, source_output, inner, outer;
    Norm norms[3];
};

// first: the norm before the first sublayer, in a pre-norm model. last: of the encoder for each decoder layer what makes
// keys and values of the memory, of the decoder the vocabulary.
struct Stack {
    const Layer* layers;
    long number_of_layers, d_model, heads, feed_forward, pre_norm, activation;
    Norm first;
    const Linear* last;
    long number_of_last;
};

enum Activation { RELU, GELU, SILU };

// Rows below which threads are not worth waking.
constexpr long MANY_ROWS = 32;
// Rows that go through all layers together: what they hold stays in a core's cache.
constexpr long TOGETHER = 96;

// Stands for log 0, and stays finite when something is added to it.
constexpr float LEAST = -1e38f;
// Adding and subtracting it rounds a number below 2^22 to the nearest whole one, ties to even, in two instructions that
// every processor has vectors for.
constexpr float ROUNDER = 12582912.0f;
// `</s>` and what targets begin with, as in tokenizer.py.
constexpr int64_t END = 2, START = 1;

// Numbers of unknown value.
template <class T>
std::unique_ptr<T[]> room_for(long count) {
    return std::unique_ptr<T[]>(new T[count]);
}

// As many numbers as the processor's vectors hold: longer ones the compiler would take apart, some operations number by
// number.
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

// Fewer than WIDTH numbers, and after them `rest`.
inline Wide load_some(const float* from, long count, float rest) {
    float numbers[WIDTH];
    std::fill_n(numbers, WIDTH, rest);
    std::copy_n(from, count, numbers);
    return load(numbers);
}

// exp: 2^whole * 2^rest, the latter by its Taylor series; off by 5e-7 of it at most. Beyond +-87 it stays what it is
// there, and of what is no number it is none.
inline Wide exponential(Wide number) {
    typedef int32_t Whole __attribute__((vector_size(4 * WIDTH)));
    const float LOG2_E = 1.44269504f, LN_2_HIGH = 0.693359375f, LN_2_LOW = -2.12194440e-4f;
    // In this order, in which these are one instruction each and what is no number stays none.
    Wide x = number < -87.0f ? all(-87.0f) : number;
    x = all(87.0f) < x ? all(87.0f) : x;
    const Wide whole = (x * LOG2_E + ROUNDER) - ROUNDER;
    const Wide rest = (x - whole * LN_2_HIGH) - whole * LN_2_LOW;
    Wide power = all(1 / 720.0f);
    power = power * rest + 1 / 120.0f;
    power = power * rest + 1 / 24.0f;
    power = power * rest + 1 / 6.0f;
    power = power * rest + 0.5f;
    power = power * rest * rest + rest + 1.0f;
    const Whole bits = (__builtin_convertvector(whole, Whole) + 127) << 23;
    Wide two_to_whole;
    std::memcpy(&two_to_whole, &bits, sizeof two_to_whole);
    return power * two_to_whole;
}

// The sum of term(x) of some numbers x. In several sums side by side, for the compiler may not put what is added in
// another order by itself. The term of `nothing` is 0.
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

// The largest of some numbers, or LEAST; what is no number is passed over.
inline float largest_of(const float* numbers, long count) {
    const auto larger = [](Wide one, Wide other) { return one < other ? other : one; };
    Wide parts[4] = {all(LEAST), all(LEAST), all(LEAST), all(LEAST)};           // each waits for its own result only
    long i = 0;
    for (; i + 4 * WIDTH <= count; i += 4 * WIDTH)
        for (long part = 0; part < 4; ++part) parts[part] = larger(parts[part], load(numbers + i + part * WIDTH));
    for (; i < count; i += WIDTH)
        parts[0] = larger(parts[0],
                          i + WIDTH <= count ? load(numbers + i) : load_some(numbers + i, count - i, LEAST));
    const Wide largest = larger(larger(parts[0], parts[1]), larger(parts[2], parts[3]));
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)largest);
#else
    typedef float Four __attribute__((vector_size(16)));
    Four found[WIDTH / 4];
    std::memcpy(found, &largest, sizeof found);
    for (long part = 1; part < WIDTH / 4; ++part) found[0] = found[0] < found[part] ? found[part] : found[0];
    return std::max(std::max(found[0][0], found[0][1]), std::max(found[0][2], found[0][3]));
#endif
}

// sum = hidden + output, and its layer norm; `sum` may be `hidden`.
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

// Attention of each row over keys of its own: key number n stands in row past[row * longest + n] of `keys_values`, or,
// where there is no such table, in row first[row] + n; of these a row has count[row], or `longest`. A row of keys_values
// begins with the key of all heads, followed by the value. VECTORS: of a head, where the compiler may know it, else 0.
template <long VECTORS>
void attend_sized(const float* query, long query_stride, const float* keys_values, long stride, const int32_t* past,
                  const int32_t* first, const int32_t* count, long longest, float* result, long rows, long heads,
                  long size) {
    const long features = heads * size;
    const float factor = 1 / std::sqrt(float(size));
    std::vector<float> weights, plain(size);
    std::vector<const float*> places;
    for (long row = 0; row < rows; ++row) {
        const long keys = past ? longest : count[row];
        const long filled = (keys + WIDTH - 1) / WIDTH * WIDTH;                  // of whole vectors
        weights.resize(filled);
        places.resize(keys);
        for (long n = 0; n < keys; ++n)
            places[n] = keys_values + stride * (past ? past[row * longest + n] : first[row] + n);
        for (long head = 0; head < heads; ++head) {
            const float* own = query + row * query_stride + head * size;
            float* found = result + row * features + head * size;
            Wide asked[VECTORS + 1], sum[VECTORS + 1] = {};
            for (long v = 0; v < VECTORS; ++v) asked[v] = load(own + v * WIDTH) * factor;
            for (long n = 0; n < keys; ++n) {
                const float* key = places[n] + head * size;
                float score = 0;
                if (VECTORS) {
                    Wide products = asked[0] * load(key);
                    for (long v = 1; v < VECTORS; ++v) products += asked[v] * load(key + v * WIDTH);
                    score = sum_of(products);
                } else {
                    const long whole = size / WIDTH * WIDTH;
                    Wide products = {};
                    for (long i = 0; i < whole; i += WIDTH) products += load(own + i) * load(key + i);
                    score = sum_of(products);
                    for (long i = whole; i < size; ++i) score += own[i] * key[i];
                    score *= factor;
                }
                weights[n] = score;
            }
            const float largest = largest_of(weights.data(), keys);
            std::fill(weights.begin() + keys, weights.end(), 2 * LEAST);
            Wide totals = {};
            for (long begin = 0; begin < filled; begin += WIDTH) {
                const Wide powers = exponential(load(weights.data() + begin) - largest);
                store(powers, weights.data() + begin);
                totals += powers;
            }
            const float total = sum_of(totals);
            if (!VECTORS) std::fill(plain.begin(), plain.end(), 0.0f);
            for (long n = 0; n < keys; ++n) {
                const float* value = places[n] + features + head * size;
                for (long v = 0; v < VECTORS; ++v) sum[v] += weights[n] * load(value + v * WIDTH);
                if (!VECTORS)
                    for (long i = 0; i < size; ++i) plain[i] += weights[n] * value[i];
            }
            for (long v = 0; v < VECTORS; ++v) store(sum[v] * (1 / total), found + v * WIDTH);
            if (!VECTORS)
                for (long i = 0; i < size; ++i) found[i] = plain[i] / total;
        }
    }
}

void attend_rows(const float* query, long query_stride, const float* keys_values, long stride, const int32_t* past,
                 const int32_t* first, const int32_t* count, long longest, float* result, long rows, long heads,
                 long head_size) {
    auto sized = head_size == 32   ? attend_sized<32 / WIDTH>
                 : head_size == 64 ? attend_sized<64 / WIDTH>
                                   : attend_sized<0>;
    sized(query, query_stride, keys_values, stride, past, first, count, longest, result, rows, heads, head_size);
}

inline uint32_t bits_of(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

constexpr uint32_t INFINITE = 0x7f800000, NO_NUMBER = 0x7fc00000;

// The levels of inputs are stored unsigned, as products of bytes want them: this one is 0.
constexpr long ZERO_LEVEL = 128;

// Rows in levels, each of `stride` bytes: 127 of them reach the largest element of a row.
void quantise(const float* numbers, uint8_t* levels, float* scale, long rows, long size, long stride) {
    for (long row = 0; row < rows; ++row) {
        const float* own = numbers + row * size;
        uint8_t* levels_of_row = levels + row * stride;
        // The bits of what is not negative are in the order of the numbers, and those that are none come last: compared
        // as numbers, they would be lost. And whole numbers are compared side by side.
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

// Weights in int8 for inputs in int8 lie in panels of PANEL outputs; in a panel stands, for each GROUP of inputs, what
// belongs to the first output, to the second, …. Sizes are filled up with zeros.
constexpr long PANEL = 64, GROUP = 4;
// Rows that are multiplied with a panel together: their sums fill the processor's registers.
#if defined(__AVX512VNNI__) || !defined(__AVX2__)
constexpr long TILE = 6;
#else
constexpr long TILE = 3;
#endif

// What ROWS rows of levels give with a panel, (ROWS, PANEL).
template <long ROWS>
void panel_sums(const uint8_t* levels, long stride, const int8_t* panel, int32_t* sums) {
#if defined(__AVX512VNNI__)
    // Unrolled, the sums are registers; else the compiler stores each of them each time.
    constexpr long VECTORS = PANEL / WIDTH;
    __m512i totals[ROWS][VECTORS], weights[VECTORS];
#pragma GCC unroll 6
    for (long row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (long v = 0; v < VECTORS; ++v) totals[row][v] = _mm512_setzero_si512();
    for (long i = 0; i < stride; i += GROUP, panel += GROUP * PANEL) {
#pragma GCC unroll 4
        for (long v = 0; v < VECTORS; ++v) weights[v] = _mm512_loadu_si512(panel + v * 64);
#pragma GCC unroll 6
        for (long row = 0; row < ROWS; ++row) {
            int32_t group;
            std::memcpy(&group, levels + row * stride + i, sizeof group);
            const __m512i same = _mm512_set1_epi32(group);
#pragma GCC unroll 4
            for (long v = 0; v < VECTORS; ++v) totals[row][v] = _mm512_dpbusd_epi32(totals[row][v], same, weights[v]);
        }
    }
#pragma GCC unroll 6
    for (long row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (long v = 0; v < VECTORS; ++v) _mm512_storeu_si512(sums + row * PANEL + v * WIDTH, totals[row][v]);
#elif defined(__AVX2__)
    // Sums of sixteen outputs at a time, in pairs of inputs: in bytes the products of a pair could overflow.
    constexpr long OUTPUTS = 16, VECTORS = 4;                                   // four outputs and both pairs in each
    for (long first = 0; first < PANEL; first += OUTPUTS) {
        __m256i totals[ROWS][VECTORS];
#pragma GCC unroll 6
        for (long row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
            for (long v = 0; v < VECTORS; ++v) totals[row][v] = _mm256_setzero_si256();
        const int8_t* weights = panel + first * GROUP;
        for (long i = 0; i < stride; i += GROUP, weights += GROUP * PANEL) {
            __m256i own[VECTORS];
#pragma GCC unroll 4
            for (long v = 0; v < VECTORS; ++v)
                own[v] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(weights + v * 16)));
#pragma GCC unroll 6
            for (long row = 0; row < ROWS; ++row) {
                int32_t group;
                std::memcpy(&group, levels + row * stride + i, sizeof group);
                const __m256i same = _mm256_cvtepu8_epi16(_mm_set1_epi32(group));
#pragma GCC unroll 4
                for (long v = 0; v < VECTORS; ++v)
                    totals[row][v] = _mm256_add_epi32(totals[row][v], _mm256_madd_epi16(own[v], same));
            }
        }
#pragma GCC unroll 6
        for (long row = 0; row < ROWS; ++row)
#pragma GCC unroll 2
            for (long v = 0; v < VECTORS; v += 2) {
                // Adds the two pairs of each output; the halves of both vectors come out crosswise.
                const __m256i crossed = _mm256_hadd_epi32(totals[row][v], totals[row][v + 1]);
                _mm256_storeu_si256((__m256i*)(sums + row * PANEL + first + v * 4),
                                    _mm256_permute4x64_epi64(crossed, 0xd8));
            }
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

// The results of `rows` rows, from their sums with the panel that begins with output number `begin`.
void scale_sums(const Linear& linear, long begin, const int32_t* sums, const float* input_scale, float* result,
                long rows) {
    const long outputs = std::min(PANEL, linear.outputs - begin);
    for (long row = 0; row < rows; ++row) {
        float* found = result + row * linear.outputs + begin;
        const float scale_of_row = input_scale[row];
        for (long i = 0; i < outputs; ++i)
            found[i] = float(sums[row * PANEL + i] - linear.offset[begin + i]) * scale_of_row * linear.scale[begin + i];
        if (linear.bias)
            for (long i = 0; i < outputs; ++i) found[i] += linear.bias[begin + i];
    }
}

#if defined(TILES)
// Rows of a tile, and bytes of each, at most.
constexpr long TILE_ROWS = 16, TILE_BYTES = 64;
// Fewer rows go through vectors, which read the weights only once as well and need no preparation. Not measured yet.
constexpr long ENOUGH_FOR_TILES = 4;

// Whether this process may use tiles: Linux must make room for them where it keeps a thread's registers, and is asked.
bool tiles_granted() {
#if defined(EMULATE_TILES)
    return true;
#else
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    static const bool granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    return granted;
#endif
}

// The sizes of this thread's tiles, in the form that the processor reads, in force while they live: for sums (0 to 3),
// levels (4) and weights (5), and for the levels and weights of the last inputs (6 and 7). Another size of any would
// clear them all.
struct TileSizes {
    uint8_t palette = 1, first_row = 0, nothing[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    TileSizes(long rows_of_levels, long last) {
        for (long tile = 0; tile < 8; ++tile) {
            bytes[tile] = uint16_t(tile == 6 ? last : TILE_BYTES);
            rows[tile] = uint8_t(tile == 5 ? TILE_ROWS : tile == 7 ? last / GROUP : rows_of_levels);
        }
        // g++ 12 takes the instruction to read eight bytes only.
        __asm__ volatile("" : : "r"(this) : "memory");
        _tile_loadconfig(this);
    }

    ~TileSizes() { _tile_release(); }
};

// What the configured rows of levels give with a panel, (rows, PANEL). One tile of levels meets the four of a panel's
// outputs, so that a panel is read once for sixteen rows; with those for the last inputs, no tile is left.
void tile_sums(const uint8_t* levels, long stride, const int8_t* panel, int32_t* sums) {
    constexpr long BETWEEN_GROUPS = GROUP * PANEL, BETWEEN_SUMS = PANEL * sizeof *sums;
    // g++ 12 does not know that loading a tile reads memory.
    __asm__ volatile("" : : "r"(levels) : "memory");
    // A macro, because the numbers of tiles are part of instructions.
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

// `product_of_levels` in tiles.
void product_in_tiles(const Linear& linear, const uint8_t* levels, long stride, const float* input_scale, float* result,
                      long rows) {
    // All tiles of levels have the same size, for another one would have to be configured, and as few rows as they can.
    const long tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, size = (rows + tiles - 1) / tiles;
    const TileSizes sizes(size, (stride - 1) % TILE_BYTES + 1);
    alignas(64) int32_t sums[TILE_ROWS * PANEL];
    for (long begin = 0; begin < linear.outputs; begin += PANEL)
        for (long tile = 0; tile < tiles; ++tile) {
            const long row = std::min(tile * size, rows - size);                // the last tile repeats some rows
            tile_sums(levels + row * stride, stride, linear.panels + begin * stride, sums);
            scale_sums(linear, begin, sums, input_scale + row, result + row * linear.outputs, size);
        }
}
#endif

// A product of rows in levels, with their scale; a panel stays in the first cache while all rows pass.
void product_of_levels(const Linear& linear, const uint8_t* levels, long stride, const float* input_scale, float* result,
                       long rows) {
#if defined(TILES)
    if (rows >= ENOUGH_FOR_TILES && tiles_granted()) {
        product_in_tiles(linear, levels, stride, input_scale, result, rows);
        return;
    }
#endif
    static constexpr decltype(&panel_sums<1>) of_rows[] = {panel_sums<1>, panel_sums<2>, panel_sums<3>,
                                                          panel_sums<4>, panel_sums<5>, panel_sums<6>};
    alignas(64) int32_t sums[TILE * PANEL];
    for (long begin = 0; begin < linear.outputs; begin += PANEL)
        for (long row = 0; row < rows; row += TILE) {
            const long tile = std::min(TILE, rows - row);
            of_rows[tile - 1](levels + row * stride, stride, linear.panels + begin * stride, sums);
            scale_sums(linear, begin, sums, input_scale + row, result + row * linear.outputs, tile);
        }
}

void product(const Linear& linear, const float* input, float* result, long rows) {
    const long stride = (linear.inputs + GROUP - 1) / GROUP * GROUP;
    const auto levels = room_for<uint8_t>(rows * stride);
    const auto scale = room_for<float>(rows);
    quantise(input, levels.get(), scale.get(), rows, linear.inputs, stride);
    product_of_levels(linear, levels.get(), stride, scale.get(), result, rows);
}

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

// Some rows on their way through the sublayers of a stack: what is added to, what a sublayer reads and what it gives.
struct Rows {
    const Stack& stack;
    const long rows, d_model, head_size;
    std::unique_ptr<float[]> hidden, entering, output, projected, attended;

    Rows(const Stack& stack, long rows)
        : stack(stack), rows(rows), d_model(stack.d_model), head_size(d_model / stack.heads),
          hidden(room_for<float>(rows * d_model)), entering(room_for<float>(rows * d_model)),
          output(room_for<float>(rows * d_model)),
          projected(room_for<float>(rows * std::max(3 * d_model, stack.feed_forward))),
          attended(room_for<float>(rows * d_model)) {}

    // When `hidden` is filled.
    void begin() {
        std::copy_n(hidden.get(), rows * d_model, entering.get());
        std::fill_n(output.get(), rows * d_model, 0.0f);                        // nothing is added yet
        if (stack.pre_norm) leave(stack.first);
    }

    void project(const Linear& linear) { product(linear, entering.get(), projected.get(), rows); }

    void leave(const Norm& norm) {
        add_and_norm(hidden.get(), output.get(), norm, hidden.get(), entering.get(), rows, d_model);
        if (!stack.pre_norm) std::copy_n(entering.get(), rows * d_model, hidden.get());
    }

    void attend_and_leave(long query_stride, const float* keys_values, long stride, const int32_t* past,
                          const int32_t* first, const int32_t* count, long length, const Linear& out, const Norm& norm) {
        attend_rows(projected.get(), query_stride, keys_values, stride, past, first, count, length, attended.get(), rows,
               stack.heads, head_size);
        product(out, attended.get(), output.get(), rows);
        leave(norm);
    }

    void feed_forward(const Layer& layer) {
        project(layer.inner);
        activate(projected.get(), rows * stack.feed_forward, stack.activation);
        product(layer.outer, projected.get(), output.get(), rows);
        leave(layer.norms[2]);
    }
};

// Keys and values of the source for each decoder layer, (layers, all_tokens, 2 * d_model), from the embedded tokens that
// begin at `begin` and are whole sentences. Each token sees count of them from `first` on.
void encode(const Stack& encoder, const float* embedded, const int32_t* first, const int32_t* count, float* memory,
            long begin, long tokens, long all_tokens) {
    Rows rows(encoder, tokens);
    const long d_model = rows.d_model;
    std::copy_n(embedded + begin * d_model, tokens * d_model, rows.hidden.get());
    rows.begin();
    std::vector<int32_t> first_here(tokens);
    for (long token = 0; token < tokens; ++token) first_here[token] = first[begin + token] - int32_t(begin);
    for (long number = 0; number < encoder.number_of_layers; ++number) {
        const Layer& layer = encoder.layers[number];
        rows.project(layer.query_key_value);
        rows.attend_and_leave(3 * d_model, rows.projected.get() + d_model, 3 * d_model, nullptr,
                              first_here.data(), count + begin, 0, layer.output, layer.norms[0]);
        rows.feed_forward(layer);
    }
    for (long number = 0; number < encoder.number_of_last; ++number) {
        rows.project(encoder.last[number]);
        std::copy_n(rows.projected.get(), tokens * 2 * d_model, memory + (number * all_tokens + begin) * 2 * d_model);
    }
}

// What a step is about, of all its rows: the last `tokens`, (rows,), whose embeddings times `embedding_scale` are added
// to the position's. The keys and values of layer l are written into cache + l * layer_stride from row `taken` on, and
// row r attends to its rows past[r * length ...] and to `count[r]` rows from first[r] on of memory + l * memory_stride.
struct Position {
    const float *embedding, *position;
    float embedding_scale;
    const int64_t* tokens;
    float* cache;
    long layer_stride, taken;
    const int32_t* past;
    long length;
    const float* memory;
    long memory_stride;
    const int32_t *first, *count;
    float* logits;
};

// The logits of some rows, in at.logits from row `logits_begin` on.
void step(const Stack& decoder, const Position& at, long begin, long number_of_rows, long logits_begin) {
    Rows rows(decoder, number_of_rows);
    const long d_model = rows.d_model;
    for (long row = 0; row < number_of_rows; ++row) {
        const float* embedded = at.embedding + at.tokens[begin + row] * d_model;
        for (long i = 0; i < d_model; ++i)
            rows.hidden[row * d_model + i] = embedded[i] * at.embedding_scale + at.position[i];
    }
    rows.begin();
    for (long number = 0; number < decoder.number_of_layers; ++number) {
        const Layer& layer = decoder.layers[number];
        float* own = at.cache + number * at.layer_stride;
        rows.project(layer.query_key_value);
        for (long row = 0; row < number_of_rows; ++row)
            std::copy_n(rows.projected.get() + (3 * row + 1) * d_model, 2 * d_model,
                        own + (at.taken + begin + row) * 2 * d_model);
        rows.attend_and_leave(3 * d_model, own, 2 * d_model, at.past + begin * at.length, nullptr, nullptr,
                              at.length, layer.output, layer.norms[0]);
        rows.project(layer.query);
        rows.attend_and_leave(d_model, at.memory + number * at.memory_stride, 2 * d_model, nullptr, at.first + begin,
                              at.count + begin, 0, layer.source_output, layer.norms[1]);
        rows.feed_forward(layer);
    }
    product(*decoder.last, rows.entering.get(), at.logits + logits_begin * decoder.last->outputs, number_of_rows);
}

// work(begin, count) for parts of `rows`, as many as there are threads or more.
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

// log of the sum of exp of the logits.
float log_sum_exp(const float* logits, long count) {
    const float largest = largest_of(logits, count);
    const float sum =
        sum_of_terms(logits, count, 2 * LEAST, [=](Wide logits) { return exponential(logits - largest); });
    return largest + std::log(sum);
}

// The best continuations of a group so far, best first. What is not above LEAST is none.
struct Best {
    float* totals;
    int64_t *beams, *ids;
    const long count;

    Best(float* totals, int64_t* beams, int64_t* ids, long count) : totals(totals), beams(beams), ids(ids), count(count) {
        std::fill_n(totals, count, LEAST);
        std::fill_n(beams, count, 0);
        std::fill_n(ids, count, 0);
    }

    void consider(float total, long beam, long id) {
        long place = count - 1;
        if (!(total > totals[place])) return;
        for (; place > 0 && totals[place - 1] < total; --place) {
            totals[place] = totals[place - 1];
            beams[place] = beams[place - 1];
            ids[place] = ids[place - 1];
        }
        totals[place] = total;
        beams[place] = beam;
        ids[place] = id;
    }
};

// The `count` best continuations of a group of hypotheses, whose logits (beam, words) are overwritten where nothing may
// follow. Those that there are not have a total of LEAST.
void choose(float* logits, const float* totals, long beam, long words, const int64_t* forbidden, long number_forbidden,
            bool must_end, bool normalised, Best best) {
    constexpr long BLOCK = 64;
    for (long row = 0; row < beam; ++row, logits += words) {
        const float past = normalised ? totals[row] : totals[row] - log_sum_exp(logits, words);
        if (must_end) {
            best.consider(past + logits[END], row, END);
            continue;
        }
        for (long i = 0; i < number_forbidden; ++i) logits[forbidden[i]] = 2 * LEAST;
        for (long begin = 0; begin < words; begin += BLOCK) {
            const long end = std::min(begin + BLOCK, words);
            const float largest = largest_of(logits + begin, end - begin);
            if (!(past + largest > best.totals[best.count - 1])) continue;
            for (long i = begin; i < end; ++i) best.consider(past + logits[i], row, i);
        }
    }
}

// What the cache of a search has room for when it grows, in steps.
constexpr long STEPS_OF_ROOM = 16;

// Keys and values of all layers, (layers, room, features), of which `taken` rows are written.
struct Cache {
    const long layers, features;
    long room = 0, taken = 0;
    std::unique_ptr<float[]> keys_values;

    Cache(long layers, long features) : layers(layers), features(features) {}

    // Make room for `rows` more. Rows that are part of no hypothesis any more are dropped; `past` is renumbered.
    void reserve(long rows, std::vector<int32_t>& past) {
        if (taken + rows <= room) return;
        std::vector<int32_t> places(taken, -1);
        for (const int32_t row : past) places[row] = 0;
        long held = 0;
        for (int32_t& place : places)
            if (place == 0) place = int32_t(held++);
        const long larger = std::max(room, held + STEPS_OF_ROOM * rows);
        auto fresh = room_for<float>(layers * larger * features);
        for (long layer = 0; layer < layers; ++layer)
            for (long row = 0; row < taken; ++row)
                if (places[row] >= 0)
                    std::copy_n(keys_values.get() + (layer * room + row) * features, features,
                                fresh.get() + (layer * larger + places[row]) * features);
        for (int32_t& row : past) row = places[row];
        keys_values = std::move(fresh);
        room = larger;
        taken = held;
    }
};

}  // namespace

extern "C" {

void choose(float* logits, const float* totals, long groups, long beam, long words, const int64_t* forbidden,
            long number_forbidden, const bool* must_end, bool normalised, float* best_totals, int64_t* beams, int64_t* ids,
            long count) {
#pragma omp parallel for if (groups * beam > MANY_ROWS)
    for (long group = 0; group < groups; ++group)
        choose(logits + group * beam * words, totals + group * beam, beam, words, forbidden, number_forbidden,
               must_end && must_end[group], normalised,
               Best(best_totals + group * count, beams + group * count, ids + group * count, count));
}

// What the engine does not call itself, but the self-check does.

void add_and_norm(const float* hidden, const float* output, const Norm* norm, float* sum, float* normed, long rows,
                  long size) {
    add_and_norm(hidden, output, *norm, sum, normed, rows, size);
}

void attend(const float* query, long query_stride, const float* keys_values, long stride, const int32_t* past,
            const int32_t* first, const int32_t* count, long longest, float* result, long rows, long heads,
            long head_size) {
    attend_rows(query, query_stride, keys_values, stride, past, first, count, longest, result, rows, heads, head_size);
}

void product(const Linear* linear, const float* input, float* result, long rows) {
    in_parts(rows, [&](long begin, long count) {
        product(*linear, input + begin * linear->inputs, result + begin * linear->outputs, count);
    });
}

void encode(const Stack* encoder, const float* embedded, const int32_t* first, const int32_t* count, float* memory,
            const int64_t* ends, long parts) {
#pragma omp parallel for schedule(dynamic) if (parts > 1)
    for (long part = 0; part < parts; ++part) {
        const long begin = part ? ends[part - 1] : 0;
        encode(*encoder, embedded, first, count, memory, begin, ends[part] - begin, ends[parts - 1]);
    }
}

void step(const Stack* decoder, const float* embedding, const float* position, float scale, const int64_t* tokens,
          float* cache, long layer_stride, long taken, const int32_t* past, long length, const float* memory,
          long memory_stride, const int32_t* first, const int32_t* count, float* logits, long rows) {
    const Position at = {embedding, position, scale,  tokens,        cache, layer_stride, taken,
                         past,      length,   memory, memory_stride, first, count,        logits};
    in_parts(rows, [&](long begin, long number) { step(*decoder, at, begin, number, begin); });
}

// The whole of search.py's `search` without hooks: for each sentence the `found` hypotheses that have ended, in the order
// in which they did, with their log p in `totals` and `lengths` words in `tokens`, each (sentences, most) and tokens
// (sentences, most, longest). A sentence is done when `enough` have ended; limits: the longest target of each, `</s>`
// included. The source's keys and values are as `step` takes them, first and count of each sentence.
void search(const Stack* decoder, const float* embedding, const float* positions, float scale, const float* memory,
            long memory_stride, const int32_t* first, const int32_t* count, const int64_t* limits, long sentences,
            long beam, long enough, const int64_t* forbidden, long number_forbidden, long most, long longest,
            int64_t* found, float* totals, int32_t* lengths, int32_t* tokens) {
    const long d_model = decoder->d_model, words = decoder->last->outputs, candidates = 2 * beam;
    Cache cache(decoder->number_of_layers, 2 * d_model);
    std::fill_n(found, sentences, 0);
    std::vector<long> searched(sentences);                                      // their numbers
    for (long number = 0; number < sentences; ++number) searched[number] = number;
    // Of each row: what its hypothesis consists of, in words and in rows of the cache, and its log p.
    std::vector<int32_t> past, produced;
    std::vector<float> before(sentences, 0.0f), best(sentences * candidates);
    std::vector<int64_t> last(sentences, START), parents(sentences * candidates), ids(sentences * candidates);
    std::vector<int32_t> first_of_row(first, first + sentences), count_of_row(count, count + sentences);
    for (long length = 1, width = 1; !searched.empty(); ++length, width = beam) {
        const long groups = long(searched.size()), rows = groups * width;
        cache.reserve(rows, past);
        std::vector<int32_t> longer(rows * length);
        for (long row = 0; row < rows; ++row) {
            std::copy_n(past.data() + row * (length - 1), length - 1, longer.data() + row * length);
            longer[(row + 1) * length - 1] = int32_t(cache.taken + row);
        }
        past = std::move(longer);
        long threads = 1;
#if defined(_OPENMP)
        threads = rows > MANY_ROWS ? omp_get_max_threads() : 1;
#endif
        // Whole sentences whose logits are chosen from at once: they stay in a core's cache.
        const long size = std::clamp((groups + threads - 1) / threads, 1L, std::max(1L, TOGETHER / width));
#pragma omp parallel for schedule(dynamic) if (threads > 1)
        for (long begin = 0; begin < groups; begin += size) {
            const long some = std::min(size, groups - begin);
            const auto logits = room_for<float>(some * width * words);
            // `step` counts rows from the beginning of all, this part's logits from its own.
            const Position at = {embedding, positions + (length - 1) * d_model, scale, last.data(),
                                 cache.keys_values.get(), cache.room * cache.features, cache.taken, past.data(), length,
                                 memory, memory_stride, first_of_row.data(), count_of_row.data(), logits.get()};
            step(*decoder, at, begin * width, some * width, 0);
            for (long group = begin; group < begin + some; ++group)
                choose(logits.get() + (group - begin) * width * words, before.data() + group * width, width, words,
                       forbidden, number_forbidden, limits[searched[group]] <= length, false,
                       Best(best.data() + group * candidates, parents.data() + group * candidates,
                            ids.data() + group * candidates, candidates));
        }
        cache.taken += rows;
        std::vector<long> stay;
        std::vector<int32_t> past_after, produced_after, first_after, count_after;
        std::vector<float> totals_after;
        std::vector<int64_t> last_after;
        for (long group = 0; group < groups; ++group) {
            const long number = searched[group];
            const float* reached = best.data() + group * candidates;
            const int64_t *word = ids.data() + group * candidates, *parent = parents.data() + group * candidates;
            for (long rank = 0; rank < beam; ++rank) {
                if (word[rank] != END || !(reached[rank] > LEAST)) continue;
                const long place = number * most + found[number]++;
                totals[place] = reached[rank];
                lengths[place] = int32_t(length - 1);
                std::copy_n(produced.data() + (group * width + parent[rank]) * (length - 1), length - 1,
                            tokens + place * longest);
            }
            std::vector<long> going;
            for (long rank = 0; rank < candidates && long(going.size()) < beam; ++rank)
                if (word[rank] != END && reached[rank] > LEAST) going.push_back(rank);
            if (found[number] >= enough || going.empty()) continue;
            stay.push_back(number);
            for (long place = 0; place < beam; ++place) {
                // Where fewer go on than the beam is wide, the first one stands in, without hope.
                const long rank = going[place < long(going.size()) ? place : 0];
                const long row = group * width + parent[rank];
                totals_after.push_back(place < long(going.size()) ? reached[rank] : -INFINITY);
                last_after.push_back(word[rank]);
                first_after.push_back(first[number]);
                count_after.push_back(count[number]);
                past_after.insert(past_after.end(), past.begin() + row * length, past.begin() + (row + 1) * length);
                produced_after.insert(produced_after.end(), produced.begin() + row * (length - 1),
                                      produced.begin() + (row + 1) * (length - 1));
                produced_after.push_back(int32_t(word[rank]));
            }
        }
        searched = std::move(stay);
        past = std::move(past_after);
        produced = std::move(produced_after);
        before = std::move(totals_after);
        last = std::move(last_after);
        first_of_row = std::move(first_after);
        count_of_row = std::move(count_after);
    }
}

}  // extern "C"
