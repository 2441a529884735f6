// Encoder and decoder step for the few rows of a sentence, and for many what lies between the matrix products.
//
// Plain loops that the compiler vectorises for the processor at hand; `kernels.py` compiles and calls them. `Number` is
// float or BFloat16, what is kept of a sentence; sums are float.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

struct BFloat16 {
    uint16_t bits;
    BFloat16() = default;
    BFloat16(float number) {                                                    // to the nearest, ties to even
        uint32_t wide;
        std::memcpy(&wide, &number, sizeof wide);
        bits = uint16_t((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
    }
    operator float() const {
        uint32_t wide = uint32_t(bits) << 16;
        float number;
        std::memcpy(&number, &wide, sizeof number);
        return number;
    }
};

// The structures are filled by `kernels.py`, field by field.

struct Norm {
    const float *gain, *shift;
    float epsilon;
};

// (inputs) -> (outputs): weights (outputs, inputs) in fp32; or as levels in int8 with the step of each output in
// `scale`, and inputs as they are; or, where `sums` has the sum of each output's levels, with inputs in int8 too.
struct Linear {
    const float* weight;
    const int8_t* levels;
    const float* scale;
    const int32_t* sums;
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

// sum = hidden + output, and its layer norm; `sum` may be `hidden`.
template <class Number>
void add_and_norm(const Number* hidden, const Number* output, const Norm& norm, Number* sum, Number* normed, long rows,
                  long size) {
#pragma omp parallel for if (rows > MANY_ROWS)
    for (long row = 0; row < rows; ++row) {
        const Number *before = hidden + row * size, *added = output + row * size;
        Number *total = sum + row * size, *result = normed + row * size;
        float mean = 0, variance = 0;
        for (long i = 0; i < size; ++i) {
            total[i] = float(before[i]) + float(added[i]);
            mean += float(total[i]);
        }
        mean /= size;
        for (long i = 0; i < size; ++i) variance += (float(total[i]) - mean) * (float(total[i]) - mean);
        const float scale = 1 / std::sqrt(variance / size + norm.epsilon);
        for (long i = 0; i < size; ++i) result[i] = (float(total[i]) - mean) * scale * norm.gain[i] + norm.shift[i];
    }
}

// Attention of each row over keys of its own: key number n stands in row past[row * longest + n] of `keys_values`, or,
// where there is no such table, in row first[row] + n; of these a row has count[row], or `longest`. A row of keys_values
// begins with the key of all heads, followed by the value. SIZE: of a head, where the compiler may know it, else 0.
template <long SIZE, class Query, class Number>
void attend_sized(const Query* query, long query_stride, const Number* keys_values, long stride, const int32_t* past,
                  const int32_t* first, const int32_t* count, long longest, Query* result, long rows, long heads,
                  long head_size) {
    const long size = SIZE ? SIZE : head_size, features = heads * size;
#pragma omp parallel for if (rows > MANY_ROWS)
    for (long row = 0; row < rows; ++row) {
        const long keys = past ? longest : count[row];
        std::vector<float> weights(keys), asked(size), sum(size);
        std::vector<const Number*> places(keys);
        for (long n = 0; n < keys; ++n)
            places[n] = keys_values + stride * (past ? past[row * longest + n] : first[row] + n);
        for (long head = 0; head < heads; ++head) {
            const Query* own = query + row * query_stride + head * size;
            for (long i = 0; i < size; ++i) asked[i] = float(own[i]) / std::sqrt(float(size));
            float largest = -INFINITY, total = 0;
            for (long n = 0; n < keys; ++n) {
                const Number* key = places[n] + head * size;
                float score = 0;
                for (long i = 0; i < size; ++i) score += asked[i] * float(key[i]);
                weights[n] = score;
                largest = std::max(largest, score);
            }
            for (long n = 0; n < keys; ++n) {
                weights[n] = std::exp(weights[n] - largest);
                total += weights[n];
            }
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (long n = 0; n < keys; ++n) {
                const Number* value = places[n] + features + head * size;
                for (long i = 0; i < size; ++i) sum[i] += weights[n] * float(value[i]);
            }
            for (long i = 0; i < size; ++i) result[row * features + head * size + i] = sum[i] / total;
        }
    }
}

template <class Query, class Number>
void attend(const Query* query, long query_stride, const Number* keys_values, long stride, const int32_t* past,
            const int32_t* first, const int32_t* count, long longest, Query* result, long rows, long heads,
            long head_size) {
    auto sized = head_size == 64 ? attend_sized<64, Query, Number> : attend_sized<0, Query, Number>;
    sized(query, query_stride, keys_values, stride, past, first, count, longest, result, rows, heads, head_size);
}

uint32_t bits_of(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

// Rows in levels: 127 of them reach the largest element of a row. Level 0 is stored as 128.
template <class Number>
void quantise(const Number* numbers, uint8_t* levels, float* scale, long rows, long size) {
#pragma omp parallel for if (rows > MANY_ROWS)
    for (long row = 0; row < rows; ++row) {
        const Number* own = numbers + row * size;
        // The bits of what is not negative are in the order of the numbers, and those that are none come last: compared
        // as numbers, they would be lost with -ffast-math.
        const float least = 1e-12f;
        uint32_t largest_bits = bits_of(least);
        for (long i = 0; i < size; ++i) largest_bits = std::max(largest_bits, bits_of(float(own[i])) & 0x7fffffff);
        if (largest_bits >= 0x7f800000) {                                       // infinite, or no number
            const uint32_t no_number = 0x7fc00000;
            std::memcpy(&scale[row], &no_number, sizeof no_number);
            std::memset(levels + row * size, 128, size);
            continue;
        }
        float largest;
        std::memcpy(&largest, &largest_bits, sizeof largest);
        scale[row] = largest / 127;
        for (long i = 0; i < size; ++i)
            levels[row * size + i] = uint8_t(int32_t(std::nearbyint(float(own[i]) / scale[row])) + 128);
    }
}

// Sums of `ROWS` rows with each output's weights, which are read once: (rows, outputs). Four outputs side by side keep
// the adders busy.
template <long ROWS, class Sum, class Input, class Weight>
void sums_of(const Input* __restrict input, const Weight* __restrict weight, Sum* __restrict result, long inputs,
             long outputs) {
    constexpr long SIDE_BY_SIDE = 4;
    for (long first = 0; first < outputs; first += SIDE_BY_SIDE) {
        const Weight* own[SIDE_BY_SIDE];                                        // the last one again beyond the end
        for (long part = 0; part < SIDE_BY_SIDE; ++part) own[part] = weight + std::min(first + part, outputs - 1) * inputs;
        Sum sums[SIDE_BY_SIDE][ROWS] = {};
        for (long i = 0; i < inputs; ++i)
            for (long part = 0; part < SIDE_BY_SIDE; ++part)
                for (long row = 0; row < ROWS; ++row) sums[part][row] += Sum(own[part][i]) * Sum(input[row * inputs + i]);
        for (long part = 0; part < std::min(SIDE_BY_SIDE, outputs - first); ++part)
            for (long row = 0; row < ROWS; ++row) result[row * outputs + first + part] = sums[part][row];
    }
}

template <class Sum, class Input, class Weight>
void all_sums(const Input* input, const Weight* weight, Sum* result, long rows, long inputs, long outputs) {
    for (long row = 0; row < rows;) {
        const long left = rows - row, size = left >= 5 ? 5 : left >= 2 ? 2 : 1;
        auto sized = size == 5   ? sums_of<5, Sum, Input, Weight>
                     : size == 2 ? sums_of<2, Sum, Input, Weight>
                                 : sums_of<1, Sum, Input, Weight>;
        sized(input + row * inputs, weight, result + row * outputs, inputs, outputs);
        row += size;
    }
}

void product(const Linear& linear, const float* input, float* result, long rows) {
    const long inputs = linear.inputs, outputs = linear.outputs;
    std::vector<int32_t> exact(linear.sums ? rows * outputs : 0);
    std::vector<float> input_scale(rows, 1);
    if (linear.sums) {
        std::vector<uint8_t> levels(rows * inputs);
        quantise(input, levels.data(), input_scale.data(), rows, inputs);
        all_sums(levels.data(), linear.levels, exact.data(), rows, inputs, outputs);
    } else if (linear.levels) {
        all_sums(input, linear.levels, result, rows, inputs, outputs);
    } else {
        all_sums(input, linear.weight, result, rows, inputs, outputs);
    }
    for (long row = 0; row < rows; ++row)
        for (long i = 0; i < outputs; ++i) {
            float& number = result[row * outputs + i];
            if (linear.sums) number = float(exact[row * outputs + i] - 128 * linear.sums[i]);
            if (linear.levels) number *= input_scale[row] * linear.scale[i];
            if (linear.bias) number += linear.bias[i];
        }
}

// Beyond it exp is infinite, and what divides by that with -ffast-math may make a NaN of it.
constexpr float LARGEST_EXPONENT = 80;

void activate(float* numbers, long count, long activation) {
    for (long i = 0; i < count; ++i) {
        const float x = numbers[i];
        numbers[i] = activation == RELU   ? std::max(x, 0.0f)
                     : activation == GELU ? x * 0.5f * (1 + std::erf(x * float(M_SQRT1_2)))
                                          : x / (1 + std::exp(std::min(-x, LARGEST_EXPONENT)));
    }
}

// The rows on their way through the sublayers of a stack: what is added to, what a sublayer reads and what it gives.
struct Rows {
    const Stack& stack;
    const long rows, d_model, head_size;
    std::vector<float> hidden, entering, output, projected, attended;

    Rows(const Stack& stack, const float* embedded, long rows)
        : stack(stack), rows(rows), d_model(stack.d_model), head_size(d_model / stack.heads),
          hidden(embedded, embedded + rows * d_model), entering(hidden), output(rows * d_model),
          projected(rows * std::max(3 * d_model, stack.feed_forward)), attended(rows * d_model) {
        if (stack.pre_norm) leave(stack.first);                                 // nothing is added yet
    }

    void project(const Linear& linear) { product(linear, entering.data(), projected.data(), rows); }

    void leave(const Norm& norm) {
        add_and_norm(hidden.data(), output.data(), norm, hidden.data(), entering.data(), rows, d_model);
        if (!stack.pre_norm) hidden = entering;
    }

    template <class Number>
    void attend_and_leave(long query_stride, const Number* keys_values, long stride, const int32_t* past,
                          const int32_t* first, const int32_t* count, long length, const Linear& out, const Norm& norm) {
        attend(projected.data(), query_stride, keys_values, stride, past, first, count, length, attended.data(), rows,
               stack.heads, head_size);
        product(out, attended.data(), output.data(), rows);
        leave(norm);
    }

    void feed_forward(const Layer& layer) {
        project(layer.inner);
        activate(projected.data(), rows * stack.feed_forward, stack.activation);
        product(layer.outer, projected.data(), output.data(), rows);
        leave(layer.norms[2]);
    }
};

// Keys and values of the source for each decoder layer, (layers, tokens, 2 * d_model), from embedded tokens. Each token
// sees count of them from `first` on.
template <class Number>
void encode(const Stack& encoder, const float* embedded, const int32_t* first, const int32_t* count, Number* memory,
            long tokens) {
    Rows rows(encoder, embedded, tokens);
    const long d_model = rows.d_model;
    for (long number = 0; number < encoder.number_of_layers; ++number) {
        const Layer& layer = encoder.layers[number];
        rows.project(layer.query_key_value);
        rows.attend_and_leave<float>(3 * d_model, rows.projected.data() + d_model, 3 * d_model, nullptr, first, count,
                                     0, layer.output, layer.norms[0]);
        rows.feed_forward(layer);
    }
    for (long number = 0; number < encoder.number_of_last; ++number) {
        rows.project(encoder.last[number]);
        std::copy_n(rows.projected.data(), tokens * 2 * d_model, memory + number * tokens * 2 * d_model);
    }
}

// The logits of a position. Keys and values of layer l begin at cache + l * layer_stride and are written into the rows
// from `taken` on; `past`, `first` and `count` as in `attend`.
template <class Number>
void step(const Stack& decoder, const float* embedded, Number* cache, long layer_stride, long taken, const int32_t* past,
          long length, const Number* const* memory, const int32_t* first, const int32_t* count, float* logits,
          long number_of_rows) {
    Rows rows(decoder, embedded, number_of_rows);
    const long d_model = rows.d_model;
    for (long number = 0; number < decoder.number_of_layers; ++number) {
        const Layer& layer = decoder.layers[number];
        Number* own = cache + number * layer_stride;
        rows.project(layer.query_key_value);
        for (long row = 0; row < number_of_rows; ++row)
            std::copy_n(rows.projected.data() + (3 * row + 1) * d_model, 2 * d_model, own + (taken + row) * 2 * d_model);
        rows.attend_and_leave<Number>(3 * d_model, own, 2 * d_model, past, nullptr, nullptr, length, layer.output,
                                      layer.norms[0]);
        rows.project(layer.query);
        rows.attend_and_leave<Number>(d_model, memory[number], 2 * d_model, nullptr, first, count, 0,
                                      layer.source_output, layer.norms[1]);
        rows.feed_forward(layer);
    }
    product(*decoder.last, rows.entering.data(), logits, number_of_rows);
}

// Products with levels, (rows, outputs), brought back to scale.
extern "C" void rescale(float* products, const float* input_scale, const float* bias, long rows, long outputs) {
#pragma omp parallel for if (rows > MANY_ROWS)
    for (long row = 0; row < rows; ++row)
        for (long i = 0; i < outputs; ++i) {
            float& number = products[row * outputs + i];
            number = number * input_scale[row] + (bias ? bias[i] : 0);
        }
}

#define FOR_NUMBERS(NAME, Number)                                                                                      \
    extern "C" void add_and_norm_##NAME(const Number* hidden, const Number* output, const Norm* norm, Number* sum,     \
                                        Number* normed, long rows, long size) {                                        \
        add_and_norm(hidden, output, *norm, sum, normed, rows, size);                                                  \
    }                                                                                                                  \
    extern "C" void attend_##NAME(const Number* query, long query_stride, const Number* keys_values, long stride,      \
                                  const int32_t* past, const int32_t* first, const int32_t* count, long longest,       \
                                  Number* result, long rows, long heads, long head_size) {                             \
        attend(query, query_stride, keys_values, stride, past, first, count, longest, result, rows, heads, head_size); \
    }                                                                                                                  \
    extern "C" void quantise_##NAME(const Number* numbers, uint8_t* levels, float* scale, long rows, long size) {      \
        quantise(numbers, levels, scale, rows, size);                                                                  \
    }                                                                                                                  \
    extern "C" void encode_##NAME(const Stack* encoder, const float* embedded, const int32_t* first,                   \
                                  const int32_t* count, Number* memory, long tokens) {                                 \
        encode(*encoder, embedded, first, count, memory, tokens);                                                      \
    }                                                                                                                  \
    extern "C" void step_##NAME(const Stack* decoder, const float* embedded, Number* cache, long layer_stride,         \
                                long taken, const int32_t* past, long length, const Number* const* memory,             \
                                const int32_t* first, const int32_t* count, float* logits, long rows) {                \
        step(*decoder, embedded, cache, layer_stride, taken, past, length, memory, first, count, logits, rows);        \
    }

FOR_NUMBERS(fp32, float)
FOR_NUMBERS(bf16, BFloat16)
