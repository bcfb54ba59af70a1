// A few values out of many: the k largest, or k that the seed picks. Specification: codecs/twins/sparse.py.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace thinwire {

int64_t topk_bytes(int64_t count, int64_t k);
bool encode_topk(const Kernels& kernels, const float* x, int64_t count, int64_t k, uint8_t* out);
bool decode_topk(const uint8_t* data, int64_t count, int64_t k, float* x);
bool encode_randomk(const float* x, int64_t count, int64_t k, float gain, uint64_t seed, uint8_t* out);
void decode_randomk(const uint8_t* data, int64_t count, int64_t k, uint64_t seed, float* x);

}  // namespace thinwire
