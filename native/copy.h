// Float32 to 32 or 16 bits and back, checking for infinity and NaN on the way; specification: codecs/twins/copy.py.
#pragma once
#include "kernels.h"
#include "vec.h"

namespace thinwire::THINWIRE_ISA {

struct Single {
    static constexpr int BYTES = 4;
    TW_INLINE void put(Floats x, uint8_t* out) { store(out, x); }
    TW_INLINE Floats get(const uint8_t* data) { return load<Floats>(data); }
    // Bits above this magnitude can't be sent.
    static constexpr uint32_t LIMIT = NON_FINITE - 1;
};

struct Brain {
    static constexpr int BYTES = 2;
    static constexpr uint32_t LIMIT = 0x7f7f7fffu;  // what still rounds to a finite bfloat16
    TW_INLINE void put(Floats x, uint8_t* out) {
        Words b = bits_of(x);
        b += 0x7fffu + ((b >> 16) & 1u);  // to nearest, ties to even
        store(out, __builtin_convertvector(b >> 16, Shorts));
    }
    TW_INLINE Floats get(const uint8_t* data) {
        return (Floats)(__builtin_convertvector(load<Shorts>(data), Words) << 16);
    }
};

struct Half {
    static constexpr int BYTES = 2;
    static constexpr uint32_t LIMIT = 0x477fefffu;  // 65519.996, what still rounds to a finite float16
    TW_INLINE void put(Floats x, uint8_t* out) {
#if defined(__AVX512F__)
        store(out, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
        store(out, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
        // Scaling by a power of two lets float32's own rounding do the work: 2^-112 moves the exponent, and adding a
        // value whose unit is 2^-24 rounds subnormals. (Magnitudes beyond LIMIT are refused before they are sent.)
        Words sign = (bits_of(x) & 0x80000000u) >> 16, b = magnitude(x);
        Words normal = (b + 0xfffu + ((b >> 13) & 1u) - (112u << 23)) >> 13;
        Words small = bits_of((Floats)b + 0.5f) - 0x3f000000u;
        store(out, __builtin_convertvector((b < (113u << 23) ? small : normal) | sign, Shorts));
#endif
    }
    TW_INLINE Floats get(const uint8_t* data) {
#if defined(__AVX512F__)
        return (Floats)_mm512_cvtph_ps(load<__m256i>(data));
#elif defined(__F16C__)
        return (Floats)_mm256_cvtph_ps(load<__m128i>(data));
#else
        Words h = __builtin_convertvector(load<Shorts>(data), Words);
        Words sign = (h & 0x8000u) << 16, b = (h & 0x7fffu) << 13;
        Floats finite = (Floats)b * 0x1p112f;
        Words special = b | NON_FINITE;  // infinity and NaN keep their exponent of ones
        return (Floats)(((h & 0x7c00u) == 0x7c00u ? special : bits_of(finite)) | sign);
#endif
    }
};

template <class Format>
TW_INLINE bool encode_copy(const float* x, int64_t count, uint8_t* out) {
    Ints bad{};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        Floats v = load<Floats>(x + i);
        bad |= magnitude(v) > Format::LIMIT;
        Format::put(v, out + i * Format::BYTES);
    }
    if (i < count) {
        float tail[LANES] = {};
        uint8_t sent[LANES * Format::BYTES];
        memcpy(tail, x + i, (count - i) * sizeof(float));
        Floats v = load<Floats>(tail);
        bad |= magnitude(v) > Format::LIMIT;
        Format::put(v, sent);
        memcpy(out + i * Format::BYTES, sent, (count - i) * Format::BYTES);
    }
    return !any(bad);
}

template <class Format>
TW_INLINE void decode_copy(const uint8_t* data, int64_t count, float* x, Put put) {
    int64_t i = 0;
    if (put == Put::add)
        for (; i + LANES <= count; i += LANES)
            store(x + i, load<Floats>(x + i) + Format::get(data + i * Format::BYTES));
    else
        for (; i + LANES <= count; i += LANES) store(x + i, Format::get(data + i * Format::BYTES));
    if (i < count) {
        uint8_t sent[LANES * Format::BYTES] = {};
        float before[LANES] = {};
        memcpy(sent, data + i * Format::BYTES, (count - i) * Format::BYTES);
        memcpy(before, x + i, (count - i) * sizeof(float));
        const Floats v = put == Put::add ? load<Floats>(before) + Format::get(sent) : Format::get(sent);
        memcpy(x + i, &v, (count - i) * sizeof(float));
    }
}

}  // namespace thinwire::THINWIRE_ISA
