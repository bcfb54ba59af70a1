// One register of byte codes to BITS / 8 as many bytes and back; the first code stands in the lowest bits.
// Eight codes share a 64-bit lane, so each halving is one shift, one or, one mask for the whole register.
#pragma once
#include "kernels.h"
#include "vec.h"

namespace thinwire::THINWIRE_ISA {

typedef uint32_t Longs32 TW_VECTOR(TW_BYTES / 2);
typedef uint16_t Longs16 TW_VECTOR(TW_BYTES / 4);
typedef uint8_t Longs8 TW_VECTOR(TW_BYTES / 8);

TW_INLINE int64_t packed_bytes(int64_t count, int bits) { return (count * bits + 7) / 8; }

template <int BITS>
TW_INLINE void pack(Longs v, uint8_t* out) {
    if constexpr (BITS == 8) {
        store(out, v);
    } else if constexpr (BITS == 4) {
        v = (v | (v >> 4)) & 0x00ff00ff00ff00ffu;
        v = (v | (v >> 8)) & 0x0000ffff0000ffffu;
        v = v | (v >> 16);
        store(out, __builtin_convertvector(v, Longs32));
    } else if constexpr (BITS == 2) {
        v = (v | (v >> 6)) & 0x000f000f000f000fu;
        v = (v | (v >> 12)) & 0x000000ff000000ffu;
        v = v | (v >> 24);
        store(out, __builtin_convertvector(v, Longs16));
    } else {
        static_assert(BITS == 1);
        v = (v | (v >> 7)) & 0x0003000300030003u;
        v = (v | (v >> 14)) & 0x0000000f0000000fu;
        v = v | (v >> 28);
        store(out, __builtin_convertvector(v, Longs8));
    }
}

template <int BITS>
TW_INLINE Longs unpack(const uint8_t* data) {
    if constexpr (BITS == 8) {
        return load<Longs>(data);
    } else if constexpr (BITS == 4) {
        Longs v = __builtin_convertvector(load<Longs32>(data), Longs);
        v = (v | (v << 16)) & 0x0000ffff0000ffffu;
        v = (v | (v << 8)) & 0x00ff00ff00ff00ffu;
        return (v | (v << 4)) & 0x0f0f0f0f0f0f0f0fu;
    } else if constexpr (BITS == 2) {
        Longs v = __builtin_convertvector(load<Longs16>(data), Longs);
        v = (v | (v << 24)) & 0x000000ff000000ffu;
        v = (v | (v << 12)) & 0x000f000f000f000fu;
        return (v | (v << 6)) & 0x0303030303030303u;
    } else {
        static_assert(BITS == 1);
        Longs v = __builtin_convertvector(load<Longs8>(data), Longs);
        v = (v | (v << 28)) & 0x0000000f0000000fu;
        v = (v | (v << 14)) & 0x0003000300030003u;
        return (v | (v << 7)) & 0x0101010101010101u;
    }
}

// A block's codes to the wire and back. 16 bits skip the byte register: two bytes a code, little end first.
template <int BITS>
TW_INLINE void put_block(const Codes& codes, uint8_t* out) {
    if constexpr (BITS == 16) {
        for (int i = 0; i < 4; ++i) store(out + i * LANES * 2, __builtin_convertvector((Words)codes.part[i], Shorts));
    } else {
        pack<BITS>(join(codes), out);
    }
}

template <int BITS>
TW_INLINE Codes get_block(const uint8_t* data) {
    if constexpr (BITS == 16) {
        Codes codes;
        for (int i = 0; i < 4; ++i) codes.part[i] = __builtin_convertvector(load<Shorts>(data + i * LANES * 2), Ints);
        return codes;
    } else {
        return split(unpack<BITS>(data));
    }
}

// Walks `count` values in whole blocks; the rest goes through a buffer padded with `pad`, which must code to 0.
template <int BITS, class Encode>
TW_INLINE void encode_blocks(const float* x, int64_t count, float pad, uint8_t* out, Encode encode) {
    int64_t c = 0;
    for (; c + BLOCK <= count; c += BLOCK) put_block<BITS>(encode(x + c, c), out + c * BITS / 8);
    if (c == count) return;
    float tail[BLOCK];
    uint8_t packed[BLOCK * BITS / 8];
    for (int i = 0; i < BLOCK; ++i) tail[i] = c + i < count ? x[c + i] : pad;
    put_block<BITS>(encode((const float*)tail, c), packed);
    memcpy(out + c * BITS / 8, packed, packed_bytes(count - c, BITS));
}

template <int BITS, class Value>
TW_INLINE void decode_blocks(const uint8_t* data, int64_t count, float* x, Put put, Value value) {
    int64_t c = 0;
    if (put == Put::add) {
        for (; c + BLOCK <= count; c += BLOCK) {
            Codes codes = get_block<BITS>(data + c * BITS / 8);
            for (int i = 0; i < 4; ++i) {
                float* to = x + c + i * LANES;
                store(to, load<Floats>(to) + value(codes.part[i]));
            }
        }
    } else if (put == Put::stream && (uintptr_t)x % sizeof(Floats) == 0) {
        for (; c + BLOCK <= count; c += BLOCK) {
            Codes codes = get_block<BITS>(data + c * BITS / 8);
            for (int i = 0; i < 4; ++i) stream(x + c + i * LANES, value(codes.part[i]));
        }
    }
    for (; c + BLOCK <= count; c += BLOCK) {
        Codes codes = get_block<BITS>(data + c * BITS / 8);
        for (int i = 0; i < 4; ++i) store(x + c + i * LANES, value(codes.part[i]));
    }
    if (c == count) return;
    float tail[BLOCK];
    uint8_t packed[BLOCK * BITS / 8] = {};
    memcpy(packed, data + c * BITS / 8, packed_bytes(count - c, BITS));
    Codes codes = get_block<BITS>(packed);
    for (int i = 0; i < 4; ++i) store(tail + i * LANES, value(codes.part[i]));
    if (put == Put::add)
        for (int64_t i = c; i < count; ++i) tail[i - c] += x[i];
    memcpy(x + c, tail, (count - c) * sizeof(float));
}

}  // namespace thinwire::THINWIRE_ISA
