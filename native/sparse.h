// A few values out of many: the k largest, or k that the seed picks. Specification: codecs/twins/sparse.py.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace thinwire {

int64_t topk_bytes(int64_t count, int64_t k);
bool encode_topk(const Kernels& kernels, const float* x, int64_t count, int64_t k, uint8_t* out);
// False, and x as it was, where the bytes are not k ascending positions inside x; add_topk touches no other value.
bool decode_topk(const uint8_t* data, int64_t count, int64_t k, float* x);
bool add_topk(const uint8_t* data, int64_t count, int64_t k, float* x);
bool encode_randomk(const float* x, int64_t count, int64_t k, float gain, uint64_t seed, uint8_t* out);
void decode_randomk(const uint8_t* data, int64_t count, int64_t k, uint64_t seed, float* x);
void add_randomk(const uint8_t* data, int64_t count, int64_t k, uint64_t seed, float* x);

}  // namespace thinwire
