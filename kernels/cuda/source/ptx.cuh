// The only file that writes PTX. One instruction a function, named after it; every function is inlined.
//
// Arithmetic that the contract fixes goes through fmul and fadd: one rounding each, never contracted.
#pragma once

using int8 = signed char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;

// std::conditional, which NVRTC does not have.
template <bool YES, class A, class B>
struct Choose { using Type = A; };
template <class A, class B>
struct Choose<false, A, B> { using Type = B; };

#define ORIND_DEVICE static __device__ __forceinline__

// Addresses in shared memory are 32-bit offsets.
ORIND_DEVICE uint32 shared_address(const void* at) { return static_cast<uint32>(__cvta_generic_to_shared(at)); }

// 16 bytes from global to shared memory, in the background; zeros where `inside` is false. Through L1: neighbouring taps
// of a window read the same pixels.
ORIND_DEVICE void copy_async_near(uint32 to, const void* from, bool inside) {
    const int bytes = inside ? 16 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// The same past L1: weights are read once by a block.
ORIND_DEVICE void copy_async_far(uint32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(to), "l"(from) : "memory");
}

ORIND_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most `LEFT` of this thread's groups are not complete.
template <int LEFT>
ORIND_DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;\n" ::"n"(LEFT) : "memory"); }

// Four 8 x 16-byte matrices; lane 8 i + r gives the address of row r of matrix i.
ORIND_DEVICE void load_matrices(uint32 (&to)[4], uint32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}

// sums += a (16 x 32 bytes, rows) * b (32 bytes x 8, columns). The fragments of int8 and float16 are the same bytes.
struct SignedBytes {
    using Sum = int;
    static __device__ __forceinline__ void multiply(int (&sums)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                     : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

// Activations without sign: the graph's input as it comes from a camera. Weights keep theirs.
struct UnsignedBytes {
    using Sum = int;
    static __device__ __forceinline__ void multiply(int (&sums)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                     : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

struct Halves {
    using Sum = float;
    static __device__ __forceinline__ void multiply(float (&sums)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

ORIND_DEVICE float fmul(float a, float b) { return __fmul_rn(a, b); }
ORIND_DEVICE float fadd(float a, float b) { return __fadd_rn(a, b); }
ORIND_DEVICE float clamp(float v, float low, float high) { return fminf(fmaxf(v, low), high); }

// NaN stays NaN: a fault must not turn into a number.
ORIND_DEVICE float bound(float v, float low, float high) {
    asm("max.NaN.f32 %0, %0, %1;\n\tmin.NaN.f32 %0, %0, %2;\n" : "+f"(v) : "f"(low), "f"(high));
    return v;
}

// Round half to even of |v| <= 2^22, in the low bits: adding 1.5 * 2^23 leaves the whole number there, at the full rate
// of float32 additions.
ORIND_DEVICE uint32 round_bits(float v) { return __float_as_uint(__fadd_rn(v, 12582912.0f)); }

// The low bytes of four numbers, first lowest.
ORIND_DEVICE uint32 pack_bytes(uint32 a, uint32 b, uint32 c, uint32 d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

ORIND_DEVICE float byte_to_float(uint32 four, int which) { return static_cast<float>(static_cast<int8>(four >> which * 8)); }

// Two float16, first lower; round half to even.
ORIND_DEVICE uint32 pack_halves(float first, float second) {
    uint32 two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(two) : "f"(second), "f"(first));
    return two;
}

ORIND_DEVICE float half_to_float(uint32 two, int which) {
    float value;
    asm("cvt.f32.f16 %0, %1;\n" : "=f"(value) : "h"(static_cast<uint16>(two >> which * 16)));
    return value;
}

// BYTES / 4 words of global memory at once; aligned to BYTES (at most 16).
template <int BYTES>
ORIND_DEVICE void load_words(uint32* to, const void* from) {
    if constexpr (BYTES == 16) {
        const uint4 v = *static_cast<const uint4*>(from);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else if constexpr (BYTES == 8) {
        const uint2 v = *static_cast<const uint2*>(from);
        to[0] = v.x, to[1] = v.y;
    } else {
        static_assert(BYTES == 4, "4, 8 or 16 bytes");
        to[0] = *static_cast<const uint32*>(from);
    }
}

template <int BYTES>
ORIND_DEVICE void store_words(void* to, const uint32* from) {
    if constexpr (BYTES == 16) *static_cast<uint4*>(to) = make_uint4(from[0], from[1], from[2], from[3]);
    else if constexpr (BYTES == 8) *static_cast<uint2*>(to) = make_uint2(from[0], from[1]);
    else *static_cast<uint32*>(to) = from[0];
}
