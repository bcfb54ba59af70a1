// Which rows to send, at how many bits, under a budget of bytes; and how to tell the receiver. Specification:
// codecs/twins/budget.py.
#pragma once
#include <cstdint>

namespace thinwire {

int64_t sent_bytes(int64_t num_rows, int64_t num_sent);

constexpr int NUM_CHOICES = 5;  // 0, 1, 2, 4 and 8 bits

// What the choice of rows is made from.
struct Offers {
    const double* errors;  // of each row at each choice, row * stride + choice
    int64_t stride;
    const float* weights;
    const int64_t* must;  // above 0 for rows that come first, the largest before others
    int64_t num_rows, width, size;

    const double* of(int64_t row) const { return errors + row * stride; }
};

// The upper half of a positive double orders like it: the price of a step, what it gains a byte.
uint32_t price_of(double rate);
// The least rate of that price.
double rate_of(uint32_t price);
// The bytes of a row at a choice, as choices are compared.
int64_t compared_bytes(int64_t width, int choice);
// About the price of the last step that fits, if rows were like a Gaussian's: from their errors at 0 and 1 bits.
uint32_t likely_price(const Offers& offers);
// A price such that steps below it are never taken nor looked at, from errors that are known up to some choice of each
// row, at least up to 1 bit, and infinite for the others.
uint32_t least_price(const Offers& offers);
// Steps below `least` are left out.
void choose_rows(const Offers& offers, uint32_t least, uint8_t* bits);
// `out` has sent_bytes.
void write_sent(const uint8_t* bits, int64_t num_rows, uint8_t* out);
// How many bytes said so; -1 where they can't be from write_sent.
int64_t read_sent(const uint8_t* data, int64_t length, int64_t num_rows, uint8_t* bits);

}  // namespace thinwire
