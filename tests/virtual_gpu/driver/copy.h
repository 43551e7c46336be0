// Moving bytes between host and device, one row or many.
//
// Callers: copy.cpp (1-D), copy_2d.cpp. Invariant: nothing is queued whose device side does not lie in one live
// allocation; what is known of the bytes (written or not) goes with them.
#pragma once

#include <optional>

#include "context.h"

namespace vgpu {

enum class Side : uint8_t { host, device, either };

// Whether the driver knows this host memory, so that copies from and to it are asynchronous.
bool page_locked(const Driver& state, uint64_t address, uint64_t bytes);
// Whether a copy may touch these bytes on this side.
bool reachable(const Driver& state, Side side, uint64_t address, uint64_t bytes);
// Bytes from the first of the first row to the last of the last, rows `pitch` apart; false where that is more than 64 bits.
inline bool extent_of(uint64_t rows, uint64_t pitch, uint64_t width, uint64_t& bytes) {
    return !__builtin_mul_overflow(rows - 1, pitch, &bytes) && !__builtin_add_overflow(bytes, width, &bytes);
}
// Copies one row, now.
void copy_row(Memory& memory, uint64_t to, uint64_t from, uint64_t bytes);

struct Copy {
    uint64_t to = 0, from = 0, bytes = 0;
    Side to_side = Side::device, from_side = Side::device;
};

CUresult copy_now(const Copy& copy);
CUresult copy_in_stream(const Copy& copy, CUstream stream);

}  // namespace vgpu
