#include "spend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "budget.h"
#include "checks.h"
#include "parallel.h"

namespace thinwire {
namespace {

// Whether a step to a choice could have the price `least`. It leaves an error of 0 or more, so from the choice `now` it
// gains at most the error at `now`. If that is below the price, or below what a measured choice between the two gains,
// no step of that price goes from `now` to this choice. An infinite error in its place then changes no step of that
// price: each is the best of its row's choices, and this one is not; nor does it bring one, as a row's steps never
// rise. Bytes grow with the choice and the bounds fall: if a choice is not worth measuring, none after it is.
class Worth final : public Wanted {
  public:
    Worth(const Offers& offers, uint32_t least) : offers_(offers), least_(rate_of(least)) {
        for (int now = 0; now < NUM_CHOICES; ++now)
            for (int next = now + 1; next < NUM_CHOICES; ++next)
                inverse_[now][next] =
                    1.0 / (double)(compared_bytes(offers.width, next) - compared_bytes(offers.width, now));
    }
    bool operator()(const Measured& row, int64_t number, int choice) const override {
        constexpr double ROUNDED = 1.0 + 1e-9;  // far more than products and quotients of doubles can be off
        const double weight = (double)offers_.weights[number];
        for (int now = offers_.must[number] > 0; now < choice; ++now) {
            const double most = row.errors[now] * inverse_[now][choice] * ROUNDED;
            bool possible = weight * most >= least_ && most > 0.0;
            for (int between = now + 1; possible && between < choice; ++between)
                possible = !((row.errors[now] - row.errors[between]) * inverse_[now][between] > most * ROUNDED);
            if (possible) return true;
        }
        return false;
    }

  private:
    const Offers& offers_;
    double least_, inverse_[NUM_CHOICES][NUM_CHOICES] = {};
};

class NoneWanted final : public Wanted {
  public:
    bool operator()(const Measured&, int64_t, int) const override { return false; }
};

Offers offers_of(const std::vector<Measured>& rows, const float* weights, const int64_t* must, int64_t width,
                 int64_t size) {
    static_assert(sizeof(Measured) % sizeof(double) == 0);
    return {rows[0].errors, sizeof(Measured) / sizeof(double), weights, must, (int64_t)rows.size(), width, size};
}

// The price of the last step that fits, about: from 8 rows of 256, so that a row's errors can be measured together
// while it is in the cache.
uint32_t sampled_price(const Kernels& kernels, const float* x, const float* copy, const Offers& all) {
    constexpr int64_t TAKEN = 8, OF = 256;
    std::vector<Measured> rows(std::min(all.num_rows, TAKEN) + all.num_rows / OF * TAKEN);
    std::vector<float> weights;
    std::vector<int64_t> must;
    for (int64_t begin = 0; begin < all.num_rows; begin += OF) {
        const int64_t end = std::min(all.num_rows, begin + TAKEN);
        const float* from = copy ? copy + begin * all.width : nullptr;
        kernels.measure_rows(x + begin * all.width, from, 0, end - begin, all.width, NoneWanted{},
                             rows.data() + weights.size());
        weights.insert(weights.end(), all.weights + begin, all.weights + end);
        must.insert(must.end(), all.must + begin, all.must + end);
    }
    rows.resize(weights.size());
    const double share = (double)rows.size() / (double)all.num_rows;
    return likely_price(offers_of(rows, weights.data(), must.data(), all.width, (int64_t)((double)all.size * share)));
}

}  // namespace

bool encode_budget(const Kernels& kernels, const float* x, float* copy, const float* weights, const int64_t* must,
                   int64_t num_rows, int64_t width, int64_t size, uint8_t* out) {
    const WithSubnormals scope;
    const int64_t grain = rows_grain(width);
    std::vector<Measured> rows(num_rows);
    const Offers offers = offers_of(rows, weights, must, width, size);
    const uint32_t likely = sampled_price(kernels, x, copy, offers);
    const Worth at_likely(offers, likely);
    parallel(num_rows, 1, grain,
             [&](int, Range r) { kernels.measure_rows(x, copy, r.begin, r.end, width, at_likely, rows.data()); });
    for (const Measured& row : rows)
        if (!std::isfinite(row.errors[0])) return false;

    // Where the sample's price was too high, the rest is measured now: what is chosen does not depend on it.
    const uint32_t least = least_price(offers);
    if (least < likely) {
        const Worth at_least(offers, least);
        parallel(num_rows, 1, grain, [&](int, Range r) {
            std::vector<int32_t> missing;
            for (int64_t row = r.begin; row < r.end; ++row)
                if (rows[row].known < NUM_CHOICES - 1 && at_least(rows[row], row, rows[row].known + 1))
                    missing.push_back((int32_t)row);
            kernels.measure_further(x, copy, missing.data(), (int64_t)missing.size(), width, at_least, rows.data());
        });
    }

    std::vector<uint8_t> bits(num_rows);
    choose_rows(offers, least, bits.data());
    std::vector<int32_t> sent;
    std::vector<int64_t> offsets(num_rows);
    int64_t payload = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
        offsets[row] = payload;
        payload += row_bytes(width, bits[row]);
        if (bits[row]) sent.push_back((int32_t)row);
    }
    const int64_t num_sent = (int64_t)sent.size(), begin = sent_bytes(num_rows, num_sent), end = begin + payload;
    write_sent(bits.data(), num_rows, out);
    memset(out + end, 0, size - end);
    parallel(num_sent, 1, grain, [&](int, Range r) {
        kernels.encode_measured(x, copy, sent.data() + r.begin, r.end - r.begin, width, bits.data(), offsets.data(),
                                rows.data(), out + begin);
    });
    return true;
}

}  // namespace thinwire
