// Which rows to send, at how many bits, under a budget of bytes; and how to tell the receiver. Specification:
// codecs/twins/budget.py.
#pragma once
#include <cstdint>

namespace thinwire {

int64_t sent_bytes(int64_t num_rows, int64_t num_sent);
// errors: five a row, at 0, 1, 2, 4 and 8 bits. must: above 0 for rows that come first, the largest before others.
void choose_rows(const double* errors, const float* weights, const int64_t* must, int64_t num_rows, int64_t width,
                 int64_t size, uint8_t* bits);
// `out` has sent_bytes.
void write_sent(const uint8_t* bits, int64_t num_rows, uint8_t* out);
// How many bytes said so; -1 where they can't be from write_sent.
int64_t read_sent(const uint8_t* data, int64_t length, int64_t num_rows, uint8_t* bits);

}  // namespace thinwire
