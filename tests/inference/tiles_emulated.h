// The instructions for tiles (AMX) that kernels.cpp uses in plain C++, for tests on processors that have none. What the
// processor refuses ends the process; the bytes that are read and written are the same, so that sanitizers see them.

#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>

namespace emulated {

constexpr int TILES = 8, ROWS = 16, BYTES = 64, LANES = BYTES / 4;

// As it lies in memory. Of palette 0: nothing is configured.
struct Sizes {
    uint8_t palette, first_row, nothing[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(Sizes) == 64);

static thread_local Sizes sizes;
static thread_local uint8_t tiles[TILES][ROWS][BYTES];

inline void load_sizes(const void* from) {
    std::memcpy(&sizes, from, sizeof sizes);
    assert(sizes.palette == 1 && sizes.first_row == 0);
    for (const uint8_t byte : sizes.nothing) assert(byte == 0);
    for (int tile = 0; tile < 16; ++tile) {
        assert(sizes.rows[tile] <= (tile < TILES ? ROWS : 0) && sizes.bytes[tile] <= BYTES);
        assert((sizes.rows[tile] == 0) == (sizes.bytes[tile] == 0));
    }
    std::memset(tiles, 0, sizeof tiles);
}

inline void release() {
    sizes = {};
    std::memset(tiles, 0, sizeof tiles);
}

inline void must_be_configured(int tile) {
    assert(sizes.palette == 1 && tile >= 0 && tile < TILES && sizes.rows[tile] > 0);
}

inline void zero(int tile) {
    must_be_configured(tile);
    std::memset(tiles[tile], 0, sizeof tiles[tile]);
}

// What lies outside of the tile's size becomes zero.
inline void load(int tile, const void* from, long stride) {
    zero(tile);
    for (int row = 0; row < sizes.rows[tile]; ++row)
        std::memcpy(tiles[tile][row], (const uint8_t*)from + row * stride, sizes.bytes[tile]);
}

inline void store(int tile, void* to, long stride) {
    must_be_configured(tile);
    for (int row = 0; row < sizes.rows[tile]; ++row)
        std::memcpy((uint8_t*)to + row * stride, tiles[tile][row], sizes.bytes[tile]);
}

// sum += a * b, of a the bytes unsigned, of b signed; of both, four bytes belong to one product. What lies outside of
// the sum's size becomes zero.
inline void add_product(int sum, int a, int b) {
    for (const int tile : {sum, a, b}) {
        must_be_configured(tile);
        assert(sizes.bytes[tile] % 4 == 0);
    }
    assert(sum != a && sum != b && a != b);
    assert(sizes.rows[sum] == sizes.rows[a] && sizes.bytes[sum] == sizes.bytes[b]);
    assert(sizes.bytes[a] == 4 * sizes.rows[b]);
    // Read from memory that every thread has of its own, each number would cost a call.
    const auto &rows_of_a = tiles[a], &rows_of_b = tiles[b];
    const int rows = sizes.rows[sum], lanes = sizes.bytes[sum] / 4, bytes = sizes.bytes[a];
    int32_t before[ROWS][LANES], after[ROWS][LANES] = {};
    std::memcpy(before, tiles[sum], sizeof before);
    for (int row = 0; row < rows; ++row)
        for (int lane = 0; lane < lanes; ++lane) {
            int32_t total = before[row][lane];
            for (int i = 0; i < bytes; ++i) total += rows_of_a[row][i] * int8_t(rows_of_b[i / 4][4 * lane + i % 4]);
            after[row][lane] = total;
        }
    std::memcpy(tiles[sum], after, sizeof after);
}

}  // namespace emulated

// Some of the compiler's own are macros.
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
#define _tile_loadconfig emulated::load_sizes
#define _tile_release emulated::release
#define _tile_zero emulated::zero
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_dpbusd emulated::add_product
