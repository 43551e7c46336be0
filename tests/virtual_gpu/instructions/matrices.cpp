// ldmatrix and mma.sync: PTX ISA 8.5, sections 9.7.14.4 and 9.7.14.5. In every shape a 32-bit register holds four bytes
// of a row: int8 and float16 fragments differ in what the bytes mean only.
//
// Integer sums are exact modulo 2^32 (or clamped, .satfinite). float16 products are exact, their sum is made in double and
// rounded once with the accumulator: the hardware's order of summing is not specified.
#include <algorithm>
#include <cstring>

#include "access.h"
#include "half.h"
#include "lanes.h"

namespace vgpu {

namespace {

void need_whole_warp(Warp& warp, uint32_t mask, const char* name) {
    if (mask != ALL)
        throw Trap{ERROR_LAUNCH_FAILED, std::string(name) + " is executed by some lanes of the warp only (mask " + std::to_string(mask) +
                   ", alive " + std::to_string(warp.alive) + ")"};
}

template <int COUNT, bool TRANSPOSED>
void ldmatrix(Warp& warp, const Op& op, uint32_t mask) {
    need_whole_warp(warp, mask, "ldmatrix");
    const uint8_t* rows[COUNT * 8];
    uint64_t addresses[COUNT * 8];
    for (int i = 0; i < COUNT * 8; ++i) {
        addresses[i] = address_of(warp, op, COUNT, i);
        rows[i] = shared_bytes(warp, addresses[i], 16, i, Use::read);
    }
    if (warp.block->grid.options.count) {
        Counters& counters = warp.block->counters;
        ++counters.shared_load_requests;
        counters.shared_load_wavefronts += wavefronts(addresses, COUNT * 8, 16);
        counters.shared_load_least += COUNT;
    }
    uint32_t values[COUNT][LANES];
    for (int m = 0; m < COUNT; ++m)
        for (int l = 0; l < LANES; ++l) {
            if constexpr (TRANSPOSED) {
                uint16_t low, high;
                std::memcpy(&low, rows[m * 8 + l % 4 * 2] + l / 4 * 2, 2);
                std::memcpy(&high, rows[m * 8 + l % 4 * 2 + 1] + l / 4 * 2, 2);
                values[m][l] = static_cast<uint32_t>(high) << 16 | low;
            } else {
                std::memcpy(&values[m][l], rows[m * 8 + l / 4] + l % 4 * 4, 4);
            }
        }
    for (int m = 0; m < COUNT; ++m) std::memcpy(lanes<uint32_t>(warp, op.at[m]), values[m], sizeof values[m]);
}

// Rows of `ROWS` x `WORDS` four-byte pieces, gathered from the fragments of all lanes: register r of lane l holds row
// l / 4 (+ 8 for odd r where there are 16 rows), word l % 4 (+ 4 for the upper half of K).
template <int ROWS, int WORDS>
void gather(Warp& warp, const uint32_t* at, uint32_t (&to)[ROWS][WORDS]) {
    constexpr int HALVES = ROWS / 8;
    for (int r = 0; r < HALVES * WORDS / 4; ++r) {
        const uint32_t* from = lanes<uint32_t>(warp, at[r]);
        for (int row = 0; row < 8; ++row) std::memcpy(&to[row + r % HALVES * 8][r / HALVES * 4], from + row * 4, 16);
    }
}

template <int M, int K, class A, class B, bool SATURATE>
void mma_integer(Warp& warp, const Op& op, uint32_t mask) {
    need_whole_warp(warp, mask, "mma");
    constexpr int WORDS = K / 4, D = M / 4, NA = M / 8 * WORDS / 4, NB = WORDS / 4;
    uint32_t a[M][WORDS], b[8][WORDS];
    gather<M, WORDS>(warp, op.at + D, a);
    gather<8, WORDS>(warp, op.at + D + NA, b);
    alignas(64) int16_t left[M][K], right[8][K];
    for (int i = 0; i < M; ++i)
        for (int k = 0; k < K; ++k) left[i][k] = reinterpret_cast<const A*>(a[i])[k];
    for (int j = 0; j < 8; ++j)
        for (int k = 0; k < K; ++k) right[j][k] = reinterpret_cast<const B*>(b[j])[k];
    int32_t sums[M][8];
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < 8; ++j) {
            int32_t sum = 0;
            for (int k = 0; k < K; ++k) sum += static_cast<int32_t>(left[i][k]) * right[j][k];
            sums[i][j] = sum;
        }
    int32_t results[D][LANES];
    for (int r = 0; r < D; ++r) {
        const int32_t* c = lanes<int32_t>(warp, op.at[D + NA + NB + r]);
        for (int l = 0; l < LANES; ++l) {
            const int32_t sum = sums[l / 4 + r / 2 * 8][l % 4 * 2 + r % 2];
            if constexpr (SATURATE) {
                const int64_t exact = static_cast<int64_t>(c[l]) + sum;
                results[r][l] = static_cast<int32_t>(std::clamp<int64_t>(exact, INT32_MIN, INT32_MAX));
            } else {
                results[r][l] = c[l] + sum;
            }
        }
    }
    for (int r = 0; r < D; ++r) std::memcpy(lanes<int32_t>(warp, op.at[r]), results[r], sizeof results[r]);
}

// Both elements of a register of a float16 accumulator, or the one of a float32 one.
template <bool HALF_RESULT>
void read_accumulator(const uint32_t* c, int r, double (&sums)[16][8]) {
    for (int row = 0; row < 8; ++row)
        for (int quarter = 0; quarter < 4; ++quarter) {
            const uint32_t bits = c[row * 4 + quarter];
            if constexpr (HALF_RESULT) {
                sums[row + r * 8][quarter * 2] = half_to_float(static_cast<uint16_t>(bits));
                sums[row + r * 8][quarter * 2 + 1] = half_to_float(static_cast<uint16_t>(bits >> 16));
            } else {
                sums[row + r / 2 * 8][quarter * 2 + r % 2] = bits_float(bits);
            }
        }
}

template <bool HALF_RESULT>
void write_result(uint32_t* d, int r, const double (&sums)[16][8]) {
    for (int row = 0; row < 8; ++row)
        for (int quarter = 0; quarter < 4; ++quarter) {
            if constexpr (HALF_RESULT) {
                const double* two = &sums[row + r * 8][quarter * 2];
                d[row * 4 + quarter] = static_cast<uint32_t>(double_to_half(two[1])) << 16 | double_to_half(two[0]);
            } else {
                const double sum = sums[row + r / 2 * 8][quarter * 2 + r % 2];
                d[row * 4 + quarter] = sum != sum ? 0x7fffffff : float_bits(static_cast<float>(sum));
            }
        }
}

// HALF_RESULT: the accumulator is float16, two to a register.
template <int K, bool HALF_RESULT>
void mma_half(Warp& warp, const Op& op, uint32_t mask) {
    need_whole_warp(warp, mask, "mma");
    constexpr int WORDS = K / 2, D = HALF_RESULT ? 2 : 4, NA = 2 * WORDS / 4, NB = WORDS / 4;
    alignas(64) uint32_t a[16][WORDS], b[8][WORDS];
    gather<16, WORDS>(warp, op.at + D, a);
    gather<8, WORDS>(warp, op.at + D + NA, b);
    alignas(64) float left[16][K], right[8][K], across[K][8];
    for (int i = 0; i < 16; ++i)
        for (int k = 0; k < K; ++k) left[i][k] = half_to_float(reinterpret_cast<const uint16_t*>(a[i])[k]);
    for (int j = 0; j < 8; ++j)
        for (int k = 0; k < K; ++k) right[j][k] = half_to_float(reinterpret_cast<const uint16_t*>(b[j])[k]);
    for (int k = 0; k < K; ++k)
        for (int j = 0; j < 8; ++j) across[k][j] = right[j][k];
    alignas(64) double sums[16][8];
    for (int r = 0; r < D; ++r) read_accumulator<HALF_RESULT>(lanes<uint32_t>(warp, op.at[D + NA + NB + r]), r, sums);
    for (int i = 0; i < 16; ++i)
        for (int k = 0; k < K; ++k)  // in this order; the columns side by side, which vectorises
            for (int j = 0; j < 8; ++j) sums[i][j] += static_cast<double>(left[i][k] * across[k][j]);
    for (int r = 0; r < D; ++r) write_result<HALF_RESULT>(lanes<uint32_t>(warp, op.at[r]), r, sums);
}

template <class A, class B>
void add_integers(Forms& forms, const std::string& types) {
    const std::string head = "mma.sync.aligned.", tail = ".s32." + types + ".s32";
    forms.add_collective(head + "m16n8k32.row.col" + tail, "4W4w2w4w", &mma_integer<16, 32, A, B, false>);
    forms.add_collective(head + "m16n8k32.row.col.satfinite" + tail, "4W4w2w4w", &mma_integer<16, 32, A, B, true>);
    forms.add_collective(head + "m16n8k16.row.col" + tail, "4W2w1w4w", &mma_integer<16, 16, A, B, false>);
    forms.add_collective(head + "m16n8k16.row.col.satfinite" + tail, "4W2w1w4w", &mma_integer<16, 16, A, B, true>);
    forms.add_collective(head + "m8n8k16.row.col" + tail, "2W1w1w2w", &mma_integer<8, 16, A, B, false>);
    forms.add_collective(head + "m8n8k16.row.col.satfinite" + tail, "2W1w1w2w", &mma_integer<8, 16, A, B, true>);
}

}  // namespace

void add_matrices(Forms& forms) {
    const std::string load = "ldmatrix.sync.aligned.m8n8.";
    forms.add_collective(load + "x1.shared.b16", "1W@", &ldmatrix<1, false>);
    forms.add_collective(load + "x2.shared.b16", "2W@", &ldmatrix<2, false>);
    forms.add_collective(load + "x4.shared.b16", "4W@", &ldmatrix<4, false>);
    forms.add_collective(load + "x1.trans.shared.b16", "1W@", &ldmatrix<1, true>);
    forms.add_collective(load + "x2.trans.shared.b16", "2W@", &ldmatrix<2, true>);
    forms.add_collective(load + "x4.trans.shared.b16", "4W@", &ldmatrix<4, true>);
    add_integers<int8_t, int8_t>(forms, "s8.s8");
    add_integers<uint8_t, int8_t>(forms, "u8.s8");
    add_integers<int8_t, uint8_t>(forms, "s8.u8");
    add_integers<uint8_t, uint8_t>(forms, "u8.u8");
    const std::string head = "mma.sync.aligned.";
    forms.add_collective(head + "m16n8k16.row.col.f32.f16.f16.f32", "4W4w2w4w", &mma_half<16, false>);
    forms.add_collective(head + "m16n8k8.row.col.f32.f16.f16.f32", "4W2w1w4w", &mma_half<8, false>);
    forms.add_collective(head + "m16n8k16.row.col.f16.f16.f16.f16", "2W4w2w2w", &mma_half<16, true>);
    forms.add_collective(head + "m16n8k8.row.col.f16.f16.f16.f16", "2W2w1w2w", &mma_half<8, true>);
}

}  // namespace vgpu
