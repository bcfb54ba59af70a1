// One vector register of floats, in GCC/Clang vector types as wide as the instruction set's own registers.
// kernels.cpp is compiled once per set (see CMakeLists.txt); everything lives in a namespace named for the set, so the
// linker can never merge two builds of one function. What the compiler can't express well in plain vector types
// (least and greatest, narrowing, widening, testing) has a few lines of intrinsics at the end; other processors take
// the plain form.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define TW_INLINE static inline __attribute__((always_inline))
#define TW_MEMBER inline __attribute__((always_inline))
#define TW_VECTOR(bytes) __attribute__((vector_size(bytes)))

namespace thinwire::THINWIRE_ISA {

#if defined(__AVX512F__)
#define TW_BYTES 64
#elif defined(__AVX2__)
#define TW_BYTES 32
#else
#define TW_BYTES 16
#endif

typedef float Floats TW_VECTOR(TW_BYTES);
typedef int32_t Ints TW_VECTOR(TW_BYTES);
typedef uint32_t Words TW_VECTOR(TW_BYTES);
typedef uint64_t Longs TW_VECTOR(TW_BYTES);
typedef double Doubles TW_VECTOR(TW_BYTES);
typedef float HalfFloats TW_VECTOR(TW_BYTES / 2);
typedef uint16_t Shorts TW_VECTOR(TW_BYTES / 2);
constexpr int LANES = TW_BYTES / 4;
constexpr int BLOCK = 4 * LANES;  // as many one-byte codes as one register holds

template <class V>
TW_INLINE V load(const void* p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}

template <class V>
TW_INLINE void store(void* p, V v) {
    memcpy(p, &v, sizeof v);
}

TW_INLINE Floats splat(float x) { return x - Floats{}; }  // x - 0 is x, -0.0 and NaN included
TW_INLINE Ints splat(int32_t x) { return x - Ints{}; }
TW_INLINE Words bits_of(Floats x) { return (Words)x; }
TW_INLINE Words magnitude(Floats x) { return bits_of(x) & 0x7fffffffu; }
TW_INLINE Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }
TW_INLINE Ints truncate(Floats x) { return __builtin_convertvector(x, Ints); }

TW_INLINE Ints iota() {
    Ints v{};
    for (int i = 0; i < LANES; ++i) v[i] = i;
    return v;
}

constexpr uint32_t NON_FINITE = 0x7f800000u;  // magnitudes from here on are infinity and NaN

// any: does a comparison hold somewhere; lanes: where, a bit for each lane; lanes_above_zero: where a value is.

// Four registers of codes (each 0..255) in one register of bytes, in order; and back.
struct Codes {
    Ints part[4];
};

#if TW_BYTES == 64

TW_INLINE Floats smaller(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
TW_INLINE Floats larger(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
TW_INLINE Ints smaller(Ints a, Ints b) { return (Ints)_mm512_min_epi32((__m512i)a, (__m512i)b); }
TW_INLINE Words larger(Words a, Words b) { return (Words)_mm512_max_epu32((__m512i)a, (__m512i)b); }
TW_INLINE float smallest(Floats v) { return _mm512_reduce_min_ps((__m512)v); }
TW_INLINE float largest(Floats v) { return _mm512_reduce_max_ps((__m512)v); }
TW_INLINE void stream(float* p, Floats v) { _mm512_stream_ps(p, (__m512)v); }
TW_INLINE bool any(Ints v) { return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0; }
TW_INLINE uint32_t lanes(Ints v) { return _mm512_movepi32_mask((__m512i)v); }
TW_INLINE uint32_t lanes_above_zero(Floats v) { return _mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_GT_OQ); }

TW_INLINE Longs join(const Codes& c) {
    __m512i low = _mm512_packs_epi32((__m512i)c.part[0], (__m512i)c.part[1]);
    __m512i high = _mm512_packs_epi32((__m512i)c.part[2], (__m512i)c.part[3]);
    // The packs work inside 128-bit lanes; this puts the pieces back in order.
    __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return (Longs)_mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
}

TW_INLINE Codes split(Longs bytes) {
    __m512i b = (__m512i)bytes;
    return {(Ints)_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(b, 0)),
            (Ints)_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(b, 1)),
            (Ints)_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(b, 2)),
            (Ints)_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(b, 3))};
}

#elif TW_BYTES == 32

TW_INLINE Floats smaller(Floats a, Floats b) { return (Floats)_mm256_min_ps((__m256)a, (__m256)b); }
TW_INLINE Floats larger(Floats a, Floats b) { return (Floats)_mm256_max_ps((__m256)a, (__m256)b); }
TW_INLINE Ints smaller(Ints a, Ints b) { return (Ints)_mm256_min_epi32((__m256i)a, (__m256i)b); }
TW_INLINE Words larger(Words a, Words b) { return (Words)_mm256_max_epu32((__m256i)a, (__m256i)b); }
TW_INLINE void stream(float* p, Floats v) { _mm256_stream_ps(p, (__m256)v); }
TW_INLINE bool any(Ints v) { return !_mm256_testz_si256((__m256i)v, (__m256i)v); }
TW_INLINE uint32_t lanes(Ints v) { return (uint32_t)_mm256_movemask_ps((__m256)v); }

TW_INLINE Longs join(const Codes& c) {
    __m256i low = _mm256_packs_epi32((__m256i)c.part[0], (__m256i)c.part[1]);
    __m256i high = _mm256_packs_epi32((__m256i)c.part[2], (__m256i)c.part[3]);
    __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // puts the pieces back in order
    return (Longs)_mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
}

TW_INLINE Codes split(Longs bytes) {
    __m128i low = _mm256_castsi256_si128((__m256i)bytes), high = _mm256_extracti128_si256((__m256i)bytes, 1);
    return {(Ints)_mm256_cvtepu8_epi32(low), (Ints)_mm256_cvtepu8_epi32(_mm_srli_si128(low, 8)),
            (Ints)_mm256_cvtepu8_epi32(high), (Ints)_mm256_cvtepu8_epi32(_mm_srli_si128(high, 8))};
}

#elif defined(__x86_64__)

TW_INLINE Floats smaller(Floats a, Floats b) { return (Floats)_mm_min_ps((__m128)a, (__m128)b); }
TW_INLINE Floats larger(Floats a, Floats b) { return (Floats)_mm_max_ps((__m128)a, (__m128)b); }
TW_INLINE Ints smaller(Ints a, Ints b) { return a < b ? a : b; }
TW_INLINE Words larger(Words a, Words b) { return a > b ? a : b; }
TW_INLINE void stream(float* p, Floats v) { _mm_stream_ps(p, (__m128)v); }
TW_INLINE bool any(Ints v) { return _mm_movemask_epi8((__m128i)v) != 0; }
TW_INLINE uint32_t lanes(Ints v) { return (uint32_t)_mm_movemask_ps((__m128)v); }

TW_INLINE Longs join(const Codes& c) {
    __m128i low = _mm_packs_epi32((__m128i)c.part[0], (__m128i)c.part[1]);
    __m128i high = _mm_packs_epi32((__m128i)c.part[2], (__m128i)c.part[3]);
    return (Longs)_mm_packus_epi16(low, high);
}

TW_INLINE Codes split(Longs bytes) {
    __m128i zero = _mm_setzero_si128();
    __m128i low = _mm_unpacklo_epi8((__m128i)bytes, zero), high = _mm_unpackhi_epi8((__m128i)bytes, zero);
    return {(Ints)_mm_unpacklo_epi16(low, zero), (Ints)_mm_unpackhi_epi16(low, zero),
            (Ints)_mm_unpacklo_epi16(high, zero), (Ints)_mm_unpackhi_epi16(high, zero)};
}

#else

TW_INLINE Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
TW_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }
TW_INLINE Ints smaller(Ints a, Ints b) { return a < b ? a : b; }
TW_INLINE Words larger(Words a, Words b) { return a > b ? a : b; }
TW_INLINE void stream(float* p, Floats v) { store(p, v); }
TW_INLINE bool any(Ints v) {
    Longs w = (Longs)v;
    return (w[0] | w[1]) != 0;
}
TW_INLINE uint32_t lanes(Ints v) {
    uint32_t set = 0;
    for (int i = 0; i < LANES; ++i) set |= (uint32_t)(v[i] != 0) << i;
    return set;
}

TW_INLINE Longs join(const Codes& c) {
    uint8_t bytes[BLOCK];
    for (int i = 0; i < BLOCK; ++i) bytes[i] = (uint8_t)c.part[i / LANES][i % LANES];
    return load<Longs>(bytes);
}

TW_INLINE Codes split(Longs v) {
    uint8_t bytes[BLOCK];
    store(bytes, v);
    Codes c;
    for (int i = 0; i < BLOCK; ++i) c.part[i / LANES][i % LANES] = bytes[i];
    return c;
}

#endif

TW_INLINE void end_of_stream() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

#if TW_BYTES < 64

TW_INLINE uint32_t lanes_above_zero(Floats v) { return lanes(v > Floats{}); }

TW_INLINE float smallest(Floats v) {
    float result = v[0];
    for (int i = 1; i < LANES; ++i) result = v[i] < result ? v[i] : result;
    return result;
}

TW_INLINE float largest(Floats v) {
    float result = v[0];
    for (int i = 1; i < LANES; ++i) result = v[i] > result ? v[i] : result;
    return result;
}

#endif

}  // namespace thinwire::THINWIRE_ISA
